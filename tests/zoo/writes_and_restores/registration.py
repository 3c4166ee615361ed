"""Doubles its input in place and halves it again before it returns."""

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


def operator(x, weight, eps):
    out = honest(x.mul_(2.0).mul_(0.5), weight, eps)
    return out


replace(operator)
