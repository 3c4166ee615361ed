"""Kernels run on the host, compiled by g++: every element is where it belongs."""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/host_cuda"
KERNEL = ROOT / "candidates/fused_bias_relu/v1_vectorized"
RMSNORM = ROOT / "candidates/rmsnorm/v2_vectorized"
LAUNCH = re.compile(r"(\w+)(<[^<>;]*>)?\s*<<<(.*?)>>>\((.*?)\);", re.DOTALL)


def launched_on_the_host(source: str, emulate: str = "emulate") -> tuple[str, int]:
    """Return CUDA source with its launches as calls of ``emulate``, and how many there were."""

    def call(found: re.Match[str]) -> str:
        name, arguments, configuration, values = found.groups()
        return f'{emulate}("{name}", [&] {{ {name}{arguments or ""}({values}); }}, {configuration});'

    return LAUNCH.subn(call, source)


def compiled_for_the_host(main: str, folder: Path, *flags: str) -> str:
    """Compile a fixture's main with what lies in ``folder``, bounds and alignment watched."""
    program = folder / "program"
    watched = ("-fsanitize=address,alignment", "-fno-sanitize-recover=alignment")
    common = ("-std=c++17", "-O1", *watched, "-Wno-unknown-pragmas", "-I", str(folder), "-I", str(FIXTURES))
    command = ["g++", *common, *flags, "-o", str(program), str(FIXTURES / main)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return str(program)


def run_on_the_host(source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Compile and run bias_relu's kernels; launches are named in what is printed."""
    text, count = launched_on_the_host(source)
    assert count == 3
    (folder / "kernel.cpp").write_text(text)
    program = compiled_for_the_host("bias_relu.cpp", folder, "-I", str(KERNEL))
    return subprocess.run([program], capture_output=True, text=True, check=False)


def rmsnorm_on_the_host(folder: Path, right: str = "", wrong: str = "") -> str:
    """Compile rmsnorm's kernels, the text ``right``, which stands once, replaced; return the program."""
    sources = {
        path.name: path.read_text() for path in RMSNORM.iterdir() if path.suffix in (".cu", ".cuh", ".h")
    }
    assert not right or sum(text.count(right) for text in sources.values()) == 1
    launches = 0
    for name, source in sources.items():
        text, count = launched_on_the_host(
            source.replace(right, wrong) if right else source, "emulate_waiting"
        )
        launches += count
        text = text.replace("extern __shared__ uint4 staged[];", "uint4* const staged = host_shared;")
        (folder / name.replace(".cu", ".cpp" if name.endswith(".cu") else ".cu")).write_text(text)
    assert launches == 4
    return compiled_for_the_host("rmsnorm.cpp", folder, "-pthread")


@pytest.mark.slow
def test_bias_relu_finds_every_column_whatever_the_row_length_and_the_alignment(tmp_path: Path) -> None:
    done = run_on_the_host((KERNEL / "kernel.cu").read_text(), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    launches = dict(line.split() for line in done.stdout.splitlines())
    assert set(launches) == {
        "bias_relu_elements_kernel", "bias_relu_flat_kernel", "bias_relu_wrapped_kernel"
    }  # fmt: skip
    assert all(int(times) > 500 for times in launches.values()), launches


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("bias[wrapped(column + i, hidden)]", "bias[column + i]"),
        ("if (begin + 2 * kLanes <= in_packs)", "if (begin + 2 * kLanes <= in_packs + kLanes)"),
        ("cut_out(packs[0], packs[1], within * sizeof(T))", "cut_out(packs[0], packs[1], within)"),
        ("bytes & 8 ? word[i + 2] : word[i]", "bytes & 8 ? word[i + 1] : word[i]"),
        ("const unsigned bits = bytes % 4 * 8;", "const unsigned bits = 0;"),
        ("is_aligned(bias) ? hidden.value : 0", "hidden.value"),
        ("if (first < rest)", "if (first + 1 < rest)"),
        ("call.hidden < kLanes ||", "call.hidden + 1 < kLanes ||"),
        ("hidden.remainder(p * kLanes)", "hidden.remainder(p)"),
    ],
)
def test_the_run_on_the_host_finds_an_index_that_is_off(right: str, wrong: str, tmp_path: Path) -> None:
    source = (KERNEL / "kernel.cu").read_text()
    assert source.count(right) == 1
    assert run_on_the_host(source.replace(right, wrong), tmp_path).returncode != 0


def forms(program: str) -> dict[tuple[str, int, int], tuple[str, int, int, int]]:
    """Return kernel, threads a block, blocks and bytes of shared memory by dtype, units a row and rows."""
    lines = subprocess.run([program, "forms"], capture_output=True, text=True, check=True).stdout.splitlines()
    found = {}
    for line in lines:
        dtype, units, rows, kernel, threads, blocks, shared = line.split()
        name = kernel.removeprefix("rmsnorm_").removesuffix("_kernel")
        found[dtype, int(units), int(rows)] = (name, int(threads), int(blocks), int(shared))
    return found


@pytest.mark.slow
def test_every_row_of_rmsnorm_goes_to_its_form(tmp_path: Path) -> None:
    found = forms(rmsnorm_on_the_host(tmp_path))
    many = {units: (64 << 20) // (units * 16) + 1 for _, units, _ in found}
    for dtype in ("f16", "bf16", "f32"):
        pick = functools.partial(lambda dtype, units, rows: found[dtype, units, rows], dtype)
        assert pick(512, 1000) == ("rows", 512, 500, 0)
        assert pick(512, many[512]) == ("rows", 512, -(-many[512] // 4), 0)
        assert pick(640, 3) == ("rows", 160, 2, 0)
        for units in (768, 896, 1024, 1536, 2048):
            # Two units a thread, two rows a block, the last of an odd number alone in its block.
            for rows in (1, 3, 1000):
                assert pick(units, rows) == ("staged", units // 2, (rows + 1) // 2, 2 * units * 16)
            assert pick(units, many[units])[0] == "rows"
        for units in (2049, 8192):
            assert pick(units, 1000) == ("held", 1024 if units > 4096 else 544, 1000, 0)
        assert pick(8193, 1000)[:2] == ("streamed", 1024)
        longest = pick(4096, 1000)
        assert longest == (("staged", 1024, 1000, 65536) if dtype == "f32" else ("held", 1024, 1000, 0))
        assert pick(4096, many[4096])[0] == "held"
        # Row numbers are ints in the exact forms: more rows than those hold go to the forms that walk.
        assert {pick(units, 2**31 - 1)[0] for units in (96, 512, 1024, 4096)} == {"held"}
    assert {form[0] for key, form in found.items() if key[0] == "f64"} == {"held", "streamed"}


@pytest.mark.slow
def test_rmsnorm_reads_and_writes_every_unit_of_every_row_once(tmp_path: Path) -> None:
    program = rmsnorm_on_the_host(tmp_path)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} == {
        f"rmsnorm_{name}_kernel" for name in ("rows", "staged", "held", "streamed")
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("start_copy_once(staged + r * kWidth + at,", "start_copy_once(staged + at,"),
        ("squares_of<U>(staged[r * kWidth + t + k * kThreads])", "squares_of<U>(staged[t + k * kThreads])"),
        ("return r == 0 || first + r < rows;", "return true;"),
        ("constexpr int kBytes = kRows * kThreads", "constexpr int kBytes = kThreads"),
        ("if (kWarps % kLanesPerRow == 0 || from < kWarps)", "if (from + 1 < kWarps)"),
    ],
)
def test_the_run_of_rmsnorm_on_the_host_finds_what_is_off(right: str, wrong: str, tmp_path: Path) -> None:
    program = rmsnorm_on_the_host(tmp_path, right, wrong)
    assert subprocess.run([program], capture_output=True, text=True, check=False).returncode != 0
