"""What the command line says and returns: usage, reports, progress, signals."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from fake_project import FakeProject, fake_project
from fake_worker import use_cast
from mini_kv import compiler
from mini_kv.cli import progress_bars
from mini_kv.cli.main import COMMANDS, main
from mini_kv.cli.signals import stop_once
from mini_kv.core.progress import Event
from mini_kv.run import run_inputs

__all__ = ["fake_project"]

Cli = Callable[..., tuple[int, str, str]]


def verify(
    project: FakeProject, cli: Cli, *argv: str, faults: dict[str, str] | None = None
) -> tuple[int, str, str]:
    use_cast(project.monkeypatch, faults or {})
    return cli("verify", "--task", str(project.root / "tasks" / "double.yaml"), *argv)


# ---------------------------------------------------------------------------- usage


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert f"mini-kv {command}" in text
    assert "example:" in text
    assert "70" in text
    assert "130 interrupted" in text


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (("no-such-command",), "no-such-command"),
        (("verify",), "--task"),
        (("verfy",), "did you mean 'verify'?"),
        (("verify", "--no-such-option"), "--help"),
        (("verify", "--tsk", "x.yaml"), "'--tsk' is no option of 'mini-kv verify' (did you mean '--task'?)"),
        (("verify", "--task", "x.yaml", "--pairs", "3"), "--pairs needs a --baseline"),
        (
            ("verify", "--task", "x.yaml", "--baseline", "b.json", "--pairs", "1"),
            "--pairs takes 0 or 2 to 50",
        ),
        (("verify", "--task", "x.yaml", "--timeout", "0"), "--timeout"),
        (("verify", "--task", "x.yaml", "--timeout", "nan"), "--timeout"),
        (("verify", "--task", "x.yaml", "--timeout", "inf"), "--timeout"),
        (
            ("verify", "--task", "x.yaml", "--timeout", "soon"),
            "--timeout takes a positive number of seconds, not soon\n",
        ),
        (("profile", "--task", "x.yaml", "--timeout", ""), "takes a positive number of seconds, not ''\n"),
        (("compare", "--task", "x.yaml", "--timeout", "1h"), "takes a positive number of seconds, not 1h\n"),
        (("compare", "--task", "x.yaml", "--pairs", "few"), "--pairs takes 2 to 50, not few\n"),
        (("verify", "--task", "x.yaml", "--pairs", "2.5"), "--pairs takes 0 or 2 to 50, not 2.5\n"),
        (("calibrate", "--processes", "many"), "--processes takes 1 to 100, not many\n"),
        (("verify", "--task", "x.yaml", "--device", "tpu"), "--device"),
        (("verify", "--task", "x.yaml", "--skip-benchmark", "--baseline", "b.json"), "--baseline"),
        (("verify", "--task", "x.yaml", "--junit", "/no/such/folder/report.xml"), "--junit"),
        (("verify", "--task", "x.yaml", "--markdown", "/tmp"), "--markdown"),
        (("verify", "--task", "no/such/card.yaml"), "card.yaml"),
        (("verify", "--task", "bad\0name"), "NUL"),
    ],
)
def test_wrong_usage_is_2_and_says_what_is_wrong(mini_kv: Cli, argv: tuple[str, ...], part: str) -> None:
    code, out, err = mini_kv(*argv)
    assert (code, out) == (2, "")
    assert err.startswith("mini-kv: ")
    assert part in err
    assert "Traceback" not in err


def test_no_command_shows_the_help_and_is_2(mini_kv: Cli) -> None:
    code, out, _ = mini_kv()
    assert code == 2
    assert all(command in out for command in COMMANDS)


def test_the_version_is_printed(mini_kv: Cli) -> None:
    code, out, _ = mini_kv("--version")
    assert code == 0
    assert out.startswith("mini-kv ")


# ---------------------------------------------------------------------------- verify's reports


def test_json_is_one_document_on_stdout_and_progress_is_on_stderr(
    fake_project: FakeProject, mini_kv: Cli
) -> None:
    code, out, err = verify(fake_project, mini_kv, "--json", "--skip-benchmark")
    document = json.loads(out)
    assert code == document["attempt"]["exit_code"] == 0
    assert document["benchmark"] == []
    assert [case["case_id"] for case in document["cases"]][:2] == ["core_3", "core_4"]
    assert "correctness: ..." in err.splitlines()


def test_json_has_the_same_keys_whatever_the_verdict(fake_project: FakeProject, mini_kv: Cli) -> None:
    def keys(faults: dict[str, str]) -> Any:
        document = json.loads(verify(fake_project, mini_kv, "--json", "--skip-benchmark", faults=faults)[1])
        return sorted(document), sorted(document["attempt"]), sorted(document["cases"][0])

    wrong = {"candidate/run_case": "payloads = [bytes(len(payloads[0])), *payloads[1:]]"}
    assert keys({}) == keys(wrong)


def test_a_failure_is_told_in_text_junit_and_markdown(fake_project: FakeProject, mini_kv: Cli) -> None:
    junit, markdown = fake_project.root / "report.xml", fake_project.root / "report.md"
    odd = (
        "reply = p.Raised(types=('E',), message='a | b <c> & \\x00\\x1b[31m', device_lost=False)\n"
        "payloads = []"
    )
    code, out, _ = verify(
        fake_project,
        mini_kv,
        *("--skip-benchmark", "--junit", str(junit), "--markdown", str(markdown)),
        faults={"candidate/run_case/core_4": odd},
    )
    assert code == 4
    assert "failed cases (1 of 6):" in out
    assert "smallest failing input: core_4: float32[4]" in out
    assert "\x1b" not in out
    suite = ET.parse(junit).getroot()
    failures = [case for case in suite.findall("testcase") if case.find("failure") is not None]
    assert {case.get("name") for case in failures} == {"core_4", "numerics"}
    assert suite.get("failures") == "2"
    assert suite.get("tests") == str(len(suite.findall("testcase")))
    text = markdown.read_text()
    assert "not accepted" in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1


def test_a_report_that_cannot_be_written_is_told_and_the_attempt_is_kept(
    fake_project: FakeProject, mini_kv: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mini_kv.system import files

    def full(path: Path, raw: bytes) -> None:
        raise OSError(28, "No space left on device")

    report = fake_project.root / "report.xml"
    real = files.write_bytes_atomic
    monkeypatch.setattr(
        files, "write_bytes_atomic", lambda path, raw: (full if path == report else real)(path, raw)
    )
    code, _, err = verify(fake_project, mini_kv, "--skip-benchmark", "--junit", str(report))
    assert code == 2
    assert "No space left" in err
    assert list((fake_project.root / "artifacts").glob("double/*/attempt.json"))


def test_the_archive_is_named_as_one_would_type_it_here(
    fake_project: FakeProject, mini_kv: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = fake_project.root.resolve()
    for here, begin in ((root, "artifacts/double/"), (root / "tasks", f"{root}/artifacts/double/")):
        monkeypatch.chdir(here)
        code, out, _ = verify(fake_project, mini_kv, "--skip-benchmark")
        assert code == 0
        assert out.splitlines()[-1].startswith(f"evidence: {begin}")


def test_a_stage_that_raises_is_70_with_an_archive(
    fake_project: FakeProject, mini_kv: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(compiler, "build", broken)
    code, out, _ = verify(fake_project, mini_kv)
    assert code == 70
    assert "ZeroDivisionError: surprise" in out
    assert "evidence: " in out


def test_a_fault_outside_every_stage_is_70_and_one_line(
    mini_kv: Cli, fake_project: FakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("surprise")

    monkeypatch.delenv("MINI_KV_TRACEBACK", raising=False)
    monkeypatch.setattr(run_inputs, "find_toolchain", broken)
    code, out, err = verify(fake_project, mini_kv)
    assert (code, out) == (70, "")
    assert err.count("\n") == 1
    assert "ZeroDivisionError: surprise" in err


# ---------------------------------------------------------------------------- progress


def test_a_stage_is_one_line_when_it_begins_and_one_when_it_ends() -> None:
    stream = io.StringIO()
    with progress_bars.display(stream) as show:
        for done in range(4):
            show(Event(stage="correctness", done=done, total=3, detail=f"case {done}"))
        show(Event(stage="correctness", done=3, total=3, detail="again"))
    assert stream.getvalue() == "correctness: ...\ncorrectness: done (case 3)\n"


def test_a_stage_of_minutes_said_nothing_between_its_first_line_and_its_last() -> None:
    now_s = 0.0
    stream = io.StringIO()
    with progress_bars.display(stream, lambda: now_s) as show:
        for done in range(13):
            show(Event(stage="benchmark", done=done, total=12, detail=f"case {done}"))
            show(Event(stage="build", done=0, total=1, detail="again"))  # nothing to count
            now_s += 3.0
    assert stream.getvalue().replace("build: ...\n", "").splitlines() == [
        "benchmark: ...",
        *[f"benchmark: {done} of 12 done, now case {done}" for done in (2, 4, 6, 8, 10)],
        "benchmark: done (case 12)",
    ]


def test_lines_of_two_threads_do_not_run_into_each_other() -> None:
    class Writes(io.StringIO):
        def __init__(self) -> None:
            super().__init__()
            self.parts: list[str] = []

        def write(self, text: str) -> int:
            self.parts.append(text)
            return len(text)

    stream = Writes()
    with progress_bars.display(stream) as show:
        for stage in ("correctness", "contract"):
            show(Event(stage=stage, done=0, total=1, detail=""))
    assert stream.parts == ["correctness: ...\n", "contract: ...\n"]


WARNING = Event(stage="baseline", done=0, total=1, detail="[b]x[/] cannot be compared.", warning=True)


def test_a_warning_is_a_line_of_its_own_and_no_stage() -> None:
    stream = io.StringIO()
    with progress_bars.display(stream) as show:
        show(WARNING)
        show(Event(stage="build", done=0, total=1))
    assert stream.getvalue() == "mini-kv: warning: [b]x[/] cannot be compared.\nbuild: ...\n"


def test_a_warning_stays_on_a_terminal_when_the_bars_go() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with progress_bars.display(stream) as show:
        show(WARNING)
        show(Event(stage="build", done=1, total=1, detail="built"))
    assert "mini-kv: warning: [b]x[/] cannot be compared.\n" in stream.getvalue().replace("\r", "")


def test_bars_on_a_terminal_survive_odd_details(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "140")
    stream = Terminal()
    with progress_bars.display(stream) as show:
        show(Event(stage="build", done=1, total=4, detail="begun"))
        # What is drawn when the bars go is the last that was shown.
        show(Event(stage="build", done=3, total=4, detail="[red]not markup[/] \ud83d\x1b[2J" * 10))
    drawn = stream.getvalue()
    drawn.encode()  # a lone surrogate cannot be written to a terminal
    last = re.sub(r"\x1b\[[0-9;]*m", "", drawn).split("\r")[-2]
    assert "build " in last and "\u2501" * 10 in last and " 3/4 " in last
    assert r"[red]not markup[/] \ud83d\x1b[2J[red]" in last
    assert "\x1b[2J" not in drawn and "begun" not in last


# ---------------------------------------------------------------------------- signals


def test_a_run_under_nohup_outlives_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_once():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_stops_and_later_ones_only_remind(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    outer = signal.getsignal(number)
    # Under nohup the tests themselves ignore SIGHUP.
    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    before = signal.getsignal(number)
    archived = False
    try:
        with stop_once():
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
            for again in (signal.SIGINT, signal.SIGTERM):
                os.kill(os.getpid(), again)
            archived = True
        assert archived
        assert signal.getsignal(number) is before
        assert capfd.readouterr().err.count("being archived") == 2
    finally:
        signal.signal(number, outer)


def test_handlers_come_back_after_an_undisturbed_run() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with stop_once():
        assert signal.getsignal(signal.SIGTERM) is not before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_in_another_thread_no_handler_is_set() -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with stop_once():
                pass
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the test's failure
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert errors == []


def in_bash(project_root: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run ``command`` with ``mini-kv`` standing for this interpreter's; the exit code is mini-kv's own."""
    script = f'mini-kv() {{ "{sys.executable}" -m mini_kv "$@"; }}; {command}; exit ${{PIPESTATUS[0]}}'
    return subprocess.run(
        ["bash", "-c", script], cwd=project_root, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("mini-kv schema --list | head -n 1", 0),
        ("mini-kv schema task_card | true", 0),
        ("mini-kv validate-task --json no_such.yaml | true", 2),
        ("mini-kv validate-task --json no_such.yaml >&-", 2),
        ("mini-kv validate-task no_such.yaml 2>&1 | true", 2),
        ("mini-kv validate-task no_such.yaml 2>/dev/full", 2),
        ("mini-kv verify --help | true", 0),
        ("mini-kv --help >&-", 0),
        ("mini-kv --help <&- >&- 2>&-", 0),
    ],
)
def test_a_reader_that_leaves_or_never_was_changes_no_exit_code(
    project_root: Path, command: str, code: int
) -> None:
    done = in_bash(project_root, command)
    assert done.returncode == code
    assert "fault of mini-kv" not in done.stderr
    assert "BrokenPipe" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("command", ["schema task_card", "schema --list", "--help", "verify --help"])
