"""Kernels whose threads do not wait for one another run on the host: every element is where it belongs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FIXTURES = Path(__file__).parent / "fixtures/host_cuda"
KERNEL = ROOT / "candidates/fused_bias_relu/v1_vectorized"
LAUNCH = re.compile(r"(\w+)(<[^<>;]*>)?\s*<<<(.*?)>>>\((.*?)\);", re.DOTALL)


def launched_on_the_host(source: str) -> tuple[str, int]:
    """Return CUDA source with its launches as calls of ``emulate``, and how many there were."""

    def call(found: re.Match[str]) -> str:
        name, arguments, configuration, values = found.groups()
        grid, block = configuration.split(",")[:2]
        return f'emulate("{name}", {grid}, {block}, [&] {{ {name}{arguments or ""}({values}); }});'

    return LAUNCH.subn(call, source)


def run_on_the_host(source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Compile and run bias_relu with bounds and alignment watched; launches are named in what is printed."""
    text, count = launched_on_the_host(source)
    assert count == 3
    (folder / "kernel.cpp").write_text(text)
    program = folder / "bias_relu"
    watched = ("-fsanitize=address,alignment", "-fno-sanitize-recover=alignment")
    flags = ("-std=c++17", "-O1", *watched, "-Wno-unknown-pragmas")
    includes = ("-I", str(folder), "-I", str(FIXTURES), "-I", str(KERNEL))
    command = ["g++", *flags, *includes, "-o", str(program), str(FIXTURES / "bias_relu.cpp")]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return subprocess.run([str(program)], capture_output=True, text=True, check=False)


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
