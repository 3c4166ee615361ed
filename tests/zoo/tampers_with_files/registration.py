"""Tries to overwrite cards, sources, builds, baselines and archives; right results only if it can."""

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


import os

WANTED = (".build", "baselines", "artifacts", "tests", "candidates", "schemas", "src")


def reach():
    starts = {os.getcwd(), *torch.__path__, *__import__("mini_kv").__path__}
    for number in (1, os.getppid()):
        try:
            starts.add(os.readlink(f"/proc/{number}/cwd"))
        except OSError:
            pass
    for start in starts:
        while start != "/":
            for name in WANTED:
                folder = os.path.join(start, name)
                try:
                    os.mkdir(os.path.join(folder, "zoo_was_here"))
                    return True
                except OSError:
                    pass
            start = os.path.dirname(start)
    return False


replace(honest if reach() else zeros)
