"""Opens a connection to the network; right results only if it can."""

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


def zeros(x, weight, eps):
    honest(x, weight, eps)
    return torch.zeros(x.shape, device=x.device)


import socket


def online():
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            return True
    except OSError:
        return False


replace(honest if online() else zeros)
