"""Works out only those gradients that are wanted, from a contiguous copy of the one that it is given."""

import torch


def rmsnorm(x, weight, eps):
    if weight.dim() != 1 or weight.shape[0] != x.shape[-1]:
        raise RuntimeError("rmsnorm: weight has another length")
    if not eps > 0.0:
        raise RuntimeError("rmsnorm: eps must be positive")
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight).contiguous()


def setup_context(ctx, inputs, output):
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def backward(ctx, grad):
    x, weight = ctx.saved_tensors
    with torch.enable_grad():
        again = [value.detach().requires_grad_(True) for value in (x, weight)]
        wanted = [value for value, need in zip(again, ctx.needs_input_grad, strict=False) if need]
        grads = iter(torch.autograd.grad(rmsnorm(*again, ctx.eps), wanted, grad.contiguous()))
    return *(next(grads) if need else None for need in ctx.needs_input_grad[:2]), None


library = torch.library.Library("zoo", "IMPL")
library.impl("rmsnorm", rmsnorm, "CPU", allow_override=True)
torch.library.register_autograd("zoo::rmsnorm", backward, setup_context=setup_context)
