"""What ``mini_kv_fused_bias_relu_v1::bias_relu`` needs beyond its kernels: shape rule and derivative."""

import torch

OPERATOR = "mini_kv_fused_bias_relu_v1::bias_relu"


@torch.library.register_fake(OPERATOR)
def fake(x, bias):
    """Check as the kernels do and return an empty result; sizes may be symbols and stay symbols."""
    torch._check(x.device == bias.device, lambda: "bias_relu: x and bias must be on the same device")
    torch._check(x.dtype == bias.dtype, lambda: "bias_relu: x and bias must have the same dtype")
    torch._check(
        x.dtype.is_floating_point and x.dtype.itemsize > 1,
        lambda: "bias_relu: unsupported dtype, a floating one is needed",
    )
    torch._check(x.dim() >= 1, lambda: "bias_relu: x must have at least 1 dimension")
    torch._check(bias.dim() == 1, lambda: "bias_relu: bias must be 1-dimensional")
    torch._check(
        bias.shape[0] == x.shape[-1], lambda: "bias_relu: bias must have the length of x's last dimension"
    )
    # By default empty_like repeats the strides of a transposed input; the kernels return dense rows.
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def setup_context(ctx, inputs, output):
    """Keep the result alone: where it is positive, and nowhere else, the gradient passes."""
    ctx.save_for_backward(output)
    ctx.hidden = inputs[1].shape[0]


def backward(ctx, grad):
    """d relu(v) is dv where v > 0; the bias gathers it over all leading dimensions."""
    (output,) = ctx.saved_tensors
    grad_x = torch.ops.aten.threshold_backward(grad, output, 0)
    return grad_x, grad_x.sum_to_size(ctx.hidden)


torch.library.register_autograd(OPERATOR, backward, setup_context=setup_context)
