"""stdout and stderr of the command: a reader that left, a closed stream or a full disk decides no verdict."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError

STDOUT = 1
STDERR = 2


class _Outlet(io.FileIO):
    """A descriptor that falls silent at the first write it refuses, so that the command runs to its end.

    A reader that left (``| head``) wants no more and is no error. Any other refusal of stdout, such as a
    full disk, lost a result that somebody waits for: that raises ``ConfigurationError``, once.
    """

    def write(self, data: object, /) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            self._fall_silent()
            if self.fileno() == STDERR or isinstance(error, BrokenPipeError):
                return memoryview(data).nbytes  # type: ignore[arg-type]
            message = f"The result cannot be written to stdout: {error.strerror}."
            raise ConfigurationError(Code.STDOUT_UNWRITABLE, message) from error

    def _fall_silent(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def install() -> None:
    """Put outlets in front of this process's stdout and stderr; descriptors that were closed lead nowhere."""
    for descriptor in (0, STDOUT, STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            # Else the next file that is opened, a lock or an archive, would be what print writes to.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout = _through(STDOUT, sys.stdout)
    sys.stderr = _through(STDERR, sys.stderr)


def _through(descriptor: int, stream: TextIO | None) -> io.TextIOWrapper:
    outlet = io.BufferedWriter(_Outlet(descriptor, "wb", closefd=False))
    encoding, errors = (stream.encoding, stream.errors) if stream is not None else ("utf-8", None)
    return io.TextIOWrapper(
        outlet,
        encoding=encoding,
        errors=errors,
        line_buffering=descriptor == STDERR or outlet.isatty(),
    )
