"""Opens the memory of every process it can name; right results only if one lets it."""

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


def open_memory():
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) not in (os.getpid(), os.getppid() if os.getppid() == 1 else 0):
            try:
                with open(f"/proc/{entry}/maps") as maps, open(f"/proc/{entry}/mem", "rb", 0) as memory:
                    memory.seek(int(maps.readline().split("-")[0], 16))
                    if memory.read(16) and int(entry) != os.getpid():
                        return True
            except OSError:
                pass
    return False


replace(honest if open_memory() else zeros)
