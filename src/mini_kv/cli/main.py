"""argv -> text and exit code. The only package that prints, with the one broad ``except``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterable
from typing import NoReturn, Protocol

from mini_kv import __version__
from mini_kv.cli import streams
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError, ExitCode, MiniKvError
from mini_kv.core.printable import printable

COMMANDS: dict[str, tuple[str, str]] = {
    # name: (module below mini_kv.cli, one line of help). A module is imported only when it is run.
    "doctor": ("doctor", "say what this machine has, what it lacks and what to do about it"),
    "validate-task": ("validate_task", "check Task Cards and name every error with file and line"),
    "audit-task": ("audit_task", "run candidates that compute nothing against every case of a card"),
    "verify": ("verify", "build, check and time one candidate; archive the evidence; give the verdict"),
    "compare": (
        "compare",
        "gate and time two candidates side by side; say which is faster, with an interval",
    ),
    "promote-baseline": ("promote_baseline", "make a baseline from a complete, correct, stable attempt"),
    "rebuild-index": ("rebuild_index", "recreate the index from the attempts' folders"),
    "leaderboard": ("leaderboard", "rank the latest valid attempt of every candidate"),
    "profile": ("profile", "capture one case's kernel with Nsight Compute; archive report and facts"),
    "compare-profiles": ("compare_profiles", "set two profiles of one case side by side"),
    "calibrate": ("calibrate", "hold the timer against spin kernels of known length"),
    "schema": ("schema", "print or write the JSON Schema of a record"),
}

DESCRIPTION = "Verify a C++/CUDA PyTorch operator against its Task Card."

EXIT_CODES = """\
exit codes:
  0 accepted            4 correctness or contract     7 integrity
  2 configuration       5 benchmark                  70 fault of mini-kv itself
  3 build or load       6 regression                130 interrupted
"""


class CommandModule(Protocol):
    """What every module below ``mini_kv.cli`` offers."""

    EXAMPLE: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's own options."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it, print the result to stdout, return the exit code."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(Code.USAGE, f"{message} (see '{self.prog} --help')")

    def refuse_unknown(self, argv: list[str]) -> None:
        """Name an option that does not exist; argparse would first miss the one that it was meant for."""
        for word in argv:
            if word == "--":
                return
            option = word.partition("=")[0]
            if option.startswith("--") and option not in self._option_string_actions:
                near = _near(option, self._option_string_actions)
                self.error(f"'{option}' is no option of '{self.prog}'{near}")


def _near(word: str, known: Iterable[str]) -> str:
    from mini_kv.task_card.wording import suggestion

    return suggestion(word, known)


def _top_help() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items())
    return (
        f"usage: mini-kv COMMAND [options]\n\n{DESCRIPTION}\n\ncommands:\n{rows}\n\n"
        f"options:\n  --help     show this text; 'mini-kv COMMAND --help' shows a command's options\n"
        f"  --version  show the version\n\n{EXIT_CODES}"
    )


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(_top_help(), end="")
        return ExitCode.ACCEPTED if argv else ExitCode.CONFIGURATION
    if argv[0] in ("-V", "--version"):
        print(f"mini-kv {__version__}")
        return ExitCode.ACCEPTED
    name = argv[0]
    if name not in COMMANDS:
        known, near = ", ".join(COMMANDS), _near(name, COMMANDS)
        raise ConfigurationError(
            Code.USAGE, f"'{name}' is not a command of mini-kv{near}; the commands are {known}."
        )
    module_name, summary = COMMANDS[name]
    command: CommandModule = importlib.import_module(f"mini_kv.cli.{module_name}")
    parser = _Parser(
        prog=f"mini-kv {name}",
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example:\n  {command.EXAMPLE}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    parser.refuse_unknown(argv[1:])
    return command.run(parser.parse_args(argv[1:]))


def report_error(error: MiniKvError) -> int:
    """Print one sentence (and every problem) to stderr and return the error's exit code."""
    print(f"mini-kv: {printable(error.message)}", file=sys.stderr)
    if isinstance(error, ConfigurationError):
        for problem in error.problems:
            print(f"  {printable(problem)}", file=sys.stderr)
    return error.exit_code


def main(argv: list[str] | None = None) -> int:
    """Run one command; never raises but ``SystemExit`` from argparse's own ``--help``.

    Without ``argv`` it is the whole process's command: its arguments are taken, and its streams guarded.
    """
    if argv is None:
        streams.install()
        argv = sys.argv[1:]
    try:
        try:
            return int(_dispatch(argv))
        finally:
            sys.stdout.flush()  # what stdout refuses is said in one sentence here, and not at all later
    except MiniKvError as error:
        return report_error(error)
    except KeyboardInterrupt:
        print("mini-kv: interrupted.", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except Exception as error:
        if os.environ.get("MINI_KV_TRACEBACK"):
            raise
        print(
            f"mini-kv: fault of mini-kv itself: {type(error).__name__}: {printable(str(error))} "
            "(set MINI_KV_TRACEBACK=1 to see where; please report it)",
            file=sys.stderr,
        )
        return ExitCode.INTERNAL
