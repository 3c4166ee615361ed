"""Runs one member of the zoo through the command line and tells what its expectation says of the result."""

from __future__ import annotations

import argparse
import glob
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from machine_load import Watched, wait_for_quiet, watched

ROOT = Path(__file__).resolve().parent.parent
ZOO = ROOT / "tests" / "zoo"
DEADLINE_S = 200.0
# How often, and how long each time for quiet, a timed member is tried again by itself.
TRIES_ALONE = 3
WAIT_FOR_QUIET_S = 20.0
# Where a hostile member may leave something if it escapes; all of it must be as it was.
GUARDED = (".build", "baselines", "artifacts", "tests", "candidates", "schemas", "src")


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """``expect.yaml``: how the member works and the verdict that it must get.

    ``timed``: whether the trick is seen depends on how long things take, which a busy machine hides.
    """

    name: str
    works: str
    kind: str
    group: str
    device: str
    benchmark: bool
    exit_code: int
    axis: str
    status: str
    code: str | None
    caught_by: str
    timeout_s: float = 30.0
    quick: bool = False
    timed: bool = False
    known_undetected: bool = False
    gpus: int = 1
    before: str | None = None
    stated_card: str | None = None

    @property
    def card(self) -> Path:
        """What the member is verified against; timed ones may change their process: the clocks must tell."""
        return ZOO / f"{self.stated_card or ('timing' if self.benchmark else 'card')}.yaml"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the command said and archived."""

    exit_code: int
    attempt: dict[str, Any]
    codes: frozenset[str]
    text: str
    elapsed_s: float

    def axis(self, name: str) -> tuple[str, str | None]:
        axis = next(one for one in self.attempt["axes"] if one["name"] == name)
        return axis["status"], axis["code"]


def members() -> tuple[Expectation, ...]:
    """Return every member's expectation, by name."""
    return tuple(expectation(path) for path in sorted(ZOO.glob("*/expect.yaml")))


def expectation(path: Path) -> Expectation:
    stated = yaml.safe_load(path.read_text("utf-8"))
    stated["group"] = stated.pop("class")
    stated["stated_card"] = stated.pop("card", None)
    return msgspec.convert({**stated, "name": path.parent.name}, Expectation)


def run_member(expected: Expectation, archive: Path) -> Outcome:
    """Verify the member with an archive of its own; raises ``AssertionError`` when nothing is archived."""
    if expected.before is not None:
        BEFORE[expected.before](expected, archive.parent / f"{archive.name}-before")
    return _verify(expected, ZOO / expected.name, archive)


def _verify(expected: Expectation, candidate: Path, archive: Path) -> Outcome:
    command = [sys.executable, "-m", "mini_kv", "verify", "--task", str(expected.card)]
    command += ["--candidate", str(candidate), "--device", expected.device]
    command += ["--artifacts", str(archive), "--timeout", str(expected.timeout_s)]
    command += [] if expected.benchmark else ["--skip-benchmark"]
    started = time.monotonic()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    text = done.stdout + done.stderr
    attempts = list(archive.glob("*/*/attempt.json"))
    assert len(attempts) == 1, text
    records = [json.loads(path.read_text("utf-8")) for path in attempts[0].parent.glob("*.json")]
    return Outcome(
        exit_code=done.returncode,
        attempt=json.loads(attempts[0].read_text("utf-8")),
        codes=frozenset(code for record in records for code in _codes(record)),
        text=text,
        elapsed_s=time.monotonic() - started,
    )


def _verify_earlier(expected: Expectation, archive: Path) -> None:
    """Accept another version of the member first: its library is there when the member's turn comes."""
    earlier = _verify(expected, ZOO / expected.name / "earlier", archive)
    assert earlier.attempt["accepted"], earlier.text


def _tamper_with_build(expected: Expectation, archive: Path) -> None:
    """Accept the member, then put the library of ``earlier/`` under the name of its own."""
    own = _verify(expected, ZOO / expected.name, archive / "own")
    earlier = _verify(expected, ZOO / expected.name / "earlier", archive / "earlier")
    assert own.attempt["accepted"] and not earlier.attempt["accepted"], own.text + earlier.text
    target, source = (
        next((ROOT / ".build" / outcome.attempt["build_key"]).glob("*.so")) for outcome in (own, earlier)
    )
    target.write_bytes(source.read_bytes())


