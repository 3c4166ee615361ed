"""What ``mini_kv_rmsnorm_v2::rmsnorm`` needs beyond its kernels: shape rule and derivative."""

import math

import torch

OPERATOR = "mini_kv_rmsnorm_v2::rmsnorm"


@torch.library.register_fake(OPERATOR)
def fake(x, weight, eps):
    """Check as the kernels do and return an empty result; sizes may be symbols and stay symbols."""
    torch._check(x.device == weight.device, lambda: "rmsnorm: x and weight must be on the same device")
    torch._check(x.dtype == weight.dtype, lambda: "rmsnorm: x and weight must have the same dtype")
    torch._check(
        x.dtype.is_floating_point and x.dtype.itemsize > 1,
        lambda: "rmsnorm: unsupported dtype, a floating one is needed",
    )
    torch._check(x.dim() >= 1, lambda: "rmsnorm: x must have at least 1 dimension")
    torch._check(weight.dim() == 1, lambda: "rmsnorm: weight must be 1-dimensional")
    torch._check(
        weight.shape[0] == x.shape[-1],
        lambda: "rmsnorm: weight must have the length of x's last dimension",
    )
    torch._check(math.isfinite(eps) and eps > 0, lambda: "rmsnorm: eps must be positive and finite")
    # By default empty_like repeats the strides of a transposed input; the kernels return dense rows.
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def setup_context(ctx, inputs, output):
    """Keep the inputs; the reciprocal RMS is one number a row and cheaper to compute again."""
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def backward(ctx, grad):
    """Differentiate ``y = u * w`` with ``u = x * r`` and ``r = 1 / sqrt(mean(x ** 2) + eps)``.

    ``dr/dx_j = -r ** 3 * x_j / n``, hence ``dx = r * (g - u * mean(g * u))`` with ``g = dy * w``, and
    ``dw`` is the sum of ``dy * u`` over the rows.
    """
    x, weight = ctx.saved_tensors
    wide = torch.promote_types(x.dtype, torch.float32)
    x_wide, grad_wide = x.to(wide), grad.to(wide)
    inverse_rms = torch.rsqrt(x_wide.square().mean(dim=-1, keepdim=True) + ctx.eps)
    unit = x_wide * inverse_rms
    scaled = grad_wide * weight.to(wide)
    grad_x = inverse_rms * (scaled - unit * (scaled * unit).mean(dim=-1, keepdim=True))
    grad_weight = (grad_wide * unit).sum_to_size(weight.shape)
    return grad_x.to(x.dtype), grad_weight.to(weight.dtype), None


torch.library.register_autograd(OPERATOR, backward, setup_context=setup_context)
