"""Kernels run on the host, compiled by g++: every element is where it belongs."""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path

import pytest

from shared_folders import MadeOnce

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/host_cuda"
KERNEL = ROOT / "candidates/fused_bias_relu/v1_vectorized"
RMSNORM = ROOT / "candidates/rmsnorm/v2_vectorized"
pytestmark = pytest.mark.slow
BIAS_RELU_FAULTS = (
    ("bias[wrapped(column + i, hidden)]", "bias[column + i]"),
    ("begin + 2 * kLanes <= in_packs", "begin + 2 * kLanes <= in_packs + kLanes"),
    ("cut_out(packs[0], packs[1], within * sizeof(T))", "cut_out(packs[0], packs[1], within)"),
    ("bytes & 8 ? word[i + 2] : word[i]", "bytes & 8 ? word[i + 1] : word[i]"),
    ("bytes % 4 * 8", "0"),
    ("is_aligned(bias) ? hidden.value : 0", "hidden.value"),
    ("first < rest", "first + 1 < rest"),
    ("call.hidden < kLanes", "call.hidden + 1 < kLanes"),
    ("hidden.remainder(p * kLanes)", "hidden.remainder(p)"),
)
RMSNORM_FAULTS = (
    ("staged + r * kWidth + at", "staged + at"),
    ("staged[r * kWidth + t + k * kThreads]", "staged[t + k * kThreads]"),
    ("r == 0 || first + r < rows", "true"),
    ("kRows * kThreads * kUnits * kPackBytes", "kThreads * kUnits * kPackBytes"),
    ("kWarps % kLanesPerRow == 0 || from < kWarps", "from + 1 < kWarps"),
    ("__syncthreads();\n    mine = 0", "mine = 0"),
)
LAUNCH = re.compile(r"(\w+)(<[^<>;]*>)?\s*<<<(.*?)>>>\((.*?)\);", re.DOTALL)


def launched_on_the_host(source: str, emulate: str = "emulate") -> tuple[str, int]:
    """Return CUDA source with its launches as calls of ``emulate``, and how many there were."""

    def call(found: re.Match[str]) -> str:
        name, arguments, configuration, values = found.groups()
        return f'{emulate}("{name}", [&] {{ {name}{arguments or ""}({values}); }}, {configuration});'

    return LAUNCH.subn(call, source)


