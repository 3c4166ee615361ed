"""What a candidate changed in its process: what is a fault, what a remark, and what of a flood is shown."""

from __future__ import annotations

from mini_kv.core.records.correctness import StateChange
from mini_kv.core.rules.process_changes import MAX_CHANGES, compare_states, judge_changes


def test_a_fact_that_came_went_or_differs_is_a_change_and_no_other_is() -> None:
    found = compare_states(
        {"a.went": "1", "b.same": "1", "c.differs": "1"}, {"b.same": "1", "c.differs": "2", "d": "3"}
    )
    assert [(one.name, one.before, one.after, one.remark) for one in found] == [
        ("a.went", "1", None, False),
        ("c.differs", "1", "2", False),
        ("d", None, "3", False),
    ]


def test_threads_files_and_libraries_are_remarks_and_come_after_the_faults() -> None:
    after = {
        "descriptors.4": "x",
        "libraries.y": "x",
        "threads.1": "x",
        "torch.flag": "x",
        "thread.pool": "x",
    }
    found = compare_states({}, after)
    assert [(one.name, one.remark) for one in found] == [
        ("thread.pool", False),
        ("torch.flag", False),
        ("descriptors.4", True),
        ("libraries.y", True),
        ("threads.1", True),
    ]
    finding = judge_changes(found)
    assert finding is not None
    assert finding.evidence == ("thread.pool", "torch.flag")


def test_remarks_alone_are_no_fault() -> None:
    assert judge_changes(compare_states({}, {"threads.1": "x"})) is None
    assert judge_changes(()) is None


def change(number: int) -> StateChange:
    return StateChange(name=f"f{number}", before=None, after=str(number), remark=False)


def test_five_changes_are_shown_and_the_others_counted() -> None:
    five = judge_changes([change(number) for number in range(5)])
    seven = judge_changes([change(number) for number in range(7)])
    assert five is not None and seven is not None
    assert five.message.endswith("f3 was absent, is 3; f4 was absent, is 4")
    assert seven.message.endswith("f4 was absent, is 4; and 2 more")
    assert "f5 was" not in seven.message
    assert len(seven.evidence) == 7


def test_what_went_is_told_as_gone() -> None:
    gone = judge_changes([StateChange(name="f", before="1", after=None, remark=False)])
    assert gone is not None
    assert gone.code == "GLOBAL_STATE_CHANGED"
    assert gone.message.endswith("its process differs: f was 1, is gone")


def test_a_flood_of_changes_and_long_texts_are_bounded() -> None:
    long = "x" * 300
    after = {f"torch.{number:03}": long for number in range(MAX_CHANGES + 1)} | {long: long}
    found = compare_states({long: "y" * 300}, after)
    assert (len(found), MAX_CHANGES) == (200, 200)
    assert max(len(one.name) for one in found) <= 200
    assert {len(one.after or "") for one in found} == {200}
    (changed,) = compare_states({long: "y" * 300}, {long: long})
    assert (len(changed.name), changed.before, changed.after) == (200, "y" * 200, "x" * 200)
