"""What compilers, linkers and loaders say, turned into the few lines a person needs."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence

from mini_kv.core.time_limits import DEMANGLE_TIMEOUT_S
from mini_kv.system.commands import probe
from mini_kv.system.toolchain import tool_environ

MAX_ERROR_LINES = 6
MAX_LINE_CHARS = 400

_ERROR = re.compile(
    r"(?:^|[\s:)])(?:fatal error|internal compiler error|error)\s*(?:#\d+|C\d+)?\s*:"
    r"|^(?:nvcc|ptxas|cc1plus|nvlink|c\+\+|g\+\+|clang\+\+)\s*(?::\s*)?(?:fatal|error)\b"
    r"|undefined (?:reference to|symbol)|multiple definition of|cannot find -l",
    re.IGNORECASE,
)
_UNDEFINED = re.compile(
    r"undefined (?:reference to|symbol:?)\s*[`'\"]?(?P<name>[^`'\"\n]+?)['\"]?\s*$", re.MULTILINE
)
_PYTHON_SYMBOL = re.compile(r"_?Py[A-Z_]")
_KILLED = re.compile(r"Killed signal terminated program|Killed$|terminated due to signal 9", re.MULTILINE)


def first_error(stderr: str, stdout: str = "") -> str | None:
    """Return the first error with the lines that point into the source, or the first line said at all."""
    for text in (stderr, stdout):
        lines = text.splitlines()
        for number, line in enumerate(lines):
            if _ERROR.search(line):
                return "\n".join(_clip(one) for one in (line, *_pointing(lines[number + 1 :])))
    for text in (stderr, stdout):
        spoken = next((line for line in text.splitlines() if line.strip()), None)
        if spoken is not None:
            return _clip(spoken)
    return None


def _pointing(following: Sequence[str]) -> list[str]:
    """Return the indented lines right after an error: the source line and the caret below it."""
    found: list[str] = []
    for line in following[: MAX_ERROR_LINES - 1]:
        if not line.startswith((" ", "\t")) or not line.strip():
            break
        found.append(line)
    return found


def _clip(line: str) -> str:
    return line.rstrip() if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]} ..."


def was_killed(returncode: int, stderr: str) -> bool:
    """Say whether something outside ended the compiler: a signal, or the kernel short of memory."""
    return returncode < 0 or bool(_KILLED.search(stderr))


def unresolved_symbols(linker_output: str) -> tuple[str, ...]:
    """Return the symbols that no library provides, once each; Python's own are there at run time."""
    names = (found["name"].strip() for found in _UNDEFINED.finditer(linker_output))
    return tuple(dict.fromkeys(name for name in names if not _PYTHON_SYMBOL.match(name)))


def dependencies(makefile_rule: str) -> tuple[str, ...]:
    """Return the prerequisites of the rule that ``-MD`` wrote."""
    joined = makefile_rule.replace("\\\n", " ")
    _, _, right = joined.partition(": ")
    words = re.findall(r"(?:\\.|[^\s\\])+", right)
    return tuple(word.replace("\\ ", " ").replace("\\#", "#").replace("$$", "$") for word in words)


def foreign_dependencies(
    names: Iterable[str], sources_folder: str, allowed: Sequence[str]
) -> tuple[str, ...]:
    """Return the files that were included from outside the copied sources and the known header folders.

    Such a file would reach the library without reaching its key.
    """
    roots = tuple(os.path.realpath(folder) for folder in (sources_folder, *allowed))
    outside: list[str] = []
    for name in dict.fromkeys(names):
        real = os.path.realpath(os.path.join(sources_folder, name))
        if not any(real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in roots):
            outside.append(name)
    return tuple(outside)


def explain_load_error(text: str) -> str:
    """Turn a ``dlopen`` error into one sentence: what is missing, and the usual reason."""
    found = re.search(r"undefined symbol: (\S+)", text)
    if found is not None:
        return (
            f"The library needs the symbol '{demangle(found[1].rstrip(','))}', which nothing in the process "
            "provides: a function that is declared but never defined, or a library built for another torch."
        )
    found = re.search(r"(\S+): cannot open shared object file", text)
    if found is not None:
        return f"The library needs '{found[1].rstrip(':')}', which is not on this machine or not loaded yet."
    found = re.search(r"version [`'](\S+?)' not found", text)
    if found is not None:
        return (
            f"The library needs the symbol version {found[1]}, which is newer than this machine's libraries."
        )
    if re.search(r"file too short|invalid ELF header", text):
        return "The library is truncated or is no shared library at all."
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (
        f"The library could not be loaded: {_clip(lines[-1])}"
        if lines
        else "The library could not be loaded."
    )


def demangle(symbol: str) -> str:
    """Return the C++ name of a mangled symbol through ``c++filt``, or the symbol where that is missing."""
    program = shutil.which("c++filt", path=tool_environ()["PATH"])
    if program is None or not symbol.startswith("_Z"):
        return symbol
    answer = probe([program, symbol], tool_environ(), timeout_s=DEMANGLE_TIMEOUT_S)
    if answer is None or answer.returncode != 0:
        return symbol
    return answer.stdout.decode("utf-8", "replace").strip() or symbol