BEFORE = {"verify_earlier": _verify_earlier, "tamper_with_build": _tamper_with_build}


def _codes(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["code"]] if isinstance(value.get("code"), str) else []
        return own + [code for each in value.values() for code in _codes(each)]
    if isinstance(value, list):
        return [code for each in value for code in _codes(each)]
    return []


def differences(expected: Expectation, outcome: Outcome) -> list[str]:
    """Say, in sentences, where the verdict is not the one that the member must get."""
    found = []
    if outcome.exit_code != expected.exit_code:
        found.append(f"exit code {outcome.exit_code}, not {expected.exit_code}")
    status, _ = outcome.axis(expected.axis)
    if status != expected.status and not _unsteady_clock(expected, status, outcome):
        found.append(f"the axis {expected.axis} is {status}, not {expected.status}")
    if expected.code is not None and expected.code not in outcome.codes:
        found.append(f"no finding {expected.code} among {', '.join(sorted(outcome.codes))}")
    if outcome.attempt["accepted"] is not (expected.exit_code == 0):
        found.append("the archive contradicts the exit code")
    return found


@dataclass(frozen=True, kw_only=True)
class Alone:
    """One try after waiting for quiet: what came of it, how busy others were before and meanwhile."""

    outcome: Outcome
    before: Watched
    meanwhile: Watched

    @property
    def quiet(self) -> bool:
        """Whether the machine was quiet: then the outcome counts, whatever it is."""
        return self.before.quiet and self.meanwhile.quiet


@dataclass(frozen=True, kw_only=True)
class Settled:
    """What all tries together say: where the verdict is another one, or why that cannot be told."""

    differences: tuple[str, ...] = ()
    undecided: str | None = None


def settle(expected: Expectation, first: Outcome, again: Callable[[], Alone]) -> Settled:
    """Judge a member by its first try and, where that may have been the machine's load, by tries alone.

    A quiet machine's word is the last one. Only a trick that went unseen is tried again: an honest member
    that was refused, or a fault of mini-kv, is what it is.
    """
    if not _load_can_explain(expected, first):
        return Settled(differences=tuple(differences(expected, first)))
    tries: list[Alone] = []
    while len(tries) < TRIES_ALONE:
        tries.append(again())
        if tries[-1].quiet or not _load_can_explain(expected, tries[-1].outcome):
            return Settled(differences=tuple(differences(expected, tries[-1].outcome)))
    last = tries[-1]
    share = max(last.before.share, last.meanwhile.share)
    return Settled(
        undecided=f"could not be decided: the machine was busy (load {last.meanwhile.load:.1f}; others took "
        f"{share:.0%} of its processors' time)"
    )


# Accepted, and accepted but for times that are not stable.
_UNSEEN_EXIT_CODES = (0, 5)


def _load_can_explain(expected: Expectation, outcome: Outcome) -> bool:
    """Say whether the verdict is a wrong one, and one that a trick gets which a busy machine has hidden."""
    return (
        expected.timed
        and bool(differences(expected, outcome))
        and outcome.exit_code in (*_UNSEEN_EXIT_CODES, expected.exit_code)
    )


def run_alone(expected: Expectation, archive: Path) -> Alone:
    """Wait for a quiet machine, verify the member, and watch what others do meanwhile."""
    before = wait_for_quiet(WAIT_FOR_QUIET_S)
    found: list[Outcome] = []
    meanwhile = watched(lambda: found.append(run_member(expected, archive)))
    return Alone(outcome=found[0], before=before, meanwhile=meanwhile)


def _unsteady_clock(expected: Expectation, status: str, outcome: Outcome) -> bool:
    # A busy machine's times may be unstable, which is no verdict on the candidate.
    return (
        expected.axis == "timing"
        and expected.status == "PASS"
        and ((status, outcome.axis("timing")[1]) == ("UNVERIFIED", "UNSTABLE_ON_CPU"))
    )


