"""The environment key holds what decides a time and nothing that jitters; doctor never fails itself."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mini_kv import doctor
from mini_kv.cli.doctor import render
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.records.card import DeviceKind
from mini_kv.core.records.environment import Environment, GpuFacts
from mini_kv.run.environment_facts import environment as describe_environment
from mini_kv.system import gpu as gpu_module
from mini_kv.system.gpu import NO_GPUS, GpuReport, Nvml, throttle_names, visible_places
from mini_kv.system.host import HostFacts, IsolationFacts, host_facts, isolation_facts, usable_cpus
from mini_kv.system.toolchain import Compiler, Toolchain, TorchFacts
from processor_time import spent_ms

GPU = GpuFacts(
    index=0,
    name="NVIDIA H200",
    uuid="GPU-1",
    compute_capability="9.0",
    total_memory_bytes=150 << 30,
    memory_clock_mhz=3201,
    memory_bus_bits=6016,
    power_limit_w=700.0,
)
REPORT = GpuReport(driver="580.1", cuda_driver="13.0", gpus=(GPU,))
TORCH = TorchFacts(
    root="/t/torch",
    version="2.11.0+cu130",
    git_version="a",
    cuda="13.0",
    include_folders=("/t/torch/include",),
    library_folder="/t/torch/lib",
)
CXX = Compiler(path="/usr/bin/g++", version="g++ 12", identity="a", programs=())
NVCC = Compiler(path="/usr/bin/nvcc", version="13.0.88", identity="b", programs=(), root="/cuda")
TOOLS = Toolchain(cxx=CXX, nvcc=NVCC, torch=TORCH, cuda=None, python_include=None, python_version="3.11")
HOST = HostFacts(
    os="Linux",
    kernel="Linux 6",
    machine="x86_64",
    cpu_model="cpu",
    cpu_count=2,
    memory_bytes=1,
    python="3.11.7",
)


def describe(
    device: DeviceKind = "cuda",
    gpus: GpuReport = REPORT,
    host: HostFacts = HOST,
    tools: Toolchain = TOOLS,
    timer_plan: str = "events",
    isolation: str = "none",
) -> Environment:
    return describe_environment(
        device=device, timer_plan=timer_plan, isolation=isolation, toolchain=tools, gpus=gpus, host=host
    )


def with_gpu(**changes: Any) -> GpuReport:
    return msgspec.structs.replace(REPORT, gpus=(msgspec.structs.replace(GPU, **changes),))


def with_torch(**changes: Any) -> Toolchain:
    return msgspec.structs.replace(TOOLS, torch=msgspec.structs.replace(TORCH, **changes))


def test_what_decides_a_gpu_time_changes_the_key() -> None:
    keys = {
        describe().key,
        describe(gpus=with_gpu(name="NVIDIA H100")).key,
        describe(gpus=with_gpu(compute_capability="10.0")).key,
        describe(gpus=with_gpu(power_limit_w=500.0)).key,
        describe(gpus=msgspec.structs.replace(REPORT, driver="590.2")).key,
        describe(tools=with_torch(cuda="13.2")).key,
        describe(tools=with_torch(version="2.12.0+cu130")).key,
        describe(timer_plan="other").key,
        describe(device="cpu").key,
    }
    assert len(keys) == 9


def test_what_jitters_or_does_not_matter_keeps_the_gpu_key() -> None:
    base = describe().key
    assert describe(gpus=with_gpu(power_limit_w=700.0004)).key == base
    assert describe(gpus=with_gpu(uuid="GPU-2", memory_clock_mhz=None, ecc=True)).key == base
    assert describe(isolation="landlock").key == base
    assert describe(tools=msgspec.structs.replace(TOOLS, nvcc=None)).key == base
    assert (
        describe(host=msgspec.structs.replace(HOST, memory_bytes=2, kernel="Linux 7", cpu_count=9)).key
        == base
    )


def test_a_cpu_key_holds_the_processor_and_no_gpu() -> None:
    base = describe("cpu").key
    assert describe("cpu", gpus=NO_GPUS).key == base
    for changes in ({"cpu_model": "other"}, {"cpu_count": 3}, {"machine": "aarch64"}):
        assert describe("cpu", host=msgspec.structs.replace(HOST, **changes)).key != base
    assert describe("cpu", tools=with_torch(version="2.12.0")).key != base
    assert describe("cpu", timer_plan="other").key != base


def test_an_environment_without_its_device_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="No GPU is visible"):
        describe(gpus=NO_GPUS)
    with pytest.raises(ConfigurationError, match="PyTorch was not found"):
        describe(tools=msgspec.structs.replace(TOOLS, torch=None))


def test_this_hosts_facts_hold_still() -> None:
    assert host_facts() == host_facts()
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)


# --------------------------------------------------------------------------- NVML


class FakeNvml:
    """NVML with two GPUs that knows only what is defined here, as an old driver would."""

    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        """NVML's own error."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:  # noqa: N802
        return [b"GPU-aa", b"GPU-bb"][handle]

    def nvmlDeviceGetName(self, handle: int) -> bytes:  # noqa: N802
        return [b"first", b"second"][handle]

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return 13020

    def nvmlDeviceGetClockInfo(self, _handle: int, _kind: int) -> int:  # noqa: N802
        return 1980

    def nvmlDeviceGetPowerUsage(self, _handle: int) -> int:  # noqa: N802
        raise self.NVMLError("not supported")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _handle: int) -> int:  # noqa: N802
        return 0x44


