"""What a person is told of a candidate that could not be opened: which file, which line, which operators."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from mini_kv.core.rules.registration import NO_FAKE
from mini_kv.worker.contract_checks import dynamic_shapes, fake_results, opcheck, opcheck_layout
from mini_kv.worker.load_faults import operator_names, python_fault, registered_text

# What torch.ops remembers of a library that is gone breaks the next opcheck of the same process.
KEPT: list[torch.library.Library] = []


def library_for_good(namespace: str) -> torch.library.Library:
    KEPT.append(torch.library.Library(namespace, "DEF"))
    return KEPT[-1]


def fault(folder: Path, text: str, helper: str = "") -> str:
    folder.mkdir(exist_ok=True)
    (folder / "sub").mkdir(exist_ok=True)
    (folder / "sub" / "helper.py").write_text(helper)
    path = folder / "registration.py"
    path.write_text(text)
    try:
        runpy.run_path(str(path), run_name="candidate")
    except BaseException as error:  # noqa: BLE001 - whatever the file raises is told
        where, what = python_fault(error, str(path))
        return f"{where}: {what}"
    raise AssertionError("the file raised nothing")


RUN_HELPER = (
    "import runpy\nfrom pathlib import Path\n\nrunpy.run_path(Path(__file__).parent / 'sub' / 'helper.py')"
)
PLACES = {
    "in the file": (
        "\n\nraise LookupError('not today')",
        "",
        "registration.py:3: ",
        "LookupError: not today",
    ),
    "in torch, called by the file": (
        "import torch\n\ntorch.library.register_fake('nobody::nothing')(None)",
        "",
        "registration.py:3: ",
        ": ",
    ),
    "in a file next to it": (
        RUN_HELPER,
        "def f():\n    1 / 0\n\nf()\n",
        "sub/helper.py:2: ",
        "ZeroDivisionError",
    ),
    "in what cannot be parsed": ("x = 1\ndef broken(:\n", "", "registration.py:2: ", "SyntaxError"),
    "in a file next to it that cannot be parsed": (
        RUN_HELPER,
        "\n  x = 1\n",
        "sub/helper.py:2: ",
        "Indentation",
    ),
    "an exit": ("import sys\nsys.exit(0)", "", "registration.py:2: ", "SystemExit: 0"),
    "no word": ("raise ValueError", "", "registration.py:1: ", ": ValueError"),
}


@pytest.mark.parametrize("where", PLACES)
def test_a_python_file_that_failed_was_told_without_file_and_line(tmp_path: Path, where: str) -> None:
    text, helper, place, said = PLACES[where]
    told = fault(tmp_path / "candidate", text, helper)
    assert told.startswith(place)
    assert said in told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ValueError('first\\nsecond')", ": ValueError: first"),
        ("raise ValueError('\\n\\n  late')", ": ValueError: late"),
        ("raise ValueError('a\\x1b[31mred\\x00\\ud800')", "a\\x1b[31mred\\x00\\ud800"),
        ("raise ValueError('x' * 100_000)", "x" * 300 + "..."),
        ("class E(Exception):\n    def __str__(self): raise self\nraise E", ": E"),
        ("class E(Exception):\n    def __str__(self): return 1\nraise E", ": E"),
        (
            (
                "class S(str):\n    def __getitem__(self, _): raise SystemExit\n    splitlines = None\n"
                "class E(Exception):\n    def __str__(self): return S('sly')\nraise E"
            ),
            ": E: sly",
        ),
        (
            (
                "class M(type):\n    __name__ = property(lambda self: 1 / 0)\n"
                "class E(Exception, metaclass=M): pass\nraise E('x')"
            ),
            ": E: x",
        ),
        ("e = SyntaxError('x')\ne.filename, e.lineno = 'no\\0where', 'seven'\nraise e", ": SyntaxError"),
        ("e = SyntaxError('x')\ne.filename, e.lineno = '/etc/passwd', 7\nraise e", "registration.py:3"),
    ],
)
def test_whatever_a_python_file_raises_becomes_one_plain_line(tmp_path: Path, text: str, said: str) -> None:
    told = fault(tmp_path / "candidate", text)
    assert said in told
    assert told.isprintable() and len(told) < 500


def test_a_library_without_the_operator_was_not_told_what_it_registers() -> None:
    before = operator_names()
    missing = "fixture_told::twice"
    assert registered_text(missing, before) == "it registers none at all"
    other, own = library_for_good("fixture_another"), library_for_good("fixture_told")
    other.define("twice(Tensor x) -> Tensor")
    assert "it registers 'fixture_another::twice'" in registered_text(missing, before)
    for name in ("double", "half.out", "half", "third", "fourth", "fifth"):
        own.define(f"{name}(Tensor x) -> Tensor")
    told = registered_text(missing, before)
    names = ("double", "fifth", "fourth", "half", "third")
    assert told.endswith(", ".join(f"'fixture_told::{name}'" for name in names) + " and 1 more")
    own.impl("twice", lambda x: x, "CPU")
    assert "registers kernels for that name, but does not define it" in registered_text(missing, before)


def test_a_missing_fake_kernel_was_not_told_how_to_register_one() -> None:
    library = library_for_good("fixture_without_fake")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    operator = torch.ops.fixture_without_fake.twice.default
    inputs: list[list[object]] = [[torch.ones(3)]]
    told = opcheck(operator, inputs, False)["opcheck.test_faketensor"]
    assert told is not None and told.startswith(f"{NO_FAKE} for 'fixture_without_fake::twice': add ")
    assert "torch.library.register_fake to the candidate's Python file" in told and len(told) < 240
    # One cause, one sentence: the judge tells it once.
    others = opcheck(operator, inputs, False) | opcheck_layout(operator, inputs, False)
    others |= fake_results(operator, inputs, False) | dynamic_shapes(operator, inputs, False)
    assert [name for name, answer in others.items() if answer == told] == [
        "opcheck.test_faketensor",
        "opcheck.test_aot_dispatch_dynamic",
        "fake_results",
        "dynamic_shapes",
    ]
    library.impl("twice", torch.empty_like, "Meta")
    assert opcheck(operator, [[torch.ones(3)]], False)["opcheck.test_faketensor"] is None


def test_a_fake_kernel_that_fails_is_told_in_its_own_words() -> None:
    """Another operator's missing fake kernel, or a fault of the candidate's own, is another cause."""
    library = library_for_good("fixture_fake_fails")
    library.define("twice(Tensor x) -> Tensor")
    library.define("other(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    library.impl("twice", torch.ops.fixture_fake_fails.other, "Meta")
    operator = torch.ops.fixture_fake_fails.twice.default
    told = opcheck(operator, [[torch.ones(3)]], False)["opcheck.test_faketensor"]
    assert told is not None and not told.startswith(NO_FAKE)
