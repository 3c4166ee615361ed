"""Mutate the code that decides verdicts, one point at a time, and see whether the unit tests notice.

    scripts/run_mutants.py                      a sample of every module, the same each time
    scripts/run_mutants.py --all                every mutant
    scripts/run_mutants.py --module regression  modules whose name holds that word
    scripts/run_mutants.py --list               names only, nothing is run

Fails where fewer than 95 % of those tried are noticed, where a survivor is missing from
scripts/mutants/equivalent.yaml or one that stands there is noticed or gone, and where the unit tests
themselves fail or take too long.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from mutants import plan, runner
from mutants.operators import Mutant, mutants_of

ROOT = Path(__file__).resolve().parent.parent
DIED = "the end of its process"


@dataclass(kw_only=True)
class Tally:
    """What became of a module's mutants."""

    noticed: int = 0
    equivalent: int = 0
    survived: list[str] = field(default_factory=list)


def source_of(module: str) -> Path:
    """Return a module's file; raises ``SystemExit`` where the plan names one that is not there."""
    path = ROOT / "src" / Path(*module.split("."))
    found = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not found.is_file():
        raise SystemExit(f"mutants: the plan names {module}, which is not there")
    return found


def chosen(module: str, *, whole: bool) -> list[Mutant]:
    """Return a module's mutants that are tried, in the order of its lines."""
    found = mutants_of(module, source_of(module).read_text("utf-8"))
    if whole:
        return found
    sample = sorted(found, key=lambda mutant: mutant.rank)[: plan.SAMPLE_PER_MODULE]
    return sorted(sample, key=lambda mutant: mutant.number)


def known_equivalents() -> dict[str, str]:
    """Return the committed list: a mutant's name and the reason why no test can notice it."""
    listed = yaml.safe_load((ROOT / plan.EQUIVALENT).read_text("utf-8")) or []
    for entry in listed:
        if not str(entry.get("reason") or "").strip():
            raise SystemExit(f"mutants: {plan.EQUIVALENT} gives no reason for {entry['mutant']}")
    return {entry["mutant"]: entry["reason"] for entry in listed}


def cover(modules: Sequence[str], jobs: int) -> runner.Coverage:
    """Run the unit tests of these modules once, return what each runs; ``SystemExit`` where one fails."""
    places = sorted({place for module in modules for place in plan.DECIDING[module]})
    sources = {str(source_of(module)): module for module in modules}
    work = [
        (functools.partial(runner.trace_tests, [place], sources), 20 * plan.MUTANT_LIMIT_S)
        for place in places
    ]
    found = runner.Coverage()
    for number, told in runner.together(work, jobs):
        if told is None or told["failed"] or told["code"] not in (0, 5):
            failed = ", ".join(told["failed"][:3]) if told else "nothing was answered"
            raise SystemExit(
                f"mutants: the unit tests of {places[number]} fail on the code as it is: {failed}"
            )
        found.seconds |= told["seconds"]
        for test, lines in told["lines"].items():
            if test in plan.TIMED_TESTS:
                continue
            for module, numbers in lines.items():
                if not any(test.startswith(place) for place in plan.DECIDING[module]):
                    continue
                of_module = found.tests.setdefault(module, {})
                for line in (runner.ALL_LINES, *numbers):
                    of_module.setdefault(line, []).append(test)
    return found


