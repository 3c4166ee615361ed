"""Do the functions that a card names exist? Told from the modules' files: nothing of them is run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from mini_kv.core.records.card import TaskCard
from mini_kv.system.modules import ModuleMissing, defined_names, module_file
from mini_kv.task_card.structure import Finding
from mini_kv.task_card.wording import choice, found_text, suggestion

MAX_LOOKED_AT = 200


def reference_findings(card: TaskCard, root: Path, search: Sequence[str]) -> Iterator[Finding]:
    """Yield what is wrong with the functions that a card names; ``search`` is what workers import from."""
    for key, text in (("reference", card.reference), ("input_factory", card.input_factory)):
        fault = _fault(text, root, tuple(search))
        if fault is not None:
            yield (key,), f"found {found_text(text)}, {fault}"


def _fault(text: str, root: Path, search: tuple[str, ...]) -> str | None:
    module, _, function = text.partition(":")
    try:
        path = module_file(module, search)
        names = defined_names(path) if path is not None else None
    except ModuleMissing as missing:
        near = suggestion(module, [one.stem for one in sorted(root.glob("*.py"))[:MAX_LOOKED_AT]])
        first = str(missing).partition(".")[0]
        return (
            f"and there is no module {str(missing)!r}; allowed: a module that is installed or lies in the "
            f"project's folder, as {first}.py would{near}"
        )
    except SyntaxError as error:
        return f"whose file cannot be parsed (line {error.lineno}); allowed: a module of Python"
    if names is None or function in names or path is None:
        return None
    functions = [name for name in sorted(names) if not name.startswith("_")]
    return f"which {path.name} does not define; allowed: {choice(functions)}{suggestion(function, functions)}"
