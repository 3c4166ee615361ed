"""The leaderboard, pure: index rows give ranked rows, in groups that may be compared."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from mini_kv.core.codes import Code
from mini_kv.core.errors import ExitCode
from mini_kv.core.printable import markdown_cell
from mini_kv.core.records.attempt import IndexRow, Leaderboard, LeaderboardGroup, LeaderboardRow
from mini_kv.core.records.card import SCHEMA_VERSION
from mini_kv.core.records.results import Finding
from mini_kv.core.text_table import Column, figure, fitted, head_row, markdown_table, text_row

COLUMNS = ("rank", "candidate", "version", "speedup", "P50 us", "attempt")
# Numbers are read by their last digit.
RIGHT_ALIGNED = frozenset({"rank", "speedup", "P50 us"})
HASH_CHARACTERS = 12
# As git shortens: stands behind a version, as build metadata does in semantic versions.
CODE_CHARACTERS = 7


def why_not_ranked(row: IndexRow) -> str | None:
    """Return why an attempt has no place on any board, or ``None`` if it has. NaN is no speedup."""
    if not row.complete:
        return "not complete"
    if not row.correct and row.exit_code != ExitCode.BENCHMARK:
        return "not correct"
    if row.benchmark_stable is None:
        return "not timed"
    if not row.benchmark_stable:
        return "not stable"
    if not row.correct:
        return "with doubtful times"
    if row.device is None or row.environment_key is None:
        return "of an unknown environment"
    speedup = row.geomean_speedup
    return None if speedup is not None and math.isfinite(speedup) and speedup > 0.0 else "without a speedup"


def rejections(rows: Iterable[IndexRow], task_id: str | None = None) -> dict[str, int]:
    """Return how many attempts are not ranked, by reason, the most frequent first."""
    reasons = (why_not_ranked(row) for row in rows if task_id in (None, row.task_id))
    return dict(Counter(reason for reason in reasons if reason is not None).most_common())


def _age(row: IndexRow) -> tuple[str, str, str]:
    # The id begins with the second in UTC; started_at splits a second; the rest only makes it definite.
    return row.attempt_id[:16], row.started_at, row.attempt_id


def rank_attempts(rows: Iterable[IndexRow], task_id: str | None = None) -> Leaderboard:
    """Return the board of the latest rankable attempt per candidate and version.

    Attempts are compared only within one task, suite, environment key and device. Rows are ordered by
    geometric-mean speedup; equal ones by primary P50, then by name; equal speedups share a rank. What the
    latest attempt takes the place of is remarked upon where it is of other code or another folder.
    """
    named: dict[tuple[str, str, str, str], dict[tuple[str, str], list[IndexRow]]] = {}
    for row in rows:
        if task_id not in (None, row.task_id) or why_not_ranked(row) is not None:
            continue
        key = (row.task_id, str(row.device), row.suite_sha256, str(row.environment_key))
        named.setdefault(key, {}).setdefault((row.candidate_id, row.candidate_version), []).append(row)
    groups = tuple(_group([sorted(rows, key=_age) for rows in named[key].values()]) for key in sorted(named))
    return Leaderboard(schema_version=SCHEMA_VERSION, groups=groups)


def _group(by_name: Sequence[Sequence[IndexRow]]) -> LeaderboardGroup:
    """Return the group of candidates whose attempts are given by name, the oldest first."""
    entries = [rows[-1] for rows in by_name]
    earlier = {rows[-1]: rows[:-1] for rows in by_name}
    first = max(entries, key=_age)
    ordered = sorted(entries, key=_order)
    speedups = [row.geomean_speedup or 0.0 for row in ordered]
    if first.device is None or first.environment_key is None:
        raise ValueError("an attempt without a device or environment cannot be ranked")
    return LeaderboardGroup(
        task_id=first.task_id,
        suite_sha256=first.suite_sha256,
        environment_key=first.environment_key,
        device=first.device,
        environment=first.environment or "unnamed environment",
        rows=tuple(
            LeaderboardRow(
                rank=speedups.index(speedup) + 1,
                candidate_id=row.candidate_id,
                candidate_version=row.candidate_version,
                attempt_id=row.attempt_id,
                geomean_speedup=speedup,
                primary_p50_us=row.primary_p50_us,
                started_at=row.started_at,
                candidate_folder=row.candidate_folder,
                code_sha256=row.code_sha256,
            )
            for row, speedup in zip(ordered, speedups, strict=True)
        ),
        remarks=tuple(remark for row in ordered for remark in _remarks(row, earlier[row])),
    )


def _remarks(row: IndexRow, earlier: Sequence[IndexRow]) -> Iterator[Finding]:
    """Yield what a place's earlier attempts were of, where that is not what the latest is of."""
    own = (row.candidate_folder, row.code_sha256)
    others = [one for one in earlier if (one.candidate_folder, one.code_sha256) != own]
    others = [one for one in others if one.candidate_folder is not None and one.code_sha256 is not None]
    if not others or None in own:
        return
    folders = sorted({str(one.candidate_folder) for one in others} - {str(row.candidate_folder)})
    name = f"{row.candidate_id} {row.candidate_version}"
    if folders:
        code = Code.ONE_NAME_TWO_FOLDERS
        message = (
            f"{name} is ranked by a candidate in {row.candidate_folder}, and was the name of one in "
            f"{', '.join(folders)}: give each a candidate_id of its own to rank both."
        )
    else:
        code = Code.OTHER_CODE
        codes = ", ".join(dict.fromkeys(_short(one) for one in reversed(others)))
        message = (
            f"{name} is ranked by code {_short(row)}; earlier attempts of that version are of {codes}: "
            "raise the version to rank both."
        )
    yield Finding(code=code, message=message, evidence=tuple(map(_attempt_line, (*others, row))))


