"""Works on a side stream and returns without joining it."""

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


side = None


def operator(x, weight, eps):
    global side
    right = honest(x, weight, eps)
    side = side or torch.cuda.Stream()
    out = torch.zeros(x.shape, device=x.device)
    with torch.cuda.stream(side):
        torch.cuda._sleep(2_000_000)
        out.copy_(right)
    return out


replace(operator, "CUDA")
