"""The self-test ships what it names, and says plainly where a verdict is not the known one."""

from __future__ import annotations

from pathlib import Path

import pytest

from mini_kv.cli import self_test


def told(known: self_test.Known, **changes: str | None) -> self_test.Tested:
    facts: dict[str, str | None] = {"fault": None, "level": "isolated"}
    return self_test.Tested(known=known, **(facts | changes))  # type: ignore[arg-type]


def test_every_known_candidate_is_shipped(project_root: Path) -> None:
    folder = project_root / "src" / "mini_kv" / "self_test"
    shipped = {path.parent.name for path in folder.glob("*/candidate.yaml")}
    assert shipped == {known.name for known in self_test.KNOWN}
    assert (folder / "card.yaml").is_file()


def test_one_wrong_verdict_takes_the_trust_from_all() -> None:
    honest, *others = self_test.KNOWN
    good = self_test.render(tuple(map(told, self_test.KNOWN)))
    assert good.endswith("at isolation level: isolated.")
    bad = self_test.render((told(honest, fault="exit code 4, not 0"), *map(told, others)))
    assert "WRONG    sequential_sum" in bad
    assert "cannot be trusted here yet" in bad


def test_candidate_without_an_archive_has_no_verdict(tmp_path: Path) -> None:
    result = self_test._told(self_test.KNOWN[0], 0, tmp_path)
    assert result.fault == "no verdict: exit code 0"


@pytest.mark.slow
def test_known_verdicts_hold_on_this_machine() -> None:
    assert [one for one in self_test.self_test() if one.fault] == []
