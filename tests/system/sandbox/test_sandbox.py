"""The cage holds: real processes try each forbidden thing inside it; less of a machine is told, not fatal."""

from __future__ import annotations

import errno
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mini_kv.core.errors import ConfigurationError
from mini_kv.core.records.isolation import Isolation, IsolationLevel, MissingFeature, level_of
from mini_kv.system.processes import cpu_time_ns, descendants, kill_descendants
from mini_kv.system.sandbox import cage as cage_module
from mini_kv.system.sandbox import policy, probe, seccomp, trials
from mini_kv.system.sandbox.cage import Cage, build_cage
from mini_kv.system.sandbox.policy import survey, user_for, wanted_features
from mini_kv.system.sandbox.worker_folders import hand_over, make_rooms
from mini_kv.system.toolchain import find_toolchain
from processor_time import least_ms, spent_ms

ROOT = Path(__file__).resolve().parents[3]
IMPORT_PATH = (str(ROOT / "src"), *(entry for entry in sys.path if entry and os.path.exists(entry)))
_INSIDE = (
    "import json, sys; a = json.loads(sys.argv[1]); sys.path[:] = a['path']; "
    "from mini_kv.system.sandbox.entry import enter; enter(a['policy'], a['parent'], ()); exec(a['code'])"
)
_TRY_ALL = "import json; from mini_kv.system.sandbox import trials; "


@pytest.fixture(scope="module")
def cage() -> Cage:
    """This machine's cage, probed once."""
    return build_cage("cpu", IMPORT_PATH, (ROOT, ROOT / "artifacts"))


def needs(cage: Cage, *features: str) -> None:
    """Skip where this machine lacks one of the features, and say why it does."""
    told = {one.name: one.reason for one in cage.isolation.missing}
    for name in features:
        if name not in cage.isolation.features:
            pytest.skip(f"no {name} here: {told.get(name, 'not available')}")


