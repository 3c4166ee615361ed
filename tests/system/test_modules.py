"""Modules are found and read as files: what a card names is looked for without importing anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mini_kv.system.modules import ModuleMissing, defined_names, module_file

SOURCE = """\
import os, sys as system
from pathlib import Path as P
try:
    import absent
except ImportError:
    absent = None
if True:
    def inside(): ...
else:
    other: int = 1
class Kind:
    def method(self): hidden = 1
async def later(): ...
first = second = lambda: 0
(third, fourth), *rest = (1, 2), 3
with open("x") as handle:
    pass
match 1:
    case 1:
        matched = 2
for turn in ():
    pass
"""
NAMES = "P absent inside other Kind later first second third fourth rest handle matched turn"


def test_whatever_stands_at_the_top_of_a_module_is_defined(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    names = defined_names(path)
    assert names is not None and set(NAMES.split()) <= names
    assert not {"method", "hidden", "self", "os", "system", "open"} & names


@pytest.mark.parametrize(
    "source",
    [
        "from os.path import *",
        "globals()['reference'] = None",
        "def __getattr__(name): ...",
        "import sys\nsetattr(sys.modules[__name__], 'reference', 1)",
        "exec('reference = 1')",
        "x = 1\0",
        "x = " + "(" * 500,
    ],
)
def test_a_module_that_may_define_any_name_is_not_held_to_its_source(tmp_path: Path, source: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    try:
        assert defined_names(path) is None
    except SyntaxError:
        assert source.startswith("x = ")


def test_modules_are_found_in_packages_that_are_never_imported(tmp_path: Path) -> None:
    for name in ("whole/__init__.py", "whole/part.py", "loose/deep/part.py", "plain.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("raise SystemExit('imported')")
    search = (str(tmp_path), *sys.path)
    assert module_file("plain", search) == tmp_path / "plain.py"
    assert module_file("whole", search) == tmp_path / "whole/__init__.py"
    assert module_file("whole.part", search) == tmp_path / "whole/part.py"
    assert module_file("loose.deep.part", search) == tmp_path / "loose/deep/part.py"
    assert module_file("sys", search) is None
    assert module_file("json.decoder", search) is not None
    for name, missing in (("absent", "absent"), ("whole.x.y", "whole.x"), ("plain.x", "plain.x")):
        with pytest.raises(ModuleMissing, match=f"^{missing}$"):
            module_file(name, search)


def test_a_module_of_an_editable_installation_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finder:
        @classmethod
        def find_spec(cls, name: str, path: object, target: object = None) -> object:
            return cls if name == "linked_from_elsewhere" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert module_file("linked_from_elsewhere.sub", (str(tmp_path),)) is None
