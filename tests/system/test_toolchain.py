"""Compilers are asked once and again when they change; torch's and CUDA's folders are found as text."""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path

import pytest

from mini_kv.system import toolchain
from mini_kv.system.commands import Command, Limits, run_all

COUNTING_CXX = """#!/bin/sh
echo asked >> {log}
case "$1" in
  --version) echo "{version}" ;;
  *) exit 0 ;;
esac
"""


def write_program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def write_torch(site: Path, version: str = "2.11.0+cu130", cuda: str | None = "13.0") -> None:
    (site / "torch" / "include").mkdir(parents=True)
    (site / "torch" / "lib").mkdir()
    shown = f"Optional[str] = {cuda!r}"
    (site / "torch" / "version.py").write_text(
        f"__version__ = '{version}'\ndebug = False\ncuda: {shown}\ngit_version = 'abc'\n"
    )


def test_an_unchanged_compiler_is_not_asked_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    cxx = write_program(tmp_path / "cxx", COUNTING_CXX.format(log=log, version="one 1.0"))
    environ = {"CXX": str(cxx), "PATH": ""}
    first = toolchain.find_toolchain(tmp_path / "b", environ, [])
    asked = log.read_text().count("asked")
    second = toolchain.find_toolchain(tmp_path / "b", environ, [])
    assert first.cxx is not None
    assert first.cxx.version == "one 1.0"
    assert second == first
    assert log.read_text().count("asked") == asked


def test_a_changed_compiler_has_another_identity(tmp_path: Path) -> None:
    log = tmp_path / "log"
    cxx = write_program(tmp_path / "cxx", COUNTING_CXX.format(log=log, version="one 1.0"))
    environ = {"CXX": str(cxx), "PATH": ""}
    first = toolchain.find_toolchain(tmp_path / "b", environ, [])
    write_program(cxx, COUNTING_CXX.format(log=log, version="one 1.1"))
    second = toolchain.find_toolchain(tmp_path / "b", environ, [])
    assert first.cxx is not None
    assert second.cxx is not None
    assert second.cxx.version == "one 1.1"
    assert second.cxx.identity != first.cxx.identity


def test_a_damaged_probe_cache_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "toolchain.json").write_text('{"compilers": {"x": ')
    found = toolchain.find_toolchain(tmp_path, os.environ, [])
    assert found.cxx is not None


def test_an_unknown_cxx_is_not_silently_replaced(tmp_path: Path) -> None:
    found = toolchain.find_toolchain(None, {"CXX": "no-such-compiler", "PATH": os.environ["PATH"]}, [])
    assert found.cxx is None


def test_torch_on_a_later_path_entry_is_found(tmp_path: Path) -> None:
    empty, other, last = tmp_path / "empty", tmp_path / "other", tmp_path / "last"
    empty.mkdir()
    write_torch(other)
    write_torch(last, version="1.0.0")
    torch = toolchain.torch_facts([str(empty), "no-such-folder", str(other), str(last)])
    assert torch is not None
    assert (torch.version, torch.cuda, torch.git_version) == ("2.11.0+cu130", "13.0", "abc")
    assert torch.include_folders == (str(other / "torch" / "include"),)


def test_a_cpu_only_torch_has_no_cuda(tmp_path: Path) -> None:
    write_torch(tmp_path, version="2.11.0", cuda=None)
    torch = toolchain.torch_facts([str(tmp_path)])
    assert torch is not None
    assert torch.cuda is None


def test_the_installed_torch_is_found_without_import() -> None:
    torch = toolchain.torch_facts(sys.path)
    assert torch is not None
    assert Path(torch.library_folder, "libtorch_cpu.so").exists()
    assert Path(torch.include_folders[0], "torch", "csrc", "stable", "library.h").exists()


def test_an_nvcc_of_torchs_major_version_is_preferred() -> None:
    def compiler(version: str) -> toolchain.Compiler:
        return toolchain.Compiler(path=f"nvcc-{version}", version=version, identity="", programs=(), root="r")

    old, new = compiler("12.8.1"), compiler("13.0.88")
    assert toolchain._choose_nvcc([old, new], "13.0") is new
    assert toolchain._choose_nvcc([old], "13.0") is old
    assert toolchain._choose_nvcc([old, new], None) is old
    assert toolchain._choose_nvcc([], "13.0") is None