def start(cage: Cage, folder: Path, code: str, **changes: Any) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    scratch, _, policy = cage.rooms(folder, 1)
    limits = policy["limits"] | changes.pop("limits", {})
    policy |= {"limits": limits, **changes}
    options = {"path": cage.import_path, "policy": policy, "parent": os.getpid(), "code": code}
    return subprocess.Popen(
        [sys.executable, "-I", "-c", _INSIDE, json.dumps(options)],
        cwd=scratch,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(cage: Cage, folder: Path, code: str, **changes: Any) -> tuple[int, str, str]:
    process = start(cage, folder, code, **changes)
    out, error = process.communicate(timeout=60)
    return process.returncode, out, error


# ---------------------------------------------------------------------------- each forbidden thing


@pytest.fixture(scope="module")
def outcomes(cage: Cage, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """What every trial said inside a worker's cage, each feature strictly entered."""
    folder = tmp_path_factory.mktemp("trials")
    _, inbox = make_rooms(folder / "worker", user_for(1, cage.isolation.features))
    with probe.bait(folder / "outside", inbox) as targets:
        code = _TRY_ALL + f"print(json.dumps(trials.run_all({targets!r})))"
        status, out, error = run(cage, folder / "worker", code)
    assert status == 0, error
    found: dict[str, str | None] = json.loads(out)
    return found


@pytest.mark.parametrize("name", sorted(trials.GUARDS))
def test_what_a_hostile_process_tries_is_refused(
    cage: Cage, outcomes: dict[str, str | None], name: str
) -> None:
    guards = trials.GUARDS[name][1]
    if not set(guards) & set(cage.isolation.features):
        needs(cage, guards[0])
    assert outcomes[name] is None


def test_the_trials_succeed_without_a_cage(tmp_path: Path) -> None:
    # A trial that is refused everywhere would prove nothing.
    (tmp_path / "inbox").mkdir()
    with (
        subprocess.Popen(["sleep", "60"]) as victim,
        probe.bait(tmp_path / "outside", tmp_path / "inbox") as targets,
    ):
        targets["judge"] = victim.pid
        code = _TRY_ALL + f"print(json.dumps(trials.run_all({targets!r})))"
        environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        ended = subprocess.run(
            [sys.executable, "-c", code],
            check=False,
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        victim.kill()
    assert ended.returncode == 0, ended.stderr
    succeeded = {name for name, said in json.loads(ended.stdout).items() if said}
    assert succeeded >= {
        *("read_secret", "list_outside", "write_outside", "change_outside", "write_given"),
        *("connect_tcp", "make_network_socket", "connect_abstract", "connect_unix"),
        *("read_judge", "trace_judge", "signal_judge", "limit_judge", "see_others"),
        *("raise_limits", "forbidden_calls"),
    }


def test_the_project_its_archives_and_the_home_folder_are_out_of_sight(cage: Cage, tmp_path: Path) -> None:
    needs(cage, "file_access")
    places = [
        ROOT / "artifacts",
        ROOT / ".build",
        ROOT / "baselines",
        ROOT / "tasks",
        ROOT / "src" / "mini_kv",
    ]
    files = [
        ROOT / "README.md",
        ROOT / "src/mini_kv/pipeline.py",
        ROOT / "src/mini_kv/core/../correctness/grading.py",
    ]
    code = f"""
import os
for place in {[*map(str, places), os.path.expanduser("~"), "/tmp"]!r}:
    try:
        seen = os.listdir(place)
        print(place, [name for name in seen if not name.startswith("mini-kv")] if place == "/tmp" else seen)
    except OSError as error:
        print("refused")
for path in {[*map(str, files)]!r}:
    try:
        print(path, len(open(path).read()))
    except OSError:
        print("refused")
"""
    status, out, error = run(cage, tmp_path / "w", code)
    assert status == 0, error
    lines = out.splitlines()
    # The package's folders may be listed, since Python finds modules that way; none of its judge is readable.
    assert all(line == "refused" for line in lines[:4] + lines[7:]), out


def test_worker_modules_and_torch_can_be_read(cage: Cage, tmp_path: Path) -> None:
    code = f"""
import os
for path in {list(cage.ground.must_read)!r}:
    os.close(os.open(path, os.O_RDONLY))
import mini_kv.worker.channel, mini_kv.core.protocol
open('note', 'w').write('scratch')
print(os.listdir('/proc/self/fd') != [], open('/proc/self/status').readline().split()[0])
"""
    status, out, error = run(cage, tmp_path / "w", code)
    assert (status, out) == (0, "True Name:\n"), error


def test_threads_can_be_named_as_the_cuda_driver_does(cage: Cage, tmp_path: Path) -> None:
    code = """
import threading, os
def name():
    path = f"/proc/self/task/{threading.get_native_id()}/comm"
    open(path, "w").write("named")
    print(open(path).read().strip())
thread = threading.Thread(target=name); thread.start(); thread.join()
print(os.memfd_create("cuda") > 0)
"""
    assert run(cage, tmp_path / "w", code)[:2] == (0, "named\nTrue\n")


# ---------------------------------------------------------------------------- bounds


def test_a_fork_bomb_meets_its_limit(cage: Cage, tmp_path: Path) -> None:
    needs(cage, "resource_limits", "own_user")
    code = """
import os, signal, time
made = 0
try:
    while made < 500:
        if os.fork() == 0:
            time.sleep(60); os._exit(0)
        made += 1
except BlockingIOError:
    print("stopped at", made)
"""
    status, out, error = run(cage, tmp_path / "w", code, limits={"NPROC": 40})
    assert status == 0, error
    assert 0 < int(out.split()[-1]) <= 40


def test_a_file_cannot_pass_its_limit(cage: Cage, tmp_path: Path) -> None:
    needs(cage, "resource_limits")
    code = """
try:
    with open("large", "wb") as stream:
        for _ in range(64):
            stream.write(bytes(1 << 20)); stream.flush()
except OSError as error:
    print(error.errno)
"""
    assert run(cage, tmp_path / "w", code, limits={"FSIZE": 8 << 20})[:2] == (0, f"{errno.EFBIG}\n")


def test_many_files_cannot_fill_the_disk(cage: Cage, tmp_path: Path) -> None:
    needs(cage, "mount_namespace")
    code = """
try:
    for number in range(64):
        open(f"part-{number}", "wb").write(bytes(1 << 20))
except OSError as error:
    print(error.errno)
"""
    assert run(cage, tmp_path / "w", code, scratch_bytes=8 << 20)[:2] == (0, f"{errno.ENOSPC}\n")
    assert list((tmp_path / "w" / "scratch").iterdir()) == []


def test_a_crash_leaves_no_core_dump_and_is_seen_as_that_signal(cage: Cage, tmp_path: Path) -> None:
    for number in (signal.SIGABRT, signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM):
        assert (
            run(cage, tmp_path / "w", f"os.kill(os.getpid(), {int(number)})".join(("import os; ", "")))[0]
            == -number
        )
    assert run(cage, tmp_path / "w", "import os; os.abort()")[0] == -signal.SIGABRT
    assert run(cage, tmp_path / "w", "import os; os._exit(3)")[0] == 3
    assert not list(tmp_path.rglob("core*"))


# ---------------------------------------------------------------------------- whole trees end


_DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
time.sleep(0.2)
print("ready", flush=True)
"""


def test_a_daemon_ends_with_the_worker(cage: Cage, tmp_path: Path) -> None:
    needs(cage, "process_namespace")
    process = start(cage, tmp_path / "w", _DAEMON)
    # The pipe's end of file comes only when every process that holds it is gone.
    process.communicate(timeout=20)
    assert process.returncode == 0


def is_running(process: int) -> bool:
    # A zombie is dead: it only waits to be reaped, by this process where an earlier test adopted orphans.
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_the_whole_tree_dies_with_the_process_that_the_judge_started(cage: Cage, tmp_path: Path) -> None:
    needs(cage, "process_namespace")
    process = start(cage, tmp_path / "w", _DAEMON + "time.sleep(600)")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    inside = descendants(process.pid)
    assert len(inside) >= 3
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=20)
    deadline = time.monotonic() + 5.0
    while any(map(is_running, inside)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_running, inside))


# ---------------------------------------------------------------------------- levels


def test_levels_are_ordered_and_hold_all_below_them() -> None:
    everything = set(wanted_features(7)) | {"own_user"}
    assert level_of(everything) is IsolationLevel.ISOLATED
    assert level_of(everything - {"own_user"}) is IsolationLevel.CONFINED
    assert level_of(everything - {"file_access"}) is IsolationLevel.RESTRICTED
    assert level_of(everything - {"system_call_filter"}) is IsolationLevel.PROCESS
    assert level_of(()) is IsolationLevel.NONE
    assert [one.reaches(IsolationLevel.CONFINED) for one in IsolationLevel] == [False] * 3 + [True] * 2


def answer(**changes: Any) -> dict[str, Any]:
    reached = [*wanted_features(7), "own_user"]
    return {
        "reached": reached,
        "reasons": {},
        "unreadable": None,
        "trials": dict.fromkeys(trials.GUARDS),
        **changes,
    }


def judged(**changes: Any) -> Isolation:
    return probe.judge_answer(answer(**changes), [*wanted_features(7), "own_user"])


def test_a_feature_that_was_entered_but_does_not_hold_is_not_counted() -> None:
    assert judged().level is IsolationLevel.ISOLATED
    open_files = judged(trials={**answer()["trials"], "write_outside": "a file was made in /etc"})
    assert open_files.level is IsolationLevel.RESTRICTED
    assert not {"file_access", "tcp_rules", "scoped_signals"} & set(open_files.features)
    assert "write_outside was not refused" in open_files.reason(IsolationLevel.CONFINED)


def test_a_cage_in_which_torch_cannot_be_read_is_not_used() -> None:
    weak = judged(unreadable="/x/torch/__init__.py")
    assert weak.level is IsolationLevel.RESTRICTED
    assert "/x/torch/__init__.py cannot be read inside" in weak.reason(IsolationLevel.ISOLATED)


@pytest.mark.parametrize("level", ["none", "process", "restricted", "confined"])
def test_nothing_above_the_highest_level_that_is_named_is_used(
    cage: Cage, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    monkeypatch.setenv("MINI_KV_ISOLATION", level)
    found = build_cage("cpu", IMPORT_PATH, (ROOT,)).isolation
    assert cage.isolation.level.reaches(found.level)
    assert found.level in (IsolationLevel(level), IsolationLevel.PROCESS)
    assert "asked for" in found.reason(IsolationLevel.ISOLATED)


def test_a_level_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINI_KV_ISOLATION", "total")
    with pytest.raises(ConfigurationError, match="'total' is none of none, process"):
        build_cage("cpu", IMPORT_PATH, (ROOT,))


def test_a_probe_that_breaks_leaves_the_process_level(cage: Cage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_PROBE", "raise SystemExit('broken')")
    found = probe.probe_ground(cage.ground)
    assert found.level is IsolationLevel.PROCESS
    assert "broken" in found.reason(IsolationLevel.RESTRICTED)


def test_without_the_right_to_administer_a_user_namespace_does(cage: Cage) -> None:
    needs(cage, "own_user", "mount_namespace")
    code = """
import sys
from pathlib import Path
from mini_kv.system.sandbox import kernel, probe
from mini_kv.system.sandbox.cage import build_cage
found = build_cage("cpu", sys.path, (Path(sys.argv[1]),)).isolation
print(*(name in found.features for name in ("user_namespace", "system_call_filter", "file_access")))
"""
    drop = (
        "import os, sys; from mini_kv.system.sandbox import kernel; "
        "kernel.prctl(kernel.PR_CAPBSET_DROP, 21); os.execv(sys.executable, sys.argv[1:])"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    argv = [sys.executable, "-c", drop, sys.executable, "-c", code, str(ROOT)]
    ended = subprocess.run(argv, check=False, env=environ, capture_output=True, text=True, timeout=60)
    if ended.stdout.startswith("False"):
        pytest.skip("user namespaces are refused here")
    assert ended.stdout == "True True True\n", ended.stderr


SPEND_UNSEEN = """
import os, signal, time
try: signal.signal(signal.SIGCHLD, signal.SIG_IGN)
except OSError: pass
def spend():
    until = time.thread_time() + 0.3
    while time.thread_time() < until: pass
reader, writer = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        spend()
    os._exit(0)
if os.fork() == 0:
    spend()
    os._exit(0)
os.close(writer)
os.read(reader, 1)  # both have ended
print("spent", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("init", [True, False], ids=["with an init", "without"])
def test_cpu_time_of_children_that_nobody_waits_for_and_of_orphans_is_counted(
    cage: Cage, tmp_path: Path, init: bool
) -> None:
    """A forged time was bounded by nothing where children that the kernel reaps unseen did the work."""
    needs(cage, "system_call_filter")
    wanted = cage.rooms(tmp_path / "asked", 2)[2]["features"]
    left_out = () if init else ("process_namespace", "own_proc")
    process = start(
        cage, tmp_path / "w", SPEND_UNSEEN, features=[one for one in wanted if one not in left_out]
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "spent\n", process.stderr and process.stderr.read()
        used_ns = cpu_time_ns(process.pid)
        assert used_ns is not None and used_ns >= 570_000_000
    finally:
        kill_descendants(process.pid)
        process.wait()


def test_a_policy_that_cannot_be_entered_ends_the_process(cage: Cage, tmp_path: Path) -> None:
    # Strictly all or nothing: a worker must not serve with less than was recorded.
    status, out, _ = run(cage, tmp_path / "w", "print('served')", veiled=["/proc/version"], limits={"AS": 1})
    assert status != 0
    assert "served" not in out


def test_a_weaker_machine_refuses_a_level_that_was_demanded(monkeypatch: pytest.MonkeyPatch) -> None:
    from mini_kv.cli.main import main

    weak = Isolation(
        level=IsolationLevel.PROCESS,
        features=("own_process", "scrubbed_environment"),
        missing=(MissingFeature(name="file_access", reason="the kernel has no Landlock"),),
    )
    monkeypatch.setattr(cage_module, "probe_ground", lambda *_: weak)
    task = str(ROOT / "tasks" / "vector_add.yaml")
    assert main(["verify", "--task", task, "--device", "cpu", "--require-isolation", "confined"]) == 2


# ---------------------------------------------------------------------------- the parts


def run_filter(
    machine: str,
    number: int,
    argument: int = 0,
    arch: int | None = None,
    second: int = 0,
    accountable: bool = False,
) -> int:
    """Interpret the filter as the kernel would; return its verdict."""
    data = struct.pack("=IIQQQ", number, arch or seccomp._MACHINES[machine][0], 0, argument, second)
    program = seccomp.program([1], accountable=accountable)
    steps = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at, register = 0, 0
    while True:
        code, if_true, if_false, value = steps[at]
        at += 1
        if code == 0x20:
            (register,) = struct.unpack_from("=I", data, value)
        elif code == 0x06:
            return int(value)
        else:
            taken = {0x15: register == value, 0x35: register >= value, 0x45: bool(register & value)}[code]
            at += if_true if taken else if_false


ALLOW, EPERM, ENOSYS = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_denies_its_list_and_nothing_else(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*real[:4], machine)))
    numbers = seccomp.calls()
    judged_by_argument = {numbers[name] for name in seccomp._JUDGED_BY_ARGUMENT}
    for number in range(600):
        if number not in judged_by_argument:
            assert run_filter(machine, number) == (EPERM if number in numbers.values() else ALLOW), number
    assert run_filter(machine, numbers["rt_sigaction"], 17, second=1) == ALLOW
    assert run_filter(machine, numbers["prctl"], 36) == ALLOW
    assert run_filter(machine, numbers["seccomp"]) == ALLOW
    assert run_filter(machine, numbers["clone3"]) == ENOSYS
    assert [run_filter(machine, numbers["socket"], family) for family in (1, 2, 10, 16, 17, 40)] == [
        ALLOW
    ] + [EPERM] * 5
    assert run_filter(machine, numbers["clone"], 0x003D0F00) == ALLOW  # a thread
    assert run_filter(machine, numbers["clone"], 0x10000011) == EPERM  # a user namespace
    assert run_filter(machine, 0x40000000 + 41, 2) == EPERM
    assert run_filter(machine, 1, arch=0x40000003) == EPERM  # i386's numbers mean other calls


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_children_that_are_reaped_unseen_leave_no_account_and_are_refused(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*real[:4], machine)))
    numbers = seccomp.calls()

    def ask(name: str, argument: int, second: int = 0) -> int:
        return run_filter(machine, numbers[name], argument, second=second, accountable=True)

    assert ask("rt_sigaction", 17) == ALLOW  # it only asks
    assert [ask("rt_sigaction", 17, second) for second in (1, 1 << 40)] == [EPERM, EPERM]
    assert ask("rt_sigaction", 2, 1) == ALLOW
    assert [ask("prctl", option) for option in (35, 36, 37)] == [ALLOW, EPERM, ALLOW]
    assert [ask("socket", family) for family in (1, 2)] == [ALLOW, EPERM]
    assert [ask("clone", flags) for flags in (0x003D0F00, 0x10000011)] == [ALLOW, EPERM]
    assert run_filter(machine, numbers["bpf"], accountable=True) == EPERM
    assert run_filter(machine, 600, accountable=True) == ALLOW


def test_a_machine_without_a_table_is_refused_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*real[:4], "riscv64")))
    with pytest.raises(OSError, match="riscv64"):
        seccomp.program([1])


