"""The study's tables as Markdown: printed after a run, and filled into docs/method.md."""

from __future__ import annotations

from collections.abc import Sequence

from research.gate_study.summary import Proportion, Rates, Summary
from research.markdown import table


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _bounded(found: Proportion) -> str:
    return f"{found.events}/{found.trials} ({found.lower:.1%} to {found.upper:.1%})"


def spreads(summary: Summary) -> str:
    """Return the spread of equal processes, kernel by kernel."""
    return table(
        (
            "kernel",
            "P50",
            "net",
            "CUPTI",
            "sd between processes, raw",
            "the same, net",
            "sd between batches of a process",
            "injected, achieved",
        ),
        [
            (
                row.kernel,
                f"{row.p50_us:.2f} us",
                f"{row.net_us:.2f} us",
                f"{row.kernel_us:.2f} us",
                f"{row.raw_between_us:.3f} us",
                f"{row.net_between_us:.3f} us ({row.net_between_percent:.2f} %)",
                "-" if row.places_us is None else f"{row.places_us:.3f} us",
                ", ".join(
                    f"{name}: {got:.1f} %" for name, got in row.achieved_percent.items() if name != "0"
                ),
            )
            for row in summary.spreads
        ],
    )


def _rates(rows: Sequence[Rates]) -> str:
    return table(
        (
            "kernel",
            "injected",
            "FAIL",
            "SLOWER or FAIL",
            "the same, disjoint processes only",
            "FAIL by the record alone",
            "decisions",
        ),
        [
            (
                row.kernel,
                f"{row.level} %",
                _share(row.fail.rate),
                _share(row.slower_or_fail.rate),
                f"{_bounded(row.disjoint_fail)}; {_bounded(row.disjoint_slower_or_fail)}",
                _share(row.record_only_fail.rate),
                ", ".join(f"{name} {number}" for name, number in row.decisions.items()),
            )
            for row in rows
        ],
    )


def false_alarms(summary: Summary) -> str:
    """Return the decisions on equal code."""
    return _rates(summary.false_alarms)


def power(summary: Summary) -> str:
    """Return the decisions on injected slowdowns."""
    return _rates(summary.power)


def policies(summary: Summary) -> str:
    """Return what other numbers of pairs would give, for the worst kernel each."""
    return table(
        (
            "pairs, and more in doubt",
            "pairs taken on equal code",
            "false FAIL",
            "false SLOWER",
            "FAIL on 8 %",
            "seen at 5 %",
            "seen at 3 %",
        ),
        [
            (
                f"{row.pairs} + {row.more_pairs}",
                "-" if row.mean_pairs_taken is None else f"{row.mean_pairs_taken:.1f}",
                _share(row.false_fail),
                _share(row.false_slower),
                _share(row.fail_at_8),
                _share(row.seen_at_5),
                _share(row.seen_at_3),
            )
            for row in summary.policies
        ],
    )


def controls(summary: Summary) -> str:
    """Return the negative controls."""
    return table(
        ("control", "kernel", "P50", "robust CV", "what the product says"),
        [
            (
                row.name,
                row.kernel,
                f"{row.p50_us:.2f} us",
                f"{row.robust_cv:.2%}",
                ", ".join(row.codes) or "stable",
            )
            for row in summary.controls
        ],
    )


def bars(summary: Summary) -> str:
    """Return the demands and what was found."""
    return table(
        ("demand", "found", ""),
        [(bar.demand, bar.found, "PASS" if bar.passed else "FAIL") for bar in summary.bars],
    )


def design(summary: Summary) -> str:
    """Return in sentences what was measured and how far the decisions depend on each other."""
    equal = summary.false_fail.trials
    return (
        f"{summary.device_name}, torch {summary.torch}: {summary.processes} fresh processes, each of which "
        f"measured its kernels without and with every injected slowdown. They form "
        f"{summary.disjoint_groups} groups that share no process; one group gives one decision a kernel and "
        f"comparison, {equal} decisions on equal code in all. Decisions of one group come from the same "
        f"processes, but from different calls of them. The other rates also use regroupings of the same "
        f"processes, which sharpen an estimate and are no further evidence: their bounds are not given. "
        f"The policy has {summary.policy.pairs} pairs, and {summary.policy.more_pairs} more in doubt, which "
        f"come from other groups' processes.\n\n{sessions(summary)}{honest(summary)}"
    )


def sessions(summary: Summary) -> str:
    """Return which kernels come from which session, where there was more than one."""
    if len(summary.sessions) < 2:
        return ""
    rows = [
        (
            f"{number} (`{session.file}`)" if session.file else str(number),
            str(session.processes),
            str(session.disjoint_groups),
            ", ".join(session.kernels) or "-",
            str(session.equal_decisions),
            f"{', '.join(session.left_out)}: measured again in a later session" if session.left_out else "-",
        )
        for number, session in enumerate(summary.sessions, start=1)
    ]
    header = ("session", "processes", "groups", "kernels", "decisions on equal code", "left out")
    return table(header, rows) + "\n\n"


def honest(summary: Summary) -> str:
    """Return in sentences what was held against honest processes."""
    found = summary.claims
    widest = "" if found.widest_us is None else f" (at most {found.widest_us:+.2f} us beyond one)"
    lost = f" Lost: {'; '.join(summary.lost)}." if summary.lost else ""
    return (
        f"Every process is an honest run. The judge's own clock contradicted "
        f"{found.contradicted.events} of {found.contradicted.trials} claims{widest}, upper bound "
        f"{found.contradicted.upper:.1%}; {found.unbounded} could not be bounded. {summary.shared} processes "
        f"saw another user of the GPU, {summary.throttled} a throttled one.{lost}"
    )


def as_text(summary: Summary) -> str:
    """Return everything, as it is printed after a run."""
    parts = (
        design(summary),
        bars(summary),
        spreads(summary),
        false_alarms(summary),
        power(summary),
        policies(summary),
        controls(summary),
    )
    return "\n\n".join(parts)
