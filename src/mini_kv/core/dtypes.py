"""The dtypes that mini-kv knows: the one table of them.

No torch here. Workers and references look a torch dtype up by its name, which is torch's own.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

# The dtypes that cards and manifests may name. Results may also have one of the others.
DTypeName = Literal["float16", "bfloat16", "float32", "float64", "int32", "int64"]
OtherDTypeName = Literal["int8", "uint8", "int16", "bool"]
DTypeKind = Literal["floating", "complex", "integer", "bool"]


@dataclass(frozen=True, kw_only=True)
class DType:
    """One dtype: bytes an element, kind, and the narrower dtype in which a silent loss would show, if any."""

    size_bytes: int
    kind: DTypeKind
    narrower: DTypeName | None = None


DTYPES: Mapping[DTypeName | OtherDTypeName, DType] = types.MappingProxyType(
    {
        "float16": DType(size_bytes=2, kind="floating"),
        "bfloat16": DType(size_bytes=2, kind="floating"),
        "float32": DType(size_bytes=4, kind="floating", narrower="float16"),
        "float64": DType(size_bytes=8, kind="floating", narrower="float32"),
        "int8": DType(size_bytes=1, kind="integer"),
        "uint8": DType(size_bytes=1, kind="integer"),
        "int16": DType(size_bytes=2, kind="integer"),
        "int32": DType(size_bytes=4, kind="integer"),
        "int64": DType(size_bytes=8, kind="integer"),
        "bool": DType(size_bytes=1, kind="bool"),
    }
)

CARD_DTYPES: tuple[DTypeName, ...] = get_args(DTypeName)
FLOATING: tuple[str, ...] = tuple(name for name, dtype in DTYPES.items() if dtype.kind == "floating")
# Names come from other processes as well, so these take any text.
ITEM_SIZE_BYTES: Mapping[str, int] = types.MappingProxyType(
    {name: dtype.size_bytes for name, dtype in DTYPES.items()}
)
NARROWER: Mapping[str, DTypeName] = types.MappingProxyType(
    {name: dtype.narrower for name, dtype in DTYPES.items() if dtype.narrower is not None}
)