def test_neither_the_project_nor_what_holds_it_is_granted(tmp_path: Path) -> None:
    project = tmp_path / "home" / "project"
    (project / "tests").mkdir(parents=True)
    entries = [str(project), str(project / "tests"), str(tmp_path / "home"), str(tmp_path), "/", *sys.path]
    ground = survey("cpu", [one for one in entries if one], (project,))
    assert not {str(project), str(project / "tests"), str(tmp_path / "home"), str(tmp_path), "/"} & set(
        ground.readable
    )
    assert str(project) in ground.veiled
    assert not any(str(project) in one for one in ground.import_path)


def test_a_project_inside_a_granted_folder_stays_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Images often keep the application in /usr/src/app.
    system, project = tmp_path / "usr", tmp_path / "usr" / "src" / "app"
    for folder in (project, system / "lib", system / "src" / "other"):
        folder.mkdir(parents=True)
    (system / "back").symlink_to(project)
    monkeypatch.setattr(policy, "_SYSTEM", (str(system),))
    granted = {one for one in survey("cpu", IMPORT_PATH, (project,)).readable if str(tmp_path) in one}
    assert granted == {str(system / "lib"), str(system / "src" / "other")}


def test_what_is_handed_over_is_a_copy_that_another_user_can_read(tmp_path: Path) -> None:
    build = tmp_path / "build"
    (build / "sources" / "deep").mkdir(parents=True)
    (build / "op.so").write_bytes(b"library")
    (build / "sources" / "deep" / "autograd.py").write_text("x = 1\n")
    (build / "sources" / "leak").symlink_to("/etc/passwd")
    os.chmod(build / "sources" / "deep" / "autograd.py", 0o600)
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    library, python = hand_over(build / "op.so", str(build / "sources" / "deep" / "autograd.py"), inbox)
    assert (Path(library).read_bytes(), python) == (
        b"library",
        str(inbox / "sources" / "deep" / "autograd.py"),
    )
    assert Path(str(python)).stat().st_mode & 0o777 == 0o644
    assert not (inbox / "sources" / "leak").is_symlink()