def test_a_result_that_stdout_refuses_is_a_sentence_and_exit_code_2(project_root: Path, command: str) -> None:
    done = in_bash(project_root, f"mini-kv {command} >/dev/full")
    assert done.returncode == 2
    assert done.stderr == "mini-kv: The result cannot be written to stdout: No space left on device.\n"


# ---------------------------------------------------------------------------- words of the candidate


@pytest.mark.parametrize(
    "words", ["\x1b[2J\x1b[31m", "\r0 ACCEPTED", "\x00", "\u202e", "```\n# accepted", "<img src=x>"]
)
def test_a_candidates_words_steer_neither_terminal_nor_markdown(
    fake_project: FakeProject, mini_kv: Cli, words: str
) -> None:
    markdown = fake_project.root / "report.md"
    fault = f"reply = p.Raised(types=('E',), message={words!r}, device_lost=False); payloads = []"
    code, out, _ = verify(
        fake_project,
        mini_kv,
        "--skip-benchmark",
        "--markdown",
        str(markdown),
        faults={"candidate/run_case": fault},
    )
    assert code == 4
    for text in (out, markdown.read_text()):
        assert all(character.isprintable() or character == "\n" for character in text)
        assert "\n# accepted" not in text
    outside = markdown.read_text()
    fence = next(line for line in outside.splitlines() if line.startswith("```"))
    opening, _, rest = outside.partition(fence)
    inside, _, after = rest.partition("\n" + fence.removesuffix("text"))
    assert "<img" not in opening + after
    assert "core_3" in inside