def main(argv: list[str] | None = None) -> int:
    """Print what became of every mutant that was tried; return 1 where that is not enough."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="every mutant instead of a sample")
    parser.add_argument(
        "--module", action="append", metavar="WORD", help="only modules whose name holds this"
    )
    parser.add_argument("--list", action="store_true", help="print the mutants' names and end")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(argv)
    os.chdir(ROOT)
    modules = [name for name in plan.DECIDING if any(word in name for word in options.module or ("",))]
    mutants = [mutant for module in modules for mutant in chosen(module, whole=options.all)]
    if options.list:
        print(*(mutant.name for mutant in mutants), sep="\n")
        return 0
    if importlib.util.find_spec("coverage") and "coverage" in sys.modules:
        raise SystemExit("mutants: not under coverage, which traces as this does")
    runner.preload()
    return report(modules, mutants, options.jobs, sampled=not options.all and not options.module)


def control(modules: Sequence[str], covered: runner.Coverage, jobs: int) -> None:
    """Run each module's tests as for a mutant, but on the module as it is.

    Raises ``SystemExit`` where one fails: it would notice whatever it is shown.
    """
    tested = [module for module in modules if covered.of_module(module)]
    work = [
        (
            functools.partial(runner.run_unchanged, module, source_of(module), covered.of_module(module)),
            20 * plan.MUTANT_LIMIT_S,
        )
        for module in tested
    ]
    for number, told in runner.together(work, jobs):
        if told is None or told["code"] != 0:
            why = told["test"] or f"pytest ended with {told['code']}" if told else "nothing was answered"
            raise SystemExit(
                f"mutants: the unit tests of {tested[number]} fail where nothing is mutated: {why}"
            )


def report(modules: Sequence[str], mutants: Sequence[Mutant], jobs: int, *, sampled: bool) -> int:
    """Try the mutants and print the table; return the exit code."""
    started = time.monotonic()
    covered = cover(modules, jobs)
    control(modules, covered, jobs)
    tests = {test for module in modules for test in covered.of_module(module)}
    unit_s = sum(covered.seconds[test] for test in tests)
    print(
        f"{len(tests)} unit tests of {len(modules)} modules,"
        f" {unit_s:.1f} s of processor time together (traced);"
        f" {len(mutants)} mutants",
        flush=True,
    )
    equivalent = known_equivalents()
    tallies, faults = tallied(mutants, covered, equivalent, jobs)
    faults += gone(equivalent, modules, whole_plan=len(modules) == len(plan.DECIDING))
    print_table(modules, tallies)
    noticed = sum(tally.noticed for tally in tallies.values())
    # Equivalents count as not noticed: a long list of them does not make the share larger.
    share = noticed / len(mutants) if mutants else 0.0
    print(
        f"\n{noticed} of {len(mutants)} noticed, {100 * share:.1f} %; {time.monotonic() - started:.0f} s,"
        f" {sum(os.times()[:4]):.0f} s of processor time"
    )
    if sampled and len(mutants) < plan.LEAST_MUTANTS:
        faults.append(f"{len(mutants)} mutants were tried; required: at least {plan.LEAST_MUTANTS}")
    if not share >= plan.LEAST_KILLED:
        faults.append(f"{100 * share:.1f} % are noticed; required: at least {100 * plan.LEAST_KILLED:g} %")
    if not unit_s <= plan.UNIT_TESTS_LIMIT_S:
        faults.append(
            f"the unit tests take {unit_s:.1f} s of processor time; allowed: {plan.UNIT_TESTS_LIMIT_S:g} s"
        )
    if any(tally.survived for tally in tallies.values()):
        faults.append(f"each survivor needs a test, or an entry with its reason in {plan.EQUIVALENT}")
    for fault in faults:
        print(f"mutants: {fault}", file=sys.stderr)
    return 1 if faults else 0


def tallied(
    mutants: Sequence[Mutant], covered: runner.Coverage, equivalent: Mapping[str, str], jobs: int
) -> tuple[dict[str, Tally], list[str]]:
    """Try the mutants, print the name of each that survives; return the counts by module, and faults."""
    tallies: dict[str, Tally] = defaultdict(Tally)
    faults: list[str] = []
    for mutant, test in tried(mutants, covered, jobs):
        tally = tallies[mutant.module]
        if test == DIED:
            print(f"noticed, for it ended its process: {mutant.name}", flush=True)
        if test is not None:
            tally.noticed += 1
            if mutant.name in equivalent:
                faults.append(f"listed as equivalent, but {test} notices it: {mutant.name}")
        elif mutant.name in equivalent:
            tally.equivalent += 1
        else:
            tally.survived.append(mutant.name)
            why = "" if covered.of(mutant) else " (no unit test runs it)"
            print(f"survived{why}: {mutant.name}", flush=True)
    return tallies, faults


def gone(equivalent: Mapping[str, str], modules: Sequence[str], *, whole_plan: bool) -> list[str]:
    """Return a sentence for each entry of the list that names no mutant of these modules any more."""
    every = {
        mutant.name
        for module in modules
        for mutant in mutants_of(module, source_of(module).read_text("utf-8"))
    }
    return [
        f"listed as equivalent, but there is no such mutant any more: {name}"
        for name in equivalent
        if (whole_plan or name.partition(":")[0] in modules) and name not in every
    ]


def print_table(modules: Sequence[str], tallies: Mapping[str, Tally]) -> None:
    """Print what became of each module's mutants."""
    width = max(len(module) for module in modules)
    print(f"\n{'module':<{width}}  noticed  survived  equivalent")
    for module in modules:
        tally = tallies[module]
        print(f"{module:<{width}}  {tally.noticed:7}  {len(tally.survived):8}  {tally.equivalent:10}")


def tried(
    mutants: Sequence[Mutant], covered: runner.Coverage, jobs: int
) -> Iterator[tuple[Mutant, str | None]]:
    """Run every mutant against the tests that run its lines; yield what notices each, or ``None``."""
    tested = [mutant for mutant in mutants if covered.of(mutant)]
    for mutant in mutants:
        if not covered.of(mutant):
            yield mutant, None
    work = [
        (
            functools.partial(runner.run_mutant, mutant, source_of(mutant.module), covered.of(mutant)),
            plan.MUTANT_LIMIT_S,
        )
        for mutant in tested
    ]
    for place, told in runner.together(work, jobs):
        # A child that answers nothing died of the mutant, or of its time: nobody would overlook that.
        yield tested[place], told["test"] if told is not None else DIED


if __name__ == "__main__":
    sys.exit(main())
