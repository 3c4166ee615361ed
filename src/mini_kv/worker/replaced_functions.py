"""Functions, classes and methods that are other objects than before: what was replaced under everyone's feet.

New names are not counted: importing a package adds many.
"""

from __future__ import annotations

import builtins
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)

import torch
import torch._ops
import torch.library
import torch.nn.functional

_CODE = (
    FunctionType,
    BuiltinFunctionType,
    MethodDescriptorType,
    WrapperDescriptorType,
    GetSetDescriptorType,
    staticmethod,
    classmethod,
    property,
    type,
)
_MODULES: tuple[ModuleType, ...] = (
    builtins,
    math,
    os,
    time,
    torch,
    torch.autograd,
    torch.cuda,
    torch.library,
    torch.nn.functional,
)
_CLASSES: tuple[type, ...] = (torch.Tensor, torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_OWN = "mini_kv."
_TORCH = f"{os.path.dirname(torch.__file__)}{os.sep}"


def code_here() -> dict[str, object]:
    """Return the functions, classes and methods of Python, of torch and of the worker itself, by name.

    Those that stand where all of the process finds them. An address would be another's after a while.
    """
    return {
        f"{place}.{name}": value
        for place, names in _places()
        for name, value in names.items()
        if isinstance(value, _CODE)
    }


def _places() -> Iterator[tuple[str, Mapping[str, object]]]:
    own = [module for name, module in sorted(sys.modules.items()) if name.startswith(_OWN)]
    for module in (*_MODULES, *own):
        yield module.__name__, dict(vars(module))
    for each in _CLASSES:
        yield f"{each.__module__}.{each.__qualname__}", dict(vars(each))
    for module in own:
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__ == module.__name__:
                yield f"{module.__name__}.{value.__qualname__}", dict(vars(value))


def replaced_since(before: Mapping[str, object]) -> dict[str, str]:
    """Return the names whose object is another one now, or gone, each with what stands there.

    What torch replaced by code of its own is none of these: it does when it is first asked to compile.
    """
    now = code_here()
    return {
        name: _described(now.get(name))
        for name, value in before.items()
        if now.get(name) is not value and not _of_torch(now.get(name))
    }


def _of_torch(value: object) -> bool:
    return isinstance(value, FunctionType) and value.__code__.co_filename.startswith(_TORCH)


def _described(value: object) -> str:
    if isinstance(value, FunctionType):
        return f"a function of {value.__code__.co_filename}, line {value.__code__.co_firstlineno}"
    return "gone or no function" if value is None else f"another {type(value).__name__}"
