"""The exceptions that carry a code and an exit code.

A candidate's fault is a returned value and never an exception; what is raised here is the fault of
the configuration, of the machine, of an archive or of mini-kv itself.
"""

from __future__ import annotations

from mini_kv.core.codes import Code, ExitCode

__all__ = ["ConfigurationError", "ExitCode", "IntegrityError", "InternalError", "MiniKvError"]


class MiniKvError(Exception):
    """Base of every error mini-kv raises on purpose.

    ``code`` is for programs and stable, the message is one sentence for people
    that says what is wrong, where, and what is allowed.
    """

    exit_code: ExitCode = ExitCode.INTERNAL

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class ConfigurationError(MiniKvError):
    """Usage, card, manifest, path or environment is wrong; ``problems`` lists every finding."""

    exit_code = ExitCode.CONFIGURATION

    def __init__(self, code: Code, message: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(code, message)
        self.problems = problems


class IntegrityError(MiniKvError):
    """An archive, baseline or index does not hold what its hashes promise."""

    exit_code = ExitCode.INTEGRITY


class InternalError(MiniKvError):
    """mini-kv itself broke one of its own rules."""

    exit_code = ExitCode.INTERNAL
