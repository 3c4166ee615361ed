"""Which modules decide verdicts, the unit tests that hold each, and how many mutants of each are tried."""

from __future__ import annotations

# module: folders and files of the unit tests that are to notice a change of it. Folders only where every test
# in them is quick: none that compiles, starts workers or verifies a whole project.
_CASES = (
    "tests/correctness/test_cases_on_seats.py",
    "tests/correctness/test_grading.py",
    "tests/correctness/test_case_rounds.py",
)
_AXES = "tests/task_card/test_axis_rules.py"
_BENCHMARK = ("tests/benchmark", "tests/house/test_method_constants.py")
_REGRESSION = ("tests/regression", "tests/house/test_method_constants.py")
_STATISTICS = "tests/core/test_statistics.py"
_VERDICT = ("tests/core/test_verdict.py", "tests/core/test_verdict_axes.py")
DECIDING: dict[str, tuple[str, ...]] = {
    "mini_kv.artifacts.baselines": ("tests/artifacts",),
    "mini_kv.artifacts.contradictions": ("tests/artifacts",),
    "mini_kv.benchmark.case_timing": _BENCHMARK,
    "mini_kv.benchmark.ceilings": _BENCHMARK,
    "mini_kv.benchmark.inputs_unchanged": _BENCHMARK,
    "mini_kv.benchmark.pair_timing": _BENCHMARK,
    "mini_kv.benchmark.plan": _BENCHMARK,
    "mini_kv.benchmark.samples": _BENCHMARK,
    "mini_kv.benchmark.second_look": _BENCHMARK,
    "mini_kv.benchmark.two_candidates": _BENCHMARK,
    "mini_kv.benchmark.unseen_inputs": _BENCHMARK,
    "mini_kv.benchmark.witnesses": _BENCHMARK,
    "mini_kv.comparison.verdicts": ("tests/comparison/test_comparison_verdicts.py",),
    "mini_kv.core.rules.axes": (_AXES,),
    "mini_kv.core.rules.byte_locations": (
        "tests/core/test_byte_locations.py",
        "tests/correctness/test_grading.py",
    ),
    "mini_kv.core.rules.null_candidates": ("tests/core/test_null_candidates.py",),
    "mini_kv.core.rules.output_form": ("tests/correctness/test_grading.py",),
    "mini_kv.core.rules.policies": ("tests/core/test_policies.py",),
    "mini_kv.core.rules.process_changes": ("tests/core/test_process_changes.py",),
    "mini_kv.core.rules.quality": (_STATISTICS,),
    "mini_kv.core.rules.statistics": (_STATISTICS,),
    "mini_kv.core.rules.student_t": (_STATISTICS,),
    "mini_kv.core.rules.suite": (_AXES, "tests/core/test_policies.py"),
    "mini_kv.core.rules.verdict": _VERDICT,
    "mini_kv.correctness.calls": _CASES,
    "mini_kv.correctness.cases": _CASES,
    "mini_kv.correctness.contract_plan": ("tests/correctness",),
    "mini_kv.correctness.grading": ("tests/correctness/test_grading.py",),
    "mini_kv.correctness.illegal_cases": _CASES,
    "mini_kv.correctness.kept_outputs": (*_CASES, "tests/correctness/test_kept_outputs.py"),
    "mini_kv.correctness.legal_cases": _CASES,
    "mini_kv.correctness.rounds": _CASES,
    "mini_kv.leaderboard": ("tests/test_leaderboard.py",),
    "mini_kv.regression.decisions": _REGRESSION,
    "mini_kv.regression.gate": _REGRESSION,
    "mini_kv.regression.paired": _REGRESSION,
    "mini_kv.task_card.axis_rules": (_AXES,),
    "mini_kv.task_card.card_rules": (
        "tests/task_card/test_task_card.py",
        "tests/task_card/test_card_rules.py",
    ),
    "mini_kv.worker.nulls": ("tests/worker/test_nulls.py",),
    "mini_kv.worker.numerics": ("tests/worker/test_numerics.py",),
}
# What these find depends on how busy the machine is: they would notice mutants by chance.
TIMED_TESTS = frozenset(
    {"tests/task_card/test_task_card.py::test_a_thousand_cards_take_less_than_three_seconds"}
)
# Of each module at most so many; which ones follows from their names, so a sample is stable while code moves.
SAMPLE_PER_MODULE = 8
LEAST_MUTANTS = 200
LEAST_KILLED = 0.95
# What the unit tests of all these modules may take together, in processor seconds.
UNIT_TESTS_LIMIT_S = 60.0
# A mutant may loop: what its tests take beyond this, in processor seconds, is noticed too.
MUTANT_LIMIT_S = 60
EQUIVALENT = "scripts/mutants/equivalent.yaml"
