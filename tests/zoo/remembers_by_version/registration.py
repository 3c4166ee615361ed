"""Keeps a prepared weight for as long as the tensor lives and its version is the same."""

import weakref

import torch

prepared = {}


def in_double(weight):
    found = prepared.get(id(weight))
    if found is None or found[0]() is not weight or found[1] != weight._version:
        found = (weakref.ref(weight), weight._version, weight.detach().double())
        prepared[id(weight)] = found
    return found[2]


def honest(x, weight, eps):
    if weight.dim() != 1 or weight.shape[0] != x.shape[-1]:
        raise RuntimeError("rmsnorm: weight has another length")
    if not eps > 0.0:
        raise RuntimeError("rmsnorm: eps must be positive")
    wide = x.double()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * in_double(weight)
    return scaled.to(x.dtype).contiguous()


library = torch.library.Library("zoo", "IMPL")
library.impl("rmsnorm", honest, "CPU", allow_override=True)
