"""The machine as a record: everything here that decides a measurement."""

from __future__ import annotations

import msgspec

from mini_kv import __version__
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.records.card import SCHEMA_VERSION, DeviceKind
from mini_kv.core.records.environment import Environment, ToolFact, environment_key
from mini_kv.system.gpu import GpuReport
from mini_kv.system.host import HostFacts, host_facts
from mini_kv.system.toolchain import Toolchain

_NO_KEY = "0" * 64


def environment(
    *,
    device: DeviceKind,
    timer_plan: str,
    isolation: str,
    isolation_features: tuple[str, ...] = (),
    toolchain: Toolchain,
    gpus: GpuReport,
    host: HostFacts | None = None,
) -> Environment:
    """Describe this machine for one run. ``gpus.gpus[0]`` is the one that is measured on CUDA.

    Raises :class:`ConfigurationError` (``TORCH_MISSING``, ``GPU_MISSING``) when there is nothing to
    describe.
    """
    torch = toolchain.torch
    if torch is None:
        raise ConfigurationError(Code.TORCH_MISSING, "PyTorch was not found: install torch 2.11 or newer.")
    if device == "cuda" and not gpus.gpus:
        raise ConfigurationError(Code.GPU_MISSING, "No GPU is visible here: use --device cpu.")
    host = host or host_facts()
    described = Environment(
        schema_version=SCHEMA_VERSION,
        key=_NO_KEY,
        device=device,
        os=host.os,
        kernel=host.kernel,
        machine=host.machine,
        cpu_model=host.cpu_model,
        cpu_count=host.cpu_count,
        memory_bytes=host.memory_bytes,
        python=host.python,
        mini_kv=__version__,
        torch=torch.version,
        torch_cuda=torch.cuda,
        driver=gpus.driver,
        gpus=gpus.gpus,
        tools=_compilers(toolchain),
        timer_plan=timer_plan,
        isolation=isolation,
        isolation_features=isolation_features,
    )
    return msgspec.structs.replace(described, key=environment_key(described))


def _compilers(toolchain: Toolchain) -> tuple[ToolFact, ...]:
    found = (("g++", toolchain.cxx), ("nvcc", toolchain.nvcc))
    return tuple(
        ToolFact(name=name, path=one.path if one else None, version=one.version if one else None)
        for name, one in found
    )