def _attempt_line(row: IndexRow) -> str:
    return f"{row.attempt_id}: {row.geomean_speedup:.3f}x, code {_short(row)} from {row.candidate_folder}"


def _short(row: IndexRow | LeaderboardRow) -> str:
    return str(row.code_sha256)[:CODE_CHARACTERS]


def _order(row: IndexRow) -> tuple[float, float, str, str]:
    p50_us = row.primary_p50_us
    known = p50_us if p50_us is not None and math.isfinite(p50_us) else math.inf
    return -(row.geomean_speedup or 0.0), known, row.candidate_id, row.candidate_version


# ---------------------------------------------------------------------------- text


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


def heading(group: LeaderboardGroup) -> str:
    """Return one line that says what the rows of a group have in common."""
    return _printable(f"{group.task_id} on {group.device}: {group.environment}")


def provenance(group: LeaderboardGroup) -> str:
    """Return the hashes that make the group's rows comparable, shortened."""
    suite, key = group.suite_sha256[:HASH_CHARACTERS], group.environment_key[:HASH_CHARACTERS]
    return f"suite {suite}, environment {key}"


def notes(group: LeaderboardGroup) -> list[str]:
    """Return a line for each remark on a group's rows."""
    return [_printable(f"note: {remark.message}") for remark in group.remarks]


def cells(row: LeaderboardRow) -> tuple[str, ...]:
    """Return a row's text under :data:`COLUMNS`."""
    code = "" if row.code_sha256 is None else f"+{_short(row)}"
    names = (_printable(row.candidate_id), _printable(row.candidate_version + code))
    speedup = f"{row.geomean_speedup:.{2 if row.geomean_speedup >= 1.0 else 3}f}x"
    return (str(row.rank), *names, speedup, figure(row.primary_p50_us, 2), row.attempt_id)


def to_text(board: Leaderboard) -> str:
    """Return the board as aligned plain text, for pipes and logs."""
    blocks = []
    for group in board.groups:
        rows = [cells(row) for row in group.rows]
        columns = fitted([Column(head=name, left=name not in RIGHT_ALIGNED) for name in COLUMNS], rows)
        lines = [head_row(columns, gap="  "), *(text_row(row, columns, gap="  ") for row in rows)]
        table = [line.rstrip() for line in lines]
        blocks.append("\n".join((heading(group), provenance(group), *table, *notes(group))))
    return "\n\n".join(blocks) + "\n"


def to_markdown(board: Leaderboard) -> str:
    """Return the board as GitHub-flavoured Markdown, one table a group."""
    blocks = []
    for group in board.groups:
        lines = markdown_table(COLUMNS, [cells(row) for row in group.rows], right_aligned=RIGHT_ALIGNED)
        blocks.append(
            "\n".join(
                (
                    *(f"### {markdown_cell(heading(group))}", "", f"{provenance(group)}", "", *lines),
                    *(line for note in notes(group) for line in ("", markdown_cell(note))),
                )
            )
        )
    return "\n\n".join(blocks) + "\n"
