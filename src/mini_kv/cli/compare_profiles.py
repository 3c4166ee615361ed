"""``mini-kv compare-profiles``: set two profiles of one case side by side."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError, ExitCode, IntegrityError

if TYPE_CHECKING:
    from mini_kv.core.records.profile import Profile

EXAMPLE = (
    "mini-kv compare-profiles artifacts/profiles/rmsnorm/20260301T120000Z-0a1b2c3d "
    "artifacts/profiles/rmsnorm/20260301T120100Z-4e5f6a7b --comparison comparison.json"
)
MAX_COMPARISON_BYTES = 256 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own options."""
    parser.add_argument("before", type=Path, metavar="A", help="folder of the first profile")
    parser.add_argument("after", type=Path, metavar="B", help="folder of the second profile")
    parser.add_argument(
        "--comparison",
        type=Path,
        metavar="FILE",
        help="a timed comparison of the same two candidates, which must agree in builds and sources",
    )
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Compare; profiles that cannot be compared are a configuration error, altered ones one of integrity."""
    from mini_kv.cli import profile_text
    from mini_kv.core.record import to_json
    from mini_kv.profiling.analysis import compare_profiles

    before, after = _load(arguments.before), _load(arguments.after)
    timed = _read_comparison(arguments.comparison) if arguments.comparison is not None else None
    comparison = compare_profiles(before, after, timed)
    if arguments.json:
        sys.stdout.write(to_json(comparison).decode())
    else:
        sys.stdout.write(profile_text.comparison_as_text(comparison))
    return ExitCode.ACCEPTED


def _load(path: Path) -> tuple[Profile, str]:
    """Read a profile and derive its facts once more from the raw page that it holds."""
    from mini_kv.profiling.analysis import analyse
    from mini_kv.profiling.ncu import load_profile

    profile, digest, raw_page = load_profile(path)
    if profile.facts is None or profile.profiler is None or raw_page is None:
        return profile, digest
    if analyse(raw_page, profile.profiler.kernel_name_regex) != profile.facts:
        raise IntegrityError(
            Code.PROFILE_TAMPERED,
            f"Profile {profile.profile_id} does not hold what it promises: its facts are not those of its "
            "raw page.",
        )
    return profile, digest


def _read_comparison(path: Path) -> tuple[bytes, str]:
    from mini_kv.core.canonical import sha256_bytes
    from mini_kv.system.paths import PathRefused, read_regular_file

    try:
        raw = read_regular_file(path, MAX_COMPARISON_BYTES)
    except PathRefused as error:
        raise ConfigurationError(Code.COMPARISON_UNREADABLE, f"{path} cannot be read: {error}") from error
    return raw, sha256_bytes(raw)
