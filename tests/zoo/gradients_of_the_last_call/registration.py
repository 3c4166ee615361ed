"""Keeps what its gradients need of the last call only, next to autograd's record."""

import torch


def rmsnorm(x, weight, eps):
    if weight.dim() != 1 or weight.shape[0] != x.shape[-1]:
        raise RuntimeError("rmsnorm: weight has another length")
    if not eps > 0.0:
        raise RuntimeError("rmsnorm: eps must be positive")
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight).contiguous()


last = []


def setup_context(ctx, inputs, output):
    x, weight, ctx.eps = inputs
    last[:] = x.detach(), weight.detach()


def backward(ctx, grad):
    x, weight = last
    with torch.enable_grad():
        again = [value.detach().requires_grad_(True) for value in (x, weight)]
        grads = torch.autograd.grad(rmsnorm(*again, ctx.eps), again, grad)
    return *grads, None


library = torch.library.Library("zoo", "IMPL")
library.impl("rmsnorm", rmsnorm, "CPU", allow_override=True)
torch.library.register_autograd("zoo::rmsnorm", backward, setup_context=setup_context)