def fingerprint(folder: Path) -> str:
    """Return a hash of every file's name and bytes below a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(folder).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def leftovers() -> list[str]:
    """Return what an escaped member would have left in the project."""
    return [str(path) for name in GUARDED for path in [ROOT / name / "zoo_was_here"] if path.exists()]


def table(all_members: tuple[Expectation, ...]) -> str:
    """Return the zoo as Markdown for docs/trust.md: what is caught, honest twins, what is not caught."""
    caught = [one for one in all_members if one.kind == "broken" and not one.known_undetected]
    twins = [one for one in all_members if one.kind == "twin"]
    missed = [one for one in all_members if one.known_undetected]
    rows = [
        "| class | member | how it works | axis, finding, exit code | what catches it |",
        "|---|---|---|---|---|",
    ]
    for one in sorted(caught, key=lambda each: (each.group, each.name)):
        verdict = f"{one.axis}, `{one.code}`, {one.exit_code}"
        rows.append(f"| {one.group} | `{one.name}`{_on(one)} | {one.works} | {verdict} | {one.caught_by} |")
    rows += [
        "",
        "Honest twins look suspicious and must be accepted:",
        "",
        "| member | how it works |",
        "|---|---|",
    ]
    rows += [f"| `{one.name}`{_on(one)} | {one.works} |" for one in twins]
    rows += ["", "Known and not caught; each is accepted today, and counted nowhere:", ""]
    rows += ["| member | how it works | why |", "|---|---|---|"]
    rows += [f"| `{one.name}`{_on(one)} | {one.works} | {one.caught_by} |" for one in missed]
    return "\n".join(rows) + "\n"


def _on(one: Expectation) -> str:
    return " (GPU)" if one.device == "cuda" else ""


def write_table(page: Path) -> None:
    """Put the table into the page, between its marks."""
    text = page.read_text("utf-8")
    begin, end = "<!-- zoo: begin -->\n", "<!-- zoo: end -->\n"
    head, _, rest = text.partition(begin)
    page.write_text(head + begin + table(members()) + end + rest.partition(end)[2], "utf-8")


def run_all(device: str, report: Path, jobs: int, names: tuple[str, ...] = ()) -> int:
    """Verify every member for a device and write what each got; return how many got another verdict.

    ``jobs`` members at once, but those with times and hanging ones alone: neither others' load nor others'
    kernels may decide their verdict. A member that needs more GPUs than there are is left out.
    """
    there = len(glob.glob("/dev/nvidia[0-9]*")) if device == "cuda" else 1
    chosen = [one for one in members() if one.device == device and (not names or one.name in names)]
    chosen = [one for one in chosen if one.gpus <= there]
    alone = [
        one
        for one in chosen
        if one.benchmark or one.timed or one.code == "TIMEOUT" or one.stated_card == "large"
    ]
    results: list[dict[str, Any]] = []

    def keep(found: dict[str, Any]) -> None:
        results.append(found)
        results.sort(key=lambda each: str(each["name"]))
        report.write_text(json.dumps(results, indent=2) + "\n", "utf-8")
        verdict = "; ".join(found["differences"]) or found.get("undecided") or "as expected"
        line = f"{found['name']:<32} {found.get('elapsed_s', 0.0):6.1f} s  {verdict}"
        sys.stderr.write(f"{line}\n")

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        for found in pool.map(_run_one, [one for one in chosen if one not in alone]):
            keep(found)
    for one in alone:
        keep(_run_one(one))
    return sum(bool(result["differences"]) for result in results)


def _run_one(one: Expectation) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            outcome = run_member(one, Path(folder) / "archive")
            archives = (Path(folder) / f"alone-{number}" for number in range(TRIES_ALONE))
            settled = settle(one, outcome, lambda: run_alone(one, next(archives)))
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return {"name": one.name, "differences": [str(error)[-2000:]]}
    return {
        "name": one.name,
        "differences": list(settled.differences),
        **({"undecided": settled.undecided} if settled.undecided else {}),
        "exit_code": outcome.exit_code,
        "axes": {axis["name"]: [axis["status"], axis["code"]] for axis in outcome.attempt["axes"]},
        "codes": sorted(outcome.codes),
        "elapsed_s": round(outcome.elapsed_s, 2),
    }


def main() -> int:
    """Run members (``--run DEVICE REPORT [--jobs N] [NAME ...]``), or write the table of docs/trust.md."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--run", nargs=2, metavar=("DEVICE", "REPORT"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    if arguments.run is None:
        write_table(ROOT / "docs" / "trust.md")
        return 0
    device, report = arguments.run
    return 1 if run_all(device, Path(report), arguments.jobs, tuple(arguments.names)) else 0


if __name__ == "__main__":
    sys.exit(main())