def test_wheel_headers_and_runtime_serve_where_no_toolkit_is(tmp_path: Path) -> None:
    write_torch(tmp_path)
    wheel = tmp_path / "nvidia" / "cu13"
    (wheel / "include").mkdir(parents=True)
    (wheel / "lib").mkdir()
    (wheel / "lib" / "libcudart.so.13").touch()
    facts = toolchain._cuda_facts(None, [str(tmp_path)], toolchain.torch_facts([str(tmp_path)]))
    assert facts is not None
    assert facts.include_folders == (str(wheel / "include"),)
    assert facts.runtime_library == str(wheel / "lib" / "libcudart.so.13")


# --------------------------------------------------------------------------- commands


def shell(script: str) -> Command:
    return Command(argv=("/bin/sh", "-c", script), cwd="/", environ={"PATH": toolchain.SAFE_PATH})


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_commands_run_at_the_same_time_and_answer_in_order(tmp_path: Path) -> None:
    def meets(own: str, other: str, then: str) -> Command:
        """Wait for the other command: one after the other, the first would wait until its time is over."""
        wait = f"touch {tmp_path}/{own}; until [ -e {tmp_path}/{other} ]; do sleep 0.01; done"
        return shell(f"{wait}; {then}")

    first, second = run_all([meets("a", "b", "echo a"), meets("b", "a", "echo b >&2; exit 3")], timeout_s=60)
    assert (first.returncode, first.stdout) == (0, b"a\n")
    assert (second.returncode, second.stderr) == (3, b"b\n")


def test_more_commands_than_places_wait_their_turn(tmp_path: Path) -> None:
    script = f"mkdir {tmp_path}/$$; ls {tmp_path} | wc -l; sleep 0.05; rmdir {tmp_path}/$$"
    ended = run_all([shell(script)] * 6, timeout_s=20, at_once=2)
    assert [one.returncode for one in ended] == [0] * 6
    assert max(int(one.stdout) for one in ended) <= 2


def test_a_timeout_ends_those_that_still_wait() -> None:
    ended = run_all([shell("sleep 60")] * 3, timeout_s=0.3, at_once=1)
    assert [one.timed_out for one in ended] == [True] * 3


def test_a_timeout_kills_grandchildren(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    (one,) = run_all([shell(f"sh -c 'echo $$ > {note}; sleep 60; true' & wait")], timeout_s=0.5)
    assert one.timed_out
    assert one.returncode == -9
    time.sleep(0.05)
    assert not alive(int(note.read_text()))


def test_a_background_child_neither_delays_nor_survives(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    (one,) = run_all([shell(f"sleep 60 & echo $! > {note}; echo done")], timeout_s=30)
    assert (one.timed_out, one.returncode, one.stdout) == (False, 0, b"done\n")
    time.sleep(0.05)
    assert not alive(int(note.read_text()))


def test_a_flood_of_output_is_bounded_and_keeps_both_ends() -> None:
    script = "echo first; head -c 8000000 /dev/zero | tr '\\0' x; echo; echo last"
    (one,) = run_all([shell(script)], timeout_s=20)
    assert one.returncode == 0
    assert len(one.stdout) < 1 << 20
    assert one.stdout.startswith(b"first\n")
    assert one.stdout.endswith(b"last\n")
    assert b"bytes left out" in one.stdout


def test_an_interrupt_leaves_no_process(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def interrupt(_number: int, _one: object) -> None:
        raise KeyboardInterrupt

    slow = shell(f"echo $$ > {note}; exec sleep 60")
    with pytest.raises(KeyboardInterrupt):
        run_all([slow, shell("sleep 0.2")], timeout_s=30, on_finish=interrupt)
    assert not alive(int(note.read_text()))


def test_a_program_that_cannot_start_leaves_no_other(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    missing = Command(argv=("/no/such/program",), cwd="/", environ={})
    with pytest.raises(FileNotFoundError):
        run_all([shell(f"echo $$ > {note}; exec sleep 60"), missing], timeout_s=30)
    if note.exists():
        assert not alive(int(note.read_text()))


def test_nothing_of_the_callers_environment_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CPATH", "LIBRARY_PATH", "LD_PRELOAD"):
        monkeypatch.setenv(name, "/tmp/evil" if name != "LD_PRELOAD" else "")
    command = Command(argv=("/usr/bin/env",), cwd="/", environ=toolchain.tool_environ())
    (one,) = run_all([command], timeout_s=5)
    assert sorted(line.split(b"=")[0] for line in one.stdout.splitlines()) == [b"LANG", b"LC_ALL", b"PATH"]


def test_a_memory_limit_reaches_the_program() -> None:
    script = "sleep 0.1; ulimit -v"
    (one,) = run_all([shell(script)], timeout_s=5, limits=Limits(memory_bytes=1 << 30))
    assert one.stdout.strip() == str((1 << 30) // 1024).encode()