# ---------------------------------------------------------------------------- compilers


@pytest.fixture
def compile_in(cage: Cage, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a program where a build would run its compilers."""
    needs(cage, "file_access")
    folder = tmp_path / "key.partial-1"
    for name in ("sources", "objects", "tmp"):
        (folder / name).mkdir(parents=True)
    launcher = cage.launcher(find_toolchain(None, os.environ))

    def run_program(*argv: str) -> subprocess.CompletedProcess[str]:
        environ = {"PATH": "/usr/bin:/bin", "TMPDIR": str(folder / "tmp"), "HOME": str(folder / "tmp")}
        return subprocess.run(
            [*launcher, *argv],
            check=False,
            cwd=folder / "sources",
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run_program


def test_a_compiler_works_in_its_cage(compile_in: Any, tmp_path: Path) -> None:
    sources = tmp_path / "key.partial-1" / "sources"
    (sources / "op.cpp").write_text(
        "#include <vector>\nint f() { return (int)std::vector<int>(3).size(); }\n"
    )
    ended = compile_in("g++", "-shared", "-fPIC", "op.cpp", "-o", "../op.so")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "key.partial-1" / "op.so").stat().st_uid == os.getuid()


def test_a_compiler_reads_and_writes_nothing_else(compile_in: Any, tmp_path: Path) -> None:
    (tmp_path / "secret.h").write_text("int secret;\n")
    sources = tmp_path / "key.partial-1" / "sources"
    (sources / "steal.cpp").write_text(f'#include "{tmp_path}/secret.h"\n')
    stolen = compile_in("g++", "-c", "steal.cpp", "-o", "../objects/steal.o")
    assert stolen.returncode != 0
    assert "Permission denied" in stolen.stderr
    assert compile_in("cp", "steal.cpp", str(tmp_path / "copy")).returncode != 0
    assert compile_in("cat", f"/proc/{os.getpid()}/environ").returncode != 0
    socket_made = compile_in("/usr/bin/env", "python3", "-c", "import socket; socket.socket()")
    assert socket_made.returncode != 0


def test_entering_takes_little_time(cage: Cage, tmp_path: Path) -> None:
    scratch, _, policy = cage.rooms(tmp_path / "w", 1)
    code = "import sys; sys.exit(7)"
    options = {"path": cage.import_path, "policy": policy, "parent": os.getpid(), "code": code}

    def once() -> float:
        taken_ms, code = spent_ms([sys.executable, "-I", "-c", _INSIDE, json.dumps(options)], cwd=scratch)
        assert code == 7, "it did not enter"
        return taken_ms

    # About 35, the interpreter's own start and the import of ctypes included.
    assert least_ms(once, 150.0) <= 150.0
