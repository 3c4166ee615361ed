"""Facts come out of a raw page exactly or not at all, and only like is compared with like."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_kv.core.errors import ConfigurationError
from mini_kv.core.records.profile import KernelFacts, Profile
from mini_kv.core.records.results import Finding, Status
from mini_kv.profiling.analysis import analyse, compare_profiles
from mini_kv.profiling.analysis.facts import bare_function, is_wanted
from mini_kv.profiling.analysis.raw_page import MalformedPage, parse_raw_page
from mini_kv.profiling.analysis.units import Dimension, convert, number
from profile_factory import BEFORE, profile

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/ncu"
V1 = (FIXTURES / "rmsnorm_v1.csv").read_text()
V2 = (FIXTURES / "rmsnorm_v2.csv").read_text()
V1_REGEX = "rmsnorm_block_kernel"


def facts(text: str, regex: str) -> KernelFacts:
    found = analyse(text, regex)
    assert isinstance(found, KernelFacts), found
    return found


def failure(text: str, regex: str = V1_REGEX) -> Finding:
    found = analyse(text, regex)
    assert isinstance(found, Finding), found
    return found


def edited(text: str, column: str, value: str | None, unit: str | None = None) -> str:
    """Return the page with one cell changed, or with the column taken out."""
    rows = list(csv.reader(io.StringIO(text)))
    place = rows[0].index(column)
    for number_of_row, row in enumerate(rows):
        if value is None:
            del row[place]
        elif number_of_row >= 2:
            row[place] = value
        elif number_of_row == 1 and unit is not None:
            row[place] = unit
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return out.getvalue()


# --------------------------------------------------------------------------- units


@pytest.mark.parametrize(
    ("text", "unit", "dimension", "value"),
    [
        ("7136", "nsecond", "time_us", 7.136),
        ("7.14", "usecond", "time_us", 7.14),
        ("7.14", "us", "time_us", 7.14),
        ("2.5", "ms", "time_us", 2500.0),
        ("1", "s", "time_us", 1e6),
        ("8,398,848", "byte", "bytes", 8398848.0),
        ("8.4", "Mbyte", "bytes", 8.4e6),
        ("1.02", "Kbyte/block", "bytes", 1020.0),
        ("1.34", "Tbyte/s", "gb_per_s", 1340.0),
        ("1342891566265.06", "byte/second", "gb_per_s", 1342.89156626506),
        ("3.2", "Gbyte/second", "gb_per_s", 3.2),
        ("12", "byte/ns", "gb_per_s", 12.0),
        ("99.5", "%", "percent", 99.5),
        ("32", "register/thread", "count", 32.0),
        ("1.5", "Ksector", "count", 1500.0),
        ("132", "SM", "count", 132.0),
    ],
)
def test_a_quantity_is_read_in_its_unit(text: str, unit: str, dimension: Dimension, value: float) -> None:
    found = convert(text, unit, dimension)
    assert found is not None
    assert math.isclose(found, value, rel_tol=1e-12)


@pytest.mark.parametrize(
    ("text", "unit", "dimension"),
    [
        ("1", "fortnight", "time_us"),
        ("1", "", "time_us"),
        ("1", "hz", "gb_per_s"),
        ("1", "byte", "gb_per_s"),
        ("1", "Kibyte", "bytes"),
        ("1", "byte/second", "bytes"),
        ("1", "inst", "percent"),
        ("n/a", "%", "percent"),
        ("nan", "%", "percent"),
        ("inf", "nsecond", "time_us"),
        ("1.234,5", "byte", "bytes"),
        ("1,23", "byte", "bytes"),
        ("", "byte", "bytes"),
    ],
)
def test_what_is_no_such_quantity_is_never_guessed_at(text: str, unit: str, dimension: Dimension) -> None:
    assert convert(text, unit, dimension) is None


@given(st.text(max_size=20))
def test_a_number_is_finite_or_none(text: str) -> None:
    value = number(text)
    assert value is None or math.isfinite(value)


# --------------------------------------------------------------------------- the page


def test_facts_are_read_from_the_one_kernel() -> None:
    found = facts(V1, V1_REGEX)
    assert (found.grid, found.block) == ((1024, 1, 1), (256, 1, 1))
    assert found.function == "rmsnorm_block_kernel"
    assert found.compute_capability == "9.0"
    assert (found.registers_per_thread, found.static_shared_bytes, found.dynamic_shared_bytes) == (
        32,
        1024,
        0,
    )
    assert (found.theoretical_occupancy_percent, found.achieved_occupancy_percent) == (100.0, 81.273941)
    assert found.waves_per_multiprocessor == 0.969697
    assert math.isclose(found.replay_duration_us, 7.968)
    assert math.isclose(found.replay_dram_gb_per_s, 1342.89156626506)
    assert (found.dram_read_bytes, found.dram_write_bytes) == (8398848, 2301184)
    assert (found.load_sectors_per_request, found.store_sectors_per_request) == (4.0, 4.0)
    assert (found.local_load_sectors, found.local_store_sectors) == (0, 0)
    assert (found.l1_hit_percent, found.l2_hit_percent) == (33.412098, 62.118734)


def test_stalls_are_ordered_and_issuing_is_none() -> None:
    names = [stall.name for stall in facts(V1, V1_REGEX).stalls]
    assert names[:3] == ["long_scoreboard", "barrier", "wait"]
    assert "selected" not in names and "not_selected" in names


def test_scaled_units_and_grouped_thousands_give_the_same_facts_within_their_digits() -> None:
    exact = facts(V1, V1_REGEX)
    scaled = facts((FIXTURES / "scaled_units.csv").read_text(), V1_REGEX)
    for name in ("replay_duration_us", "replay_dram_gb_per_s", "dram_read_bytes", "static_shared_bytes"):
        assert math.isclose(getattr(scaled, name), getattr(exact, name), rel_tol=5e-3), name
    assert scaled.load_sectors_per_request == exact.load_sectors_per_request


def test_words_of_the_tool_before_the_table_are_passed_over() -> None:
    assert facts("==PROF== Connected to process 1\n==WARNING== slow\n\n" + V1, V1_REGEX) == facts(
        V1, V1_REGEX
    )
    assert facts("\ufeff" + V1, V1_REGEX) == facts(V1, V1_REGEX)
    assert facts(V1.replace("\n", "\r\n"), V1_REGEX) == facts(V1, V1_REGEX)


def test_extents_come_from_metrics_where_the_columns_are_missing() -> None:
    text = edited(V1, "Grid Size", None)
    assert failure(text).code == "METRIC_MISSING"
    rows = list(csv.reader(io.StringIO(text)))
    for axis, value in zip("xyz", ("1024", "1", "1"), strict=True):
        rows[0].append(f"launch__grid_dim_{axis}")
        rows[1].append("")
        rows[2].append(value)
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    assert facts(out.getvalue(), V1_REGEX).grid == (1024, 1, 1)


@pytest.mark.parametrize(
    "column",
    [
        "launch__registers_per_thread",
        "gpu__time_duration.sum",
        "sm__warps_active.avg.pct_of_peak_sustained_active",
        "dram__bytes.sum.per_second",
        "lts__t_sector_hit_rate.pct",
    ],
)
@pytest.mark.parametrize("value", [None, "", "n/a", "nan", "-1"])
def test_a_required_metric_that_is_missing_or_no_number_is_named(column: str, value: str | None) -> None:
    found = failure(edited(V1, column, value))
    assert found.code == "METRIC_MISSING"
    assert column in found.message
    assert found.evidence[0].startswith(column)


def test_a_metric_in_a_strange_unit_is_missing() -> None:
    found = failure(edited(V1, "gpu__time_duration.sum", "7968", "lightyear"))
    assert (found.code, "lightyear" in found.evidence[0]) == ("METRIC_MISSING", True)


def test_a_page_without_stall_reasons_is_refused() -> None:
    assert failure(V1.replace("issue_stalled_", "issue_other_")).code == "METRIC_MISSING"


def test_metrics_that_not_every_gpu_has_may_be_missing() -> None:
    text = V1
    for column in ("dram__bytes_read.sum", "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"):
        text = edited(text, column, None)
    found = facts(text, V1_REGEX)
    assert (found.dram_read_bytes, found.load_sectors_per_request) == (None, None)


def test_no_kernel_and_several_kernels_are_told_apart() -> None:
    several = failure((FIXTURES / "two_launches.csv").read_text())
    assert (several.code, len(several.evidence)) == ("SEVERAL_KERNELS", 2)
    other = failure((FIXTURES / "other_kernel.csv").read_text())
    assert other.code == "KERNEL_NOT_FOUND"
    assert "vectorized_elementwise_kernel" in other.evidence[0]
    assert failure("\n".join(V1.splitlines()[:2]) + "\n").code == "KERNEL_NOT_FOUND"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "==ERROR== the report is empty\n",
        "Segmentation fault\n",
        "some words\n" + V1,
        V1.splitlines()[0],
        "\n".join([V1.splitlines()[0], V1.splitlines()[2]]),
        V1[: len(V1) // 2],
        V1 + '"1","4711"\n',
        V1.replace('"Kernel Name"', '"Nothing"'),
        V1.replace('"Context"', '"Device"'),
        V1.replace('"void mini', '"void "mini'),
        "\0" * 64,
    ],
)
def test_a_page_that_is_no_whole_table_is_malformed(text: str) -> None:
    assert failure(text).code == "CSV_MALFORMED"


@given(st.text(max_size=300) | st.text(alphabet='ID",Kernel Name\n=0', max_size=80))
def test_no_text_breaks_the_parser(text: str) -> None:
    with contextlib.suppress(MalformedPage):
        assert parse_raw_page(text) is not None


@pytest.mark.parametrize(
    ("kernel", "function"),
    [
        ("add(float *, int)", "add"),
        ("void add<float>(const T1 *, int)", "add"),
        ("void space::(anonymous namespace)::add<float, (int)8>(T1 *)", "add"),
        ("<unnamed>::add(float *)", "add"),
        ("unsigned int space::add(float *)", "add"),
        ("_Z3addPf", "_Z3addPf"),
        # As Nsight Compute prints a kernel of an anonymous namespace with a type taken from an expression.
        ("void unnamed>::add<__half>(const T1 *, long, decltype((widen(T1{}))))", "add"),
        ("void add<f<int>(int), &g<(int)2>>(T1)", "add"),
    ],
)
def test_a_kernel_is_known_by_its_bare_function(kernel: str, function: str) -> None:
    assert bare_function(kernel) == function
    assert is_wanted(kernel, f"^{function}$")
    assert not is_wanted(kernel, "^other$")


# --------------------------------------------------------------------------- comparison


def test_two_profiles_are_compared_metric_by_metric() -> None:
    before = profile("v1", facts=facts(V1, V1_REGEX))
    after = profile("v2", facts=facts(V2, "rmsnorm_(held|streamed)_kernel"))
    comparison = compare_profiles((before, "a" * 64), (after, "b" * 64))
    changes = {change.name: change for change in comparison.metrics}
    assert (changes["threads in a block"].before, changes["threads in a block"].after) == (256.0, 128.0)
    assert changes["registers per thread"].ratio == 62 / 32
    assert changes["DRAM throughput"].unit == "%"
    assert changes["dynamic shared memory"].ratio is None
    assert comparison.stalls[0].name == "long_scoreboard"
    assert comparison.before.profile_sha256 == "a" * 64
    assert "never stand in for benchmark times" in comparison.note
    assert comparison.timed is None


@pytest.mark.parametrize(
    ("field", "value", "noun"),
    [
        ("task_id", "vector_add", "task"),
        ("case_id", "bench_256x4096_f32", "case"),
        ("seed", "0" * 16, "seed"),
        ("suite_sha256", "0" * 64, "suite"),
        ("environment_key", "0" * 64, "environment"),
        ("device", "cpu", "device"),
        ("operator_version", "2.0.0", "operator version"),
    ],
)
def test_profiles_of_different_things_are_refused(field: str, value: str, noun: str) -> None:
    one = profile("v1", facts=facts(V1, V1_REGEX))
    two = msgspec.structs.replace(one, **{field: value})
    with pytest.raises(ConfigurationError, match=f"differ in {noun} ") as caught:
        compare_profiles((one, "a" * 64), (two, "b" * 64))
    assert (caught.value.code, caught.value.exit_code) == ("PROFILES_DIFFER", 2)


@pytest.mark.parametrize(("field", "value"), [("version", "2024.1"), ("cache_control", "none")])
def test_profiles_of_different_profilers_are_refused(field: str, value: str) -> None:
    one = profile("v1", facts=facts(V1, V1_REGEX))
    assert one.profiler is not None
    two = msgspec.structs.replace(one, profiler=msgspec.structs.replace(one.profiler, **{field: value}))
    with pytest.raises(ConfigurationError, match="cannot be compared"):
        compare_profiles((one, "a" * 64), (two, "b" * 64))


def test_a_failed_profile_is_not_compared() -> None:
    good = profile("v1", facts=facts(V1, V1_REGEX))
    bad = msgspec.structs.replace(
        good, status=Status.FAIL, facts=None, failure=Finding(code="SEVERAL_KERNELS", message="...")
    )
    with pytest.raises(ConfigurationError, match="SEVERAL_KERNELS"):
        compare_profiles((good, "a" * 64), (bad, "b" * 64))


def timed_document(before: Profile, after: Profile) -> dict[str, object]:
    def side(one: Profile, p50_us: float) -> dict[str, object]:
        return {
            "candidate_id": one.candidate_id,
            "build_key": one.build_key,
            "source_sha256": one.source_sha256,
            "cases": [{"case_id": "other", "p50_us": 1.0}, {"case_id": one.case_id, "p50_us": p50_us}],
        }

    return {
        "task_id": before.task_id,
        "suite_sha256": before.suite_sha256,
        "environment_key": before.environment_key,
        "sides": [side(after, 8.9), side(before, 11.2)],
    }


def pair() -> tuple[Profile, Profile]:
    before = profile("v1", facts=facts(V1, V1_REGEX))
    return before, profile("v2", facts=facts(V2, "held"))


def compared(document: object) -> None:
    before, after = pair()
    compare_profiles((before, "a" * 64), (after, "b" * 64), (json.dumps(document).encode(), "c" * 64))


def test_benchmark_times_stand_next_to_profiles_that_agree() -> None:
    before, after = pair()
    raw = json.dumps(timed_document(before, after)).encode()
    timed = compare_profiles((before, "a" * 64), (after, "b" * 64), (raw, "c" * 64)).timed
    assert timed is not None
    assert (timed.before.p50_us, timed.after.p50_us) == (11.2, 8.9)
    assert timed.comparison_sha256 == "c" * 64


@pytest.mark.parametrize("field", ["task_id", "suite_sha256", "environment_key"])
def test_a_timed_comparison_of_another_run_is_refused(field: str) -> None:
    document = timed_document(*pair())
    compared(document)
    document[field] = "0" * 64
    with pytest.raises(ConfigurationError, match="timed comparison") as caught:
        compared(document)
    assert (caught.value.code, caught.value.exit_code) == ("COMPARISON_DIFFERS", 2)
    del document[field]
    with pytest.raises(ConfigurationError):
        compared(document)


@pytest.mark.parametrize(
    ("field", "value"),
    [("candidate_id", "v9"), ("build_key", "0" * 64), ("source_sha256", {"kernel.cu": "0" * 64})],
)
def test_a_timed_comparison_of_other_builds_or_sources_is_refused(field: str, value: object) -> None:
    document = timed_document(*pair())
    sides = document["sides"]
    assert isinstance(sides, list)
    sides[0][field] = value
    with pytest.raises(ConfigurationError, match=BEFORE.candidate_id[:1]) as caught:
        compared(document)
    assert caught.value.code == "COMPARISON_DIFFERS"


def test_a_timed_comparison_of_other_cases_is_refused() -> None:
    document = json.loads(json.dumps(timed_document(*pair())).replace(BEFORE.case_id, "another_case"))
    with pytest.raises(ConfigurationError, match="did not time the profiles' case"):
        compared(document)


@pytest.mark.parametrize("raw", [b"", b"[1]", b"not json", b'"text"'])
def test_a_timed_comparison_that_is_none_is_refused(raw: bytes) -> None:
    before, after = pair()
    with pytest.raises(ConfigurationError) as caught:
        compare_profiles((before, "a" * 64), (after, "b" * 64), (raw, "c" * 64))
    assert caught.value.code == "COMPARISON_UNREADABLE"