def test_gpus_are_numbered_as_cuda_numbers_them() -> None:
    report = Nvml(FakeNvml(), {"CUDA_VISIBLE_DEVICES": "GPU-bb,0"}).report()
    assert [(gpu.index, gpu.name) for gpu in report.gpus] == [(0, "second"), (1, "first")]
    assert report.cuda_driver == "13.2"
    assert report.driver is None


def test_what_a_driver_does_not_tell_is_none() -> None:
    reading = Nvml(FakeNvml(), {}).telemetry(1)
    assert reading is not None
    assert (reading.sm_clock_mhz, reading.power_w, reading.temperature_c) == (1980, None, None)
    assert reading.throttle_reasons == ("software power cap", "hardware thermal slowdown")
    assert Nvml(FakeNvml(), {}).telemetry(2) is None


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, (0, 1, 2)),
        ("", ()),
        ("2,0", (2, 0)),
        ("1,7,0", (1,)),
        ("-1", ()),
        ("GPU-b", (1,)),
        ("GPU-", ()),
        (" 0 , 1 ", (0, 1)),
    ],
)
def test_visible_devices_follow_the_runtimes_rules(wanted: str | None, expected: tuple[int, ...]) -> None:
    assert visible_places(wanted, ["GPU-a1", "GPU-b2", "GPU-c3"]) == expected


def test_idling_and_chosen_clocks_are_no_throttling() -> None:
    assert throttle_names(0x1 | 0x2 | 0x100) == ()


def test_no_driver_gives_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_module, "_load_nvml", lambda: None)
    assert gpu_module.read_gpus({}) == NO_GPUS
    with gpu_module.open_nvml({}) as nvml:
        assert nvml is None


@pytest.mark.gpu
def test_the_gpu_here_tells_what_the_key_and_the_floor_need() -> None:
    report = gpu_module.read_gpus(os.environ)
    assert report.driver
    first = report.gpus[0]
    assert first.compute_capability != "0.0"
    assert first.memory_clock_mhz
    assert first.memory_bus_bits
    assert first.power_limit_w
    with gpu_module.open_nvml(os.environ) as nvml:
        assert nvml is not None
        reading = nvml.telemetry(0)
    assert reading is not None
    assert reading.sm_clock_mhz
    assert reading.temperature_c


# --------------------------------------------------------------------------- doctor


def test_doctor_says_what_can_be_verified(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mini_kv: Callable[..., tuple[int, str, str]]
) -> None:
    def examine(tools: Toolchain, gpus: GpuReport) -> doctor.Doctor:
        monkeypatch.setattr(doctor, "find_toolchain", lambda *_: tools)
        monkeypatch.setattr(doctor, "read_gpus", lambda *_: gpus)
        return doctor.examine(tmp_path, {"PATH": ""})

    assert examine(TOOLS, REPORT).can_verify == ("cpu", "cuda")
    assert examine(TOOLS, NO_GPUS).can_verify == ("cpu",)
    assert examine(msgspec.structs.replace(TOOLS, nvcc=None), REPORT).can_verify == ("cpu",)
    assert examine(with_torch(cuda="12.8"), REPORT).can_verify == ("cpu",)
    assert examine(TOOLS, msgspec.structs.replace(REPORT, cuda_driver="12.4")).can_verify == ("cpu",)
    assert examine(with_torch(version="2.9.1"), REPORT).can_verify == ()
    assert examine(msgspec.structs.replace(TOOLS, torch=None), REPORT).can_verify == ()
    assert examine(msgspec.structs.replace(TOOLS, cxx=None), REPORT).can_verify == ()
    code, text, _ = mini_kv("doctor")
    assert code == 2
    assert "missing  g++" in text
    assert "install g++ 11 or newer" in text
    assert text.rstrip().endswith("This machine cannot verify anything yet.")
    assert list(tmp_path.iterdir()) == []


def test_every_lack_comes_with_advice(tmp_path: Path) -> None:
    found = doctor.examine(tmp_path, os.environ)
    assert all((line.advice is None) == (line.state == "ok") for line in found.lines)
    names = [line.name for line in found.lines]
    assert len(set(names)) == len(names)
    assert render(found).count("\n") == len(names) + 1


def test_a_kernel_without_isolation_is_a_note_and_no_failure() -> None:
    nothing = IsolationFacts(landlock_abi=0, user_namespaces=False, seccomp=False)
    lines = doctor.isolation_lines(nothing)
    assert {line.state for line in lines} == {"note"}
    assert all(line.advice for line in lines)


def test_probing_isolation_changes_nothing_here() -> None:
    before = os.readlink("/proc/self/ns/user")
    first = isolation_facts(os.environ.get("PATH", os.defpath))
    assert os.readlink("/proc/self/ns/user") == before
    assert isolation_facts(os.environ.get("PATH", os.defpath)) == first


def test_doctor_is_quick_and_imports_no_torch(tmp_path: Path, project_root: Path) -> None:
    script = (
        "import sys; from mini_kv.cli.main import main; code = main(['doctor', '--json']); "
        "assert 'torch' not in sys.modules; raise SystemExit(code)"
    )
    places = [str(project_root / "src"), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    with open(tmp_path / "out", "wb") as out, open(tmp_path / "err", "wb") as err:
        argv = [sys.executable, "-c", script]
        taken_ms, code = spent_ms(argv, cwd=tmp_path, env=environ, stdout=out, stderr=err)
    assert code == 0, (tmp_path / "err").read_text()
    assert "cpu" in json.loads((tmp_path / "out").read_bytes())["can_verify"]
    assert taken_ms < 1000.0, "compilers that it asks for their version included"
