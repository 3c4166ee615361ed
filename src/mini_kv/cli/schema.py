"""``mini-kv schema``: print or write the JSON Schema of the records."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError, ExitCode
from mini_kv.core.records.schemas import RECORDS, schema_file_name, schema_text

EXAMPLE = "mini-kv schema task_card"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own options."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="the record; --list shows the names")
    parser.add_argument("--list", action="store_true", help="list the names, one a line")
    parser.add_argument("--write", metavar="DIR", type=Path, help="write every schema into DIR")
    parser.add_argument("--json", action="store_true", help="with --list: print the names as a JSON array")


def run(arguments: argparse.Namespace) -> int:
    """Print one schema, list the names or write all files; exactly one of the three."""
    asked = [arguments.name is not None, arguments.list, arguments.write is not None]
    if sum(asked) != 1:
        raise ConfigurationError(Code.USAGE, "Give exactly one of NAME, --list and --write DIR.")
    if arguments.json and not arguments.list:
        raise ConfigurationError(Code.USAGE, "--json goes with --list; a schema is printed as JSON anyway.")
    if arguments.list:
        print(json.dumps(list(RECORDS)) if arguments.json else "\n".join(RECORDS))
    elif arguments.write is not None:
        _write_all(arguments.write)
    elif arguments.name in RECORDS:
        sys.stdout.write(schema_text(arguments.name))
    else:
        known = ", ".join(RECORDS)
        raise ConfigurationError(Code.USAGE, f"No record is named '{arguments.name}'; the names are {known}.")
    return ExitCode.ACCEPTED


def _write_all(folder: Path) -> None:
    for name in RECORDS:
        path = folder / schema_file_name(name)
        try:
            changed = _write_where_changed(path, schema_text(name).encode("utf-8"))
        except OSError as error:
            raise ConfigurationError(Code.SCHEMA_WRITE, f"Cannot write {path}: {error.strerror}.") from error
        print(f"{'written' if changed else 'unchanged':<9}  {path}")


def _write_where_changed(path: Path, raw: bytes) -> bool:
    from mini_kv.system.files import write_bytes_atomic

    if path.is_file() and path.read_bytes() == raw:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes_atomic(path, raw)
    return True
