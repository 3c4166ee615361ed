"""What the null candidates say of a case: whether it proves values, form only, or nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mini_kv.core import protocol as p
from mini_kv.core.codes import Code
from mini_kv.core.records.correctness import Proves
from mini_kv.core.records.results import Finding


def common_nulls(audits: Sequence[p.CaseAudited]) -> tuple[str, ...]:
    """Return the nulls that pass under every seed: one that chance let through once is caught by another."""
    if not audits:
        return ()
    return tuple(name for name in audits[0].passed if all(name in audit.passed for audit in audits))


def judge_audits(audits: Sequence[p.CaseAudited]) -> tuple[Proves, Finding | None]:
    """Return what the case is evidence of, and why not of values.

    An empty result proves form and is no fault of the card; any other that a null passes proves nothing.
    """
    if all(audit.element_count == 0 for audit in audits):
        return "form", None
    passed = common_nulls(audits)
    if not passed:
        return "values", None
    return "nothing", Finding(
        code=Code.NULL_PASSES,
        message=f"{_listed(passed)} would pass too, without computing anything: the case proves nothing; "
        "its inputs or tolerance must change",
        evidence=passed,
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