def with_faults(sources: dict[str, str], faults: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Return sources in which the program's first argument chooses a fault: 1 the first, none without it.

    Each is a pair of expressions: the right one, which stands once, and the wrong one.
    """
    sources = dict(sources)
    for number, (right, wrong) in enumerate(faults, start=1):
        (name,) = [name for name, text in sources.items() for _ in range(text.count(right))]
        choice = f"(planted == {number} ? ({{ {wrong}; }}) : ({{ {right}; }}))"
        sources[name] = sources[name].replace(right, choice)
    return sources


def compiled_for_the_host(main: str, folder: Path, *flags: str) -> None:
    """Compile a fixture's main with what lies in ``folder``, bounds and alignment watched.

    Without optimisation: that compiles in a third of the time, and no access is folded away unwatched.
    """
    watched = ("-fsanitize=address,alignment", "-fno-sanitize-recover=alignment")
    common = ("-std=c++17", "-O0", *watched, "-Wno-unknown-pragmas", "-I", str(folder), "-I", str(FIXTURES))
    command = ["g++", *common, *flags, "-o", str(folder / "program"), str(FIXTURES / main)]
    subprocess.run(command, check=True, capture_output=True, text=True)


def compile_bias_relu(folder: Path) -> None:
    folder.mkdir()
    sources = with_faults({"kernel.cpp": (KERNEL / "kernel.cu").read_text()}, BIAS_RELU_FAULTS)
    text, count = launched_on_the_host(sources["kernel.cpp"])
    assert count == 3
    (folder / "kernel.cpp").write_text(text)
    compiled_for_the_host("bias_relu.cpp", folder, "-I", str(KERNEL))


def compile_rmsnorm(folder: Path) -> None:
    folder.mkdir()
    sources = {
        path.name: path.read_text() for path in RMSNORM.iterdir() if path.suffix in (".cu", ".cuh", ".h")
    }
    # What a fault chooses at run time is no constant expression.
    sources["fitting.cuh"] = sources["fitting.cuh"].replace("constexpr int kBytes =", "const int kBytes =")
    launches = 0
    for name, source in with_faults(sources, RMSNORM_FAULTS).items():
        text, count = launched_on_the_host(source, "emulate_waiting")
        launches += count
        text = text.replace("extern __shared__ uint4 staged[];", "uint4* const staged = host_shared;")
        (folder / name.replace(".cu", ".cpp" if name.endswith(".cu") else ".cu")).write_text(text)
    assert launches == 4
    compiled_for_the_host("rmsnorm.cpp", folder)


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


# Compiled once for all tests: the compiler takes far longer than any run.
@pytest.fixture
def bias_relu(made_once: MadeOnce) -> Path:
    return made_once("bias-relu-on-the-host", compile_bias_relu) / "program"


@pytest.fixture
def rmsnorm(made_once: MadeOnce) -> Path:
    return made_once("rmsnorm-on-the-host", compile_rmsnorm) / "program"


def test_bias_relu_finds_every_column_whatever_the_row_length_and_the_alignment(bias_relu: Path) -> None:
    done = run(bias_relu)
    assert done.returncode == 0, done.stdout + done.stderr
    launches = dict(line.split() for line in done.stdout.splitlines())
    assert set(launches) == {
        "bias_relu_elements_kernel", "bias_relu_flat_kernel", "bias_relu_wrapped_kernel"
    }  # fmt: skip
    assert all(int(times) > 500 for times in launches.values()), launches


@pytest.mark.parametrize(("number", "fault"), [*enumerate(BIAS_RELU_FAULTS, start=1)])
def test_the_run_on_the_host_finds_an_index_that_is_off(
    number: int, fault: tuple[str, str], bias_relu: Path
) -> None:
    assert_found(run(bias_relu, str(number)))


def assert_found(done: subprocess.CompletedProcess[str]) -> None:
    """By the program itself or by a sanitizer; anything else would say nothing about the fault."""
    assert done.returncode != 0
    sanitizer = any(words in done.stderr for words in ("ERROR: AddressSanitizer", "runtime error"))
    assert sanitizer or done.stdout, done.stderr


def forms(program: Path) -> dict[tuple[str, int, int], tuple[str, int, int, int]]:
    """Return kernel, threads a block, blocks and bytes of shared memory by dtype, units a row and rows."""
    done = run(program, "forms")
    assert done.returncode == 0, done.stderr
    found = {}
    for line in done.stdout.splitlines():
        dtype, units, rows, kernel, threads, blocks, shared = line.split()
        name = kernel.removeprefix("rmsnorm_").removesuffix("_kernel")
        found[dtype, int(units), int(rows)] = (name, int(threads), int(blocks), int(shared))
    return found


def test_every_row_of_rmsnorm_goes_to_its_form(rmsnorm: Path) -> None:
    found = forms(rmsnorm)
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


def test_rmsnorm_reads_and_writes_every_unit_of_every_row_once(rmsnorm: Path) -> None:
    done = run(rmsnorm)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} == {
        f"rmsnorm_{name}_kernel" for name in ("rows", "staged", "held", "streamed")
    }


@pytest.mark.parametrize(("number", "fault"), [*enumerate(RMSNORM_FAULTS, start=1)])
def test_the_run_of_rmsnorm_on_the_host_finds_what_is_off(
    number: int, fault: tuple[str, str], rmsnorm: Path
) -> None:
    assert_found(run(rmsnorm, str(number)))
