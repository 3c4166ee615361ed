"""Which modules decide verdicts, the unit tests that hold each, and how many mutants of each are tried."""

from __future__ import annotations

# module: folders and files of the unit tests that are to notice a change of it.
DECIDING: dict[str, tuple[str, ...]] = {
    "mini_kv.artifacts.baselines": ("tests/artifacts",),
    "mini_kv.artifacts.contradictions": ("tests/artifacts",),
    "mini_kv.benchmark.case_timing": ("tests/benchmark",),
    "mini_kv.benchmark.ceilings": ("tests/benchmark",),
    "mini_kv.benchmark.inputs_unchanged": ("tests/benchmark",),
    "mini_kv.benchmark.pair_timing": ("tests/benchmark",),
    "mini_kv.benchmark.plan": ("tests/benchmark",),
    "mini_kv.benchmark.samples": ("tests/benchmark",),
    "mini_kv.benchmark.second_look": ("tests/benchmark",),
    "mini_kv.benchmark.two_candidates": ("tests/benchmark",),
    "mini_kv.benchmark.unseen_inputs": ("tests/benchmark",),
    "mini_kv.benchmark.witnesses": ("tests/benchmark",),
    "mini_kv.comparison.verdicts": ("tests/comparison/test_comparison_verdicts.py",),
    "mini_kv.core.rules.null_candidates": ("tests/core", "tests/test_auditing.py"),
    "mini_kv.core.rules.output_form": ("tests/core", "tests/correctness"),
    "mini_kv.core.rules.policies": ("tests/core",),
    "mini_kv.core.rules.process_changes": ("tests/core",),
    "mini_kv.core.rules.quality": ("tests/core",),
    "mini_kv.core.rules.statistics": ("tests/core",),
    "mini_kv.core.rules.student_t": ("tests/core",),
    "mini_kv.core.rules.verdict": ("tests/core",),
    "mini_kv.correctness.contract_plan": ("tests/correctness",),
    "mini_kv.correctness.grading": ("tests/correctness",),
    "mini_kv.correctness.kept_outputs": ("tests/correctness",),
    "mini_kv.correctness.rounds": ("tests/correctness",),
    "mini_kv.leaderboard": ("tests/test_leaderboard.py",),
    "mini_kv.regression.decisions": ("tests/regression",),
    "mini_kv.regression.gate": ("tests/regression",),
    "mini_kv.regression.paired": ("tests/regression",),
    "mini_kv.task_card.axis_rules": ("tests/core/test_axes.py", "tests/task_card"),
    "mini_kv.task_card.card_rules": ("tests/task_card",),
    "mini_kv.worker.nulls": ("tests/worker/test_numerics.py", "tests/test_auditing.py"),
    "mini_kv.worker.numerics": ("tests/worker/test_numerics.py",),
}
# Of each module at most so many; which ones follows from their names, so a sample is stable while code moves.
SAMPLE_PER_MODULE = 9
LEAST_MUTANTS = 200
LEAST_KILLED = 0.95
# What the unit tests of all these modules may take together, in processor seconds.
UNIT_TESTS_LIMIT_S = 60.0
# A mutant may loop: what its tests take beyond this, in processor seconds, is noticed too.
MUTANT_LIMIT_S = 60
EQUIVALENT = "scripts/mutants/equivalent.yaml"
