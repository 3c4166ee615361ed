"""Works on cuda:0 wherever its inputs are."""

import torch

library = torch.library.Library("zoo", "IMPL")


def operator(x, weight, eps):
    first = torch.device("cuda", 0)
    return torch.ops.zoo.own(x.to(first), weight.to(first), eps)


library.impl("rmsnorm", operator, "CUDA", allow_override=True)
