"""Mutate the code that decides verdicts, one point at a time, and see whether the unit tests notice.

    scripts/run_mutants.py                      a sample of every module, the same each time
    scripts/run_mutants.py --all                every mutant
    scripts/run_mutants.py --module regression  modules whose name holds that word
    scripts/run_mutants.py --list               names only, nothing is run

Fails where fewer than 95 % are noticed, where one that is not is missing from scripts/mutants/equivalent.yaml
or one that stands there is noticed or gone, and where the unit tests themselves fail or take too long.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from mutants import plan, runner
from mutants.operators import Mutant, mutants_of

ROOT = Path(__file__).resolve().parent.parent


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


def report(modules: Sequence[str], mutants: Sequence[Mutant], jobs: int, *, sampled: bool) -> int:
    """Try the mutants and print the table; return the exit code."""
    started = time.monotonic()
    covered = cover(modules, jobs)
    used = {test for lines in covered.tests.values() for test in lines[runner.ALL_LINES]}
    unit_s = sum(covered.seconds[test] for test in used)
    print(
        f"{len(used)} unit tests, {unit_s:.1f} s of processor time together (traced); {len(mutants)} mutants"
    )
    equivalent = known_equivalents()
    tallies = {module: Tally() for module in modules}
    faults: list[str] = []
    for mutant, test in tried(mutants, covered, jobs):
        tally = tallies[mutant.module]
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
    every = {
        mutant.name
        for module in modules
        for mutant in mutants_of(module, source_of(module).read_text("utf-8"))
    }
    faults += [
        f"listed as equivalent, but there is no such mutant any more: {name}"
        for name in equivalent
        if name.partition(":")[0] in modules and name not in every
    ]
    counted = [
        (module, tally.noticed, len(tally.survived), tally.equivalent) for module, tally in tallies.items()
    ]
    width = max(len(module) for module in modules)
    print(f"\n{'module':<{width}}  noticed  survived  equivalent")
    for module, noticed, survived, same in counted:
        print(f"{module:<{width}}  {noticed:7}  {survived:8}  {same:10}")
    noticed, survived = sum(row[1] for row in counted), sum(row[2] for row in counted)
    share = noticed / (noticed + survived) if noticed + survived else 0.0
    print(
        f"\n{noticed} of {noticed + survived} noticed, {100 * share:.1f} %;"
        f" {time.monotonic() - started:.0f} s"
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


def tried(mutants: Sequence[Mutant], covered: runner.Coverage, jobs: int) -> list[tuple[Mutant, str | None]]:
    """Run every mutant against the tests that run its lines; return what notices each, or ``None``."""
    outcomes: dict[int, str | None] = {}
    numbers = [number for number, mutant in enumerate(mutants) if covered.of(mutant)]
    work = [
        (
            functools.partial(
                runner.run_mutant,
                mutants[number],
                source_of(mutants[number].module),
                covered.of(mutants[number]),
            ),
            plan.MUTANT_LIMIT_S,
        )
        for number in numbers
    ]
    for place, told in runner.together(work, jobs):
        # A child that answers nothing died of the mutant, or of its time: nobody would overlook that.
        outcomes[numbers[place]] = told["test"] if told is not None else "its process died"
    return [(mutant, outcomes.get(number)) for number, mutant in enumerate(mutants)]


if __name__ == "__main__":
    sys.exit(main())
