"""A build is made once per content, told truthfully when it fails, and never blocked by the dead."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mini_kv import compiler
from mini_kv.compiler import BuildRequest, build, diagnosis, explain_load_error, logs_folder
from mini_kv.compiler import store as store_module
from mini_kv.compiler.recipe import make_plan
from mini_kv.compiler.snapshot import read_candidate
from mini_kv.compiler.stable_abi import is_stable
from mini_kv.compiler.store import BuildStore
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.records.build import Build
from mini_kv.core.records.card import CandidateManifest, DeviceKind
from mini_kv.core.records.results import Status
from mini_kv.system.toolchain import Toolchain, find_toolchain

TINY = (
    '#include "answer.h"\nextern "C" __attribute__((visibility("default"))) int answer() { return ANSWER; }\n'
)
STABLE = """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
using torch::stable::Tensor;
Tensor same(const Tensor& x) { return torch::stable::clone(x); }
STABLE_TORCH_LIBRARY(mini_kv_test_stable, m) { m.def("same(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(mini_kv_test_stable, CPU, m) { m.impl("same", TORCH_BOX(&same)); }
"""
KERNEL = """
__global__ void twice(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= 2;
}
extern "C" void launch(float* x, int n, void* stream) {
  twice<<<(n + 255) / 256, 256, 0, (cudaStream_t)stream>>>(x, n);
}
"""
CALLER = """
#ifdef MINI_KV_WITH_CUDA
extern "C" void launch(float*, int, void*);
#endif
extern "C" __attribute__((visibility("default"))) void run(float* x) {
#ifdef MINI_KV_WITH_CUDA
  launch(x, 1, nullptr);
#endif
}
"""


def manifest(**changes: object) -> CandidateManifest:
    facts: dict[str, object] = {
        "schema_version": "1.0.0",
        "candidate_id": "tiny",
        "operator": "tiny",
        "version": "0.1.0",
        "dispatcher": "tiny::answer",
        "schema": "answer() -> int",
        "sources": ["tiny.cpp"],
        "backends": ["cpu"],
        "autograd": False,
        "kernel_name_regex": "tiny",
        "dtypes": ["float32"],
    }
    return msgspec.convert({**facts, **changes}, CandidateManifest)


@pytest.fixture(scope="session")
def real_toolchain(tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    return find_toolchain(tmp_path_factory.mktemp("probes"), os.environ)


@pytest.fixture(scope="session")
def toolchain(tmp_path_factory: pytest.TempPathFactory, real_toolchain: Toolchain) -> Toolchain:
    """The real compilers with a hollow torch, so that linking costs milliseconds."""
    site = tmp_path_factory.mktemp("site")
    folder = site / "torch" / "lib"
    folder.mkdir(parents=True)
    (site / "torch" / "include").mkdir()
    (site / "torch" / "version.py").write_text("__version__ = '2.11.0'\ncuda = '13.0'\ngit_version = 'a'\n")
    for name in ("torch", "torch_cpu", "c10", "torch_cuda", "c10_cuda"):
        argv = ["g++", "-shared", "-x", "c++", "-o", str(folder / f"lib{name}.so"), os.devnull]
        subprocess.run(argv, check=True)
    return msgspec.structs.replace(
        real_toolchain, torch=find_toolchain(None, {"PATH": ""}, [str(site)]).torch
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "candidates" / "tiny"
    folder.mkdir(parents=True)
    (folder / "tiny.cpp").write_text(TINY)
    (folder / "answer.h").write_text("#define ANSWER 42\n")
    return tmp_path


def request(
    project: Path, *, timeout_s: float = 60.0, device: DeviceKind = "cpu", **changes: object
) -> BuildRequest:
    return BuildRequest(
        project_root=str(project),
        candidate_folder="candidates/tiny",
        manifest=manifest(**changes),
        device=device,
        arch_list=("9.0",) if device == "cuda" else (),
        timeout_s=timeout_s,
    )


def source(project: Path, text: str, name: str = "tiny.cpp") -> None:
    (project / "candidates" / "tiny" / name).write_text(text)


def leftovers(project: Path) -> list[str]:
    return [path.name for path in (project / ".build").glob("*.partial-*")]


# --------------------------------------------------------------------------- hits and keys


def test_a_build_loads_and_is_found_again_without_starting_a_program(
    project: Path, toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(request(project), toolchain)
    assert (first.status, first.cached, first.code) == (Status.PASS, False, None)
    assert first.library is not None
    assert first.key[:16] in Path(first.library).name
    assert ctypes.CDLL(str(project / first.library)).answer() == 42
    started: list[object] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *rest, **_: started.append(rest))
    begun_s = time.process_time()
    second = build(request(project), toolchain)
    assert time.process_time() - begun_s < 0.05
    assert started == []
    monkeypatch.undo()
    assert second.cached
    assert msgspec.structs.replace(second, cached=False, elapsed_s=first.elapsed_s) == first
    folder = logs_folder(project, second)
    assert sorted(path.name for path in folder.iterdir()) == [
        "build.json",
        "compile_stderr.log",
        "compile_stdout.log",
        "sources",
        Path(first.library).name,
    ]
    assert (folder / "sources" / "answer.h").read_text() == "#define ANSWER 42\n"
    assert leftovers(project) == []


def test_every_input_enters_the_key(project: Path, toolchain: Toolchain) -> None:
    assert toolchain.cxx is not None
    assert toolchain.nvcc is not None
    assert toolchain.torch is not None
    folder = project / "candidates" / "tiny"

    def key(asked: BuildRequest, using: Toolchain = toolchain) -> str:
        return make_plan(asked, using, read_candidate(folder)).key

    def changed(part: str, **changes: object) -> Toolchain:
        return msgspec.structs.replace(
            toolchain, **{part: msgspec.structs.replace(getattr(toolchain, part), **changes)}
        )

    base = key(request(project))
    assert key(request(project)) == base
    keys = [
        base,
        key(request(project, cxx_flags=["-O2"])),
        key(request(project, candidate_id="other")),
        key(request(project), changed("cxx", identity="another compiler")),
        key(request(project), changed("torch", version="2.12.0")),
        key(request(project), changed("torch", git_version="b")),
        key(request(project, device="cuda")),
    ]
    source(project, "", "kernel.cu")
    on_gpu = request(project, device="cuda", sources=["tiny.cpp", "kernel.cu"])
    keys += [
        key(on_gpu),
        key(on_gpu, changed("nvcc", identity="another nvcc")),
        key(on_gpu, changed("cuda", version="13.0.99")),
        key(msgspec.structs.replace(on_gpu, arch_list=("10.0",))),
        key(request(project, device="cuda", sources=["tiny.cpp", "kernel.cu"], cuda_flags=["-O2"])),
    ]
    source(project, "#define ANSWER 43\n", "answer.h")
    keys.append(key(request(project)))
    source(project, TINY + " ")
    keys.append(key(request(project)))
    (folder / "answer.h").rename(folder / "reply.h")
    keys.append(key(request(project)))
    assert len(set(keys)) == len(keys)


def test_a_moved_project_keeps_its_key(project: Path, toolchain: Toolchain) -> None:
    before = build(request(project), toolchain).key
    moved = project / "moved"
    shutil.copytree(project / "candidates", moved / "candidates")
    again = build(request(moved), toolchain)
    assert again.key == before
    assert not again.cached


def test_equal_builds_give_equal_bytes(project: Path, toolchain: Toolchain) -> None:
    source(project, TINY + 'extern "C" const char* when() { return __DATE__ __TIME__ __FILE__; }\n')
    first = build(request(project), toolchain)
    shutil.rmtree(project / ".build")
    time.sleep(1.1 - time.time() % 1)
    assert build(request(project), toolchain).library_sha256 == first.library_sha256


def test_the_record_names_no_folder_of_this_machine(project: Path, toolchain: Toolchain) -> None:
    source(project, "int broken(;\n")
    failed = build(request(project), toolchain)
    assert toolchain.torch is not None
    text = json.dumps(msgspec.to_builtins(failed))
    assert toolchain.torch.root not in text
    assert str(project) not in text


# --------------------------------------------------------------------------- a store that was damaged


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "no record", "torn record", "a link"])
def test_a_damaged_build_is_made_again(project: Path, toolchain: Toolchain, damage: str) -> None:
    first = build(request(project), toolchain)
    assert first.library is not None
    library = project / first.library
    raw = library.read_bytes()
    record = library.parent / "build.json"
    match damage:
        case "truncated":
            library.write_bytes(raw[: len(raw) // 2])
        case "flipped":
            library.write_bytes(bytes([*raw[:-1], raw[-1] ^ 1]))
        case "missing":
            library.unlink()
        case "no record":
            record.unlink()
        case "torn record":
            record.write_bytes(record.read_bytes()[:100])
        case _:
            library.rename(project / "elsewhere.so")
            library.symlink_to(project / "elsewhere.so")
    second = build(request(project), toolchain)
    assert (second.status, second.cached) == (Status.PASS, False)
    assert library.read_bytes() == raw
    assert build(request(project), toolchain).cached
    assert leftovers(project) == []


def test_a_stale_lock_file_does_not_block(project: Path, toolchain: Toolchain) -> None:
    key = build(request(project), toolchain).key
    shutil.rmtree(project / ".build" / key)
    (project / ".build" / f"{key}.lock").write_text("99999999")
    assert build(request(project, timeout_s=5.0), toolchain).status is Status.PASS


BUILD_IN_CHILD = """
import sys, msgspec, os, signal
from mini_kv.compiler import BuildRequest, build
from mini_kv.core.record import from_json, to_json
from mini_kv.system.toolchain import Toolchain
asked = from_json(open(sys.argv[1], "rb").read(), BuildRequest)
using = from_json(open(sys.argv[2], "rb").read(), Toolchain)
sys.stdout.buffer.write(to_json(build(asked, using), indent=None))
"""


def spawn(project: Path, asked: BuildRequest, toolchain: Toolchain) -> subprocess.Popen[bytes]:
    """Start a build in a process of its own."""
    paths = [project / "asked.json", project / "toolchain.json"]
    for path, record in zip(paths, (asked, toolchain), strict=True):
        path.write_bytes(msgspec.json.encode(record))
    places = [str(Path(compiler.__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    argv = [sys.executable, "-c", BUILD_IN_CHILD, *map(str, paths)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, env=environ)


def slow_compiler(project: Path, toolchain: Toolchain, script: str) -> Toolchain:
    """Replace the C++ compiler by a script."""
    assert toolchain.cxx is not None
    path = project / "cxx"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return msgspec.structs.replace(toolchain, cxx=msgspec.structs.replace(toolchain.cxx, path=str(path)))


def wait_for(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_two_processes_that_want_one_build_make_it_once(project: Path, toolchain: Toolchain) -> None:
    log = project / "log"
    slow = slow_compiler(project, toolchain, f'echo run >> {log}; sleep 0.3; exec g++ "$@"')
    both = [spawn(project, request(project), slow) for _ in range(2)]
    builds = [msgspec.json.decode(one.communicate(timeout=60)[0], type=Build) for one in both]
    assert [one.status for one in builds] == [Status.PASS, Status.PASS]
    assert sorted(one.cached for one in builds) == [False, True]
    assert log.read_text().count("run") == 2  # one unit and one link


def test_a_killed_builder_blocks_nobody_and_its_rest_is_swept(project: Path, toolchain: Toolchain) -> None:
    started = project / "started"
    slow = slow_compiler(
        project, toolchain, f'[ -e {started} ] && exec g++ "$@"; touch {started}; exec sleep 2'
    )
    first = spawn(project, request(project), slow)
    wait_for(started.exists)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert len(leftovers(project)) == 1
    second = build(request(project), slow)
    assert (second.status, second.cached) == (Status.PASS, False)
    assert leftovers(project) == []


def test_a_lock_held_for_ever_only_delays(project: Path, toolchain: Toolchain) -> None:
    (project / ".build").mkdir()
    asked = request(project, timeout_s=1.0)
    folder = project / "candidates" / "tiny"
    key = make_plan(asked, toolchain, read_candidate(folder)).key
    holder = subprocess.Popen(
        ["flock", str(project / ".build" / f"{key}.lock"), "sleep", "60"], start_new_session=True
    )
    try:
        wait_for((project / ".build" / f"{key}.lock").exists)
        time.sleep(0.1)
        assert build(asked, toolchain).status is Status.PASS
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()


def test_a_live_builders_folder_is_not_swept(project: Path, toolchain: Toolchain) -> None:
    go = project / "go"
    slow = slow_compiler(project, toolchain, f'while [ ! -e {go} ]; do sleep 0.05; done; exec g++ "$@"')
    first = spawn(project, request(project), slow)
    wait_for(lambda: len(leftovers(project)) == 1)
    assert build(request(project, cxx_flags=["-O1"]), toolchain).status is Status.PASS
    assert len(leftovers(project)) == 1
    go.touch()
    assert msgspec.json.decode(first.communicate(timeout=60)[0], type=Build).status is Status.PASS


def test_a_folder_that_its_builder_has_just_made_is_swept_by_nobody(project: Path) -> None:
    """Between its making and its lock it looked abandoned, and a build next to it took it away."""
    store = BuildStore(project)
    seen: list[str] = []
    entered = store_module.exclusive_lock

    def slowly(path: Path, timeout_s: float) -> Any:
        if path.name == store_module.OWNER_NAME and not seen:
            path.touch()  # made, and not locked yet
            seen.append(path.parent.name)
            store.sweep(time.time())
            assert path.parent.is_dir()
        return entered(path, timeout_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "exclusive_lock", slowly)
        with store.partial("a" * 64) as folder:
            assert seen and folder.is_dir()
            store.sweep(time.time())
            assert folder.is_dir()
    assert list(store.folder.iterdir()) == []


# --------------------------------------------------------------------------- candidates' faults


def test_a_compile_error_shows_its_first_error_and_is_not_cached(project: Path, toolchain: Toolchain) -> None:
    source(project, "int fine();\nint broken() { return nothing_here; }\nint also() { return nor_here; }\n")
    failed = build(request(project), toolchain)
    assert (failed.status, failed.code, failed.library) == (Status.FAIL, "COMPILE_ERROR", None)
    assert failed.first_error is not None
    assert failed.first_error.startswith("tiny.cpp:2:23: error: 'nothing_here' was not declared")
    assert "nor_here" not in failed.first_error
    assert failed.message is not None
    assert "tiny.cpp:2:23" in failed.message
    assert failed.units[0].returncode == 1
    log = (logs_folder(project, failed) / "compile_stderr.log").read_text()
    assert "nor_here" in log
    again = build(request(project), toolchain)
    assert (again.status, again.cached) == (Status.FAIL, False)
    source(project, TINY)
    assert build(request(project), toolchain).status is Status.PASS


def test_all_units_are_compiled_even_when_the_first_fails(project: Path, toolchain: Toolchain) -> None:
    source(project, "int broken(;\n")
    source(project, "int other(;\n", "other.cpp")
    failed = build(request(project, sources=["tiny.cpp", "other.cpp", "answer.h"]), toolchain)
    assert [unit.source for unit in failed.units] == ["tiny.cpp", "other.cpp"]
    log = (logs_folder(project, failed) / "compile_stderr.log").read_text()
    assert "tiny.cpp:1" in log
    assert "other.cpp:1" in log


def test_a_symbol_defined_nowhere_is_a_link_error(project: Path, toolchain: Toolchain) -> None:
    source(project, 'int missing(int);\nextern "C" int answer() { return missing(1); }\n')
    failed = build(request(project), toolchain)
    assert (failed.status, failed.code) == (Status.FAIL, "LINK_ERROR")
    assert failed.message is not None
    assert "missing(int)" in failed.message


def test_symbols_of_python_are_left_to_the_process(project: Path, toolchain: Toolchain) -> None:
    source(
        project,
        'extern "C" int Py_IsInitialized();\nextern "C" int answer() { return Py_IsInitialized(); }\n',
    )
    assert build(request(project), toolchain).status is Status.PASS


def test_two_definitions_are_a_link_error(project: Path, toolchain: Toolchain) -> None:
    source(project, TINY, "other.cpp")
    failed = build(request(project, sources=["tiny.cpp", "other.cpp"]), toolchain)
    assert (failed.status, failed.code) == (Status.FAIL, "LINK_ERROR")
    assert failed.first_error is not None
    assert "multiple definition of" in failed.first_error


@pytest.mark.parametrize("include", ["{project}/secret.h", "../../../secret.h"])
def test_an_include_from_outside_the_folder_is_refused(
    project: Path, toolchain: Toolchain, include: str
) -> None:
    (project / "secret.h").write_text("#define ANSWER 1\n")
    source(project, TINY.replace("answer.h", include.format(project=project)))
    failed = build(request(project), toolchain)
    assert (failed.status, failed.code) == (Status.FAIL, "FOREIGN_INCLUDE")
    assert failed.message is not None
    assert "secret.h" in failed.message


def test_a_compiler_that_never_ends_is_killed_with_its_children(project: Path, toolchain: Toolchain) -> None:
    note = project / "pid"
    hung = slow_compiler(project, toolchain, f"sh -c 'echo $$ > {note}; sleep 60; true'")
    started = time.monotonic()
    failed = build(request(project, timeout_s=0.5), hung)
    assert time.monotonic() - started < 30  # of the 60 that it sleeps
    assert (failed.status, failed.code) == (Status.FAIL, "COMPILE_TIMEOUT")
    time.sleep(0.05)
    assert not alive(int(note.read_text()))
    assert leftovers(project) == []


def test_endless_templates_end_at_the_limit(project: Path, toolchain: Toolchain) -> None:
    source(
        project,
        "template <unsigned long N, class T> struct A : A<N / 2, A<N, int>>, A<N / 2 + 1, T> {};\n"
        "template <class T> struct A<0, T> {};\nA<1ul << 60, int> endless;\n",
    )
    failed = build(request(project, timeout_s=1.0, cxx_flags=["-ftemplate-depth=100000"]), toolchain)
    assert failed.status is not Status.PASS
    assert failed.code in ("COMPILE_TIMEOUT", "COMPILE_ERROR")


def test_a_killed_compiler_is_an_error_and_not_the_candidates_fault(
    project: Path, toolchain: Toolchain
) -> None:
    failed = build(request(project), slow_compiler(project, toolchain, "kill -9 $$"))
    assert (failed.status, failed.code) == (Status.ERROR, "COMPILER_KILLED")
    assert build(request(project), toolchain).status is Status.PASS


def test_a_flood_of_diagnostics_is_bounded(project: Path, toolchain: Toolchain) -> None:
    flood = slow_compiler(project, toolchain, "yes 'tiny.cpp:1: error: again' | head -c 20000000 >&2; exit 1")
    failed = build(request(project), flood)
    assert failed.code == "COMPILE_ERROR"
    assert (logs_folder(project, failed) / "compile_stderr.log").stat().st_size < 1 << 20


def test_the_callers_environment_does_not_reach_the_compiler(
    project: Path, toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "evil").mkdir()
    (project / "evil" / "answer2.h").write_text("")
    monkeypatch.setenv("CPATH", str(project / "evil"))
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(project / "evil"))
    source(project, "#include <answer2.h>\n" + TINY)
    assert build(request(project), toolchain).code == "COMPILE_ERROR"


def test_only_cuda_sources_give_no_cpu_build(project: Path, toolchain: Toolchain) -> None:
    source(project, KERNEL, "kernel.cu")
    failed = build(request(project, sources=["kernel.cu"]), toolchain)
    assert (failed.status, failed.code) == (Status.FAIL, "NO_SOURCES")


# --------------------------------------------------------------------------- configuration


def test_no_nvcc_says_what_to_do(project: Path, toolchain: Toolchain) -> None:
    source(project, KERNEL, "kernel.cu")
    asked = request(project, device="cuda", sources=["tiny.cpp", "kernel.cu"])
    with pytest.raises(ConfigurationError, match="install the CUDA toolkit") as caught:
        build(asked, msgspec.structs.replace(toolchain, nvcc=None))
    assert (caught.value.code, caught.value.exit_code) == ("NVCC_MISSING", 2)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"sources": ["absent.cpp"]}, "SOURCE_MISSING"),
        ({"sources": ["tiny.py"]}, "BAD_SOURCE"),
        ({"sources": ["../tiny/tiny.cpp"]}, "BAD_SOURCE"),
        ({"sources": ["-fplugin=x.cpp"]}, "BAD_SOURCE"),
        ({"sources": ["$(touch x).cpp"]}, "BAD_SOURCE"),
        ({"cuda_flags": ["-DX=$(touch${IFS}x)"]}, "BAD_FLAG"),
        ({"cxx_flags": ["-DX=`id`"]}, "BAD_FLAG"),
    ],
)
def test_what_cannot_be_built_is_refused(
    project: Path, toolchain: Toolchain, changes: dict[str, object], code: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        build(msgspec.structs.replace(request(project), manifest=manifest(**changes)), toolchain)
    assert caught.value.code == code


def test_missing_parts_of_the_machine_are_named(project: Path, toolchain: Toolchain) -> None:
    assert toolchain.torch is not None
    cpu_torch = msgspec.structs.replace(toolchain.torch, cuda=None)
    other_cuda = msgspec.structs.replace(toolchain.torch, cuda="12.8")
    source(project, KERNEL, "kernel.cu")
    cuda = request(project, device="cuda", sources=["kernel.cu"])
    for asked, change, code in (
        (request(project), {"cxx": None}, "CXX_MISSING"),
        (request(project), {"torch": None}, "TORCH_MISSING"),
        (cuda, {"torch": cpu_torch}, "TORCH_WITHOUT_CUDA"),
        (cuda, {"torch": other_cuda}, "CUDA_MISMATCH"),
        (msgspec.structs.replace(cuda, arch_list=()), {}, "ARCH_MISSING"),
        (msgspec.structs.replace(cuda, arch_list=("sm_90",)), {}, "BAD_ARCH"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            build(asked, msgspec.structs.replace(toolchain, **change))
        assert caught.value.code == code


def test_links_out_of_the_candidate_and_pipes_are_refused(
    project: Path, toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory
) -> None:
    link = project / "candidates" / "tiny" / "link.h"
    for outside in (tmp_path_factory.mktemp("outside") / "secret.h", project / "baselines.json"):
        outside.write_text("")
        link.symlink_to(outside)
        with pytest.raises(ConfigurationError, match="leads out of the candidate's folder"):
            build(request(project), toolchain)
        link.unlink()
    os.mkfifo(link)
    with pytest.raises(ConfigurationError, match="neither a file nor a folder"):
        build(request(project), toolchain)


def test_names_that_no_record_can_hold_are_refused(project: Path, toolchain: Toolchain) -> None:
    folder = project / "candidates" / "tiny"
    (folder / "ring.h").symlink_to("ring.h")
    with pytest.raises(ConfigurationError, match=r"ring\.h cannot be read"):
        build(request(project), toolchain)
    (folder / "ring.h").unlink()
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.h")).touch()
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        build(request(project), toolchain)


def test_a_build_folder_that_cannot_be_used_is_no_fault_of_mini_kv(
    project: Path, toolchain: Toolchain
) -> None:
    (project / ".build").write_text("a file where a folder should be")
    with pytest.raises(ConfigurationError) as caught:
        build(request(project), toolchain)
    assert caught.value.code == "BUILD_FOLDER"


def test_old_failures_and_old_partials_are_swept(project: Path, toolchain: Toolchain) -> None:
    store = BuildStore(project)
    for name, age_s in (
        ("a.failed", 90_000),
        ("b.failed", 10),
        ("c.partial-1-a", 4000),
        ("d.partial-1-b", 10),
    ):
        folder = store.folder / name
        folder.mkdir(parents=True)
        os.utime(folder, (time.time() - age_s,) * 2)
    store.sweep(time.time())
    assert sorted(path.name for path in store.folder.iterdir()) == ["b.failed", "d.partial-1-b"]


# --------------------------------------------------------------------------- real libraries


def test_a_stable_abi_source_builds_against_the_real_torch(project: Path, real_toolchain: Toolchain) -> None:
    source(project, STABLE)
    result = build(request(project), real_toolchain)
    assert result.status is Status.PASS, result.first_error
    assert result.torch == (real_toolchain.torch and real_toolchain.torch.version)


def test_a_cuda_candidate_compiles_and_links(project: Path, real_toolchain: Toolchain) -> None:
    if real_toolchain.nvcc is None:
        pytest.skip("there is no nvcc here")
    source(project, KERNEL, "kernel.cu")
    source(project, CALLER)
    asked = request(project, device="cuda", sources=["tiny.cpp", "kernel.cu"], backends=["cuda"])
    result = build(asked, real_toolchain)
    assert result.status is Status.PASS, result.first_error
    assert result.arch_list == ("9.0",)
    assert result.cuda_compiler is not None
    assert result.library is not None
    raw = (project / result.library).read_bytes()
    assert b".nv_fatbin" in raw
    assert b"libcudart.so.13" in raw
    assert build(asked, real_toolchain).cached
    cpu = build(request(project, sources=["tiny.cpp", "kernel.cu"]), real_toolchain)
    assert cpu.status is Status.PASS
    assert cpu.key != result.key


@pytest.mark.parametrize(
    ("text", "stable"),
    [
        ("#include <torch/csrc/stable/library.h>\n#include <torch/headeronly/util/Half.h>\n", True),
        ("#include <torch/csrc/inductor/aoti_torch/c/shim.h>\n", True),
        ("#include <cuda_fp16.h>\n", True),
        ("#include <torch/extension.h>\n", False),
        ("#include <torch/library.h>\n", False),
        ("#include <torch/csrc/autograd/custom_function.h>\n", False),
        ("  #  include <ATen/core/Tensor.h>\n", False),
        ("#include <c10/cuda/CUDAGuard.h>\n", False),
        ('#include "deep/outer.h"\n', False),
        ("// ATen/ATen.h\n", True),
    ],
)
def test_only_units_on_stable_headers_get_a_target_version(text: str, stable: bool) -> None:
    files = {
        "a.cpp": text.encode(),
        "deep/outer.h": b'#include "inner.h"\n#include "outer.h"\n',
        "deep/inner.h": b"#include <ATen/ATen.h>\n",
    }
    assert is_stable("a.cpp", files) is stable


# --------------------------------------------------------------------------- what tools say


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'warning: error handling\nk.cu(3): error: identifier "x" is undefined\n',
            "k.cu(3): error: identifier",
        ),
        ("ptxas fatal   : Unresolved extern function 'f'\n", "ptxas fatal"),
        ("nvcc fatal   : Unknown option '-foo'\n", "nvcc fatal"),
        (
            "ld: warning: x\na.o: in function `f':\na.cpp:(.text+0x1): undefined reference to `g()'\n",
            "a.cpp:(.text",
        ),
        ("a.cpp:1:10: fatal error: no.h: No such file or directory\n    1 | #include\n", "a.cpp:1:10: fatal"),
        ("strange words only\n", "strange words"),
    ],
)
def test_the_first_error_is_found(text: str, expected: str) -> None:
    found = diagnosis.first_error(text)
    assert found is not None
    assert found.startswith(expected)


def test_no_words_give_no_error() -> None:
    assert diagnosis.first_error("", " \n") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x.so: undefined symbol: _Z6launchPfi", "'launch(float*, int)'"),
        ("libcudart.so.13: cannot open shared object file: No such file or directory", "'libcudart.so.13'"),
        ("/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by x.so)", "GLIBCXX_3.4.32"),
        ("x.so: file too short", "truncated"),
        ("something else", "something else"),
        ("", "could not be loaded"),
    ],
)
def test_load_errors_become_sentences(text: str, expected: str) -> None:
    assert expected in explain_load_error(text)


def test_dependencies_with_continuations_and_blanks() -> None:
    rule = "../objects/a.o: a.cpp \\\n dir\\ with/b.h /usr/include/c.h\n"
    assert diagnosis.dependencies(rule) == ("a.cpp", "dir with/b.h", "/usr/include/c.h")
