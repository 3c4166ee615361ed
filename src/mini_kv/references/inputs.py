"""Input values and memory layouts shared by the operators' input factories.

A factory is a pure function of ``(params, generator)``: values are always drawn on the CPU and moved
afterwards, so that one seed gives one input on every device.
"""

from __future__ import annotations

import math
import types
from collections.abc import Collection, Mapping

import torch

from mini_kv.core.dtypes import CARD_DTYPES
from mini_kv.core.records.card import ParamValue

TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in CARD_DTYPES}
# Each value class and each memory layout, with what it makes; docs/reference.md prints these.
VALUES: Mapping[str, str] = types.MappingProxyType(
    {
        "normal": "standard normal",
        "zeros": "normal; every second row (of one dimension: element) is 0.0 and -0.0 in turn",
        "tiny": "normal times twice the smallest normal number: subnormals on one side of it",
        "huge": "either sign, up to an eighth of the dtype's largest number, or what the operator can square",
        "signed": "either sign, magnitudes from 0.5 to 2; each 16th element of every second row is -0.0",
        "infinities": "normal; each 7th element of every second row is an infinity, of either sign in turn",
        "nans": "normal; each 7th element of every second row is NaN",
        "integers": "whole numbers from 1 to 8 of either sign: sums of two are exact in every dtype",
        "wide": "normal times a power of ten from -3 to 3",
    }
)
LAYOUTS: Mapping[str, str] = types.MappingProxyType(
    {
        "contiguous": "row-major, from the start of its storage",
        "transposed": "the last two dimensions change places in memory; needs two",
        "expanded": "one row with stride 0 stands for the whole first dimension; needs one",
        "offset": "contiguous, one element into its storage: not on a 16-byte boundary",
        "strided": "stride 2 in the last dimension, NaN in the gaps; needs one",
    }
)

# "huge" leaves room for one addition: two operands of max / 8 cannot overflow. Operators that square
# their input cap it further, at a magnitude whose square a float32 sum can still hold.
HUGE_FRACTION_OF_MAX = 1 / 8
HUGE_SQUARABLE = 1e15
STRIDED_STEP = 2
OFFSET_ELEMENTS = 1


def refuse_unknown(params: Mapping[str, ParamValue], allowed: frozenset[str], operator: str) -> None:
    """Raise ``ValueError`` naming every key of ``params`` that the operator's factory does not know."""
    unknown = sorted(set(params) - allowed)
    if unknown:
        raise ValueError(
            f"{operator} knows no parameter {', '.join(unknown)}; allowed are {', '.join(sorted(allowed))}."
        )


def text_param(params: Mapping[str, ParamValue], key: str, default: str, allowed: Collection[str]) -> str:
    """Return a textual parameter out of a closed list; raises ``ValueError``."""
    value = params.get(key, default)
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{key} is {value!r}; allowed are {', '.join(allowed)}.")
    return value


def dtype_param(params: Mapping[str, ParamValue], key: str, default: str = "float32") -> torch.dtype:
    """Return the torch dtype that a parameter names; raises ``ValueError``."""
    return TORCH_DTYPES[text_param(params, key, default, TORCH_DTYPES)]


def shape_param(
    params: Mapping[str, ParamValue], key: str, default: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Return a shape parameter (a sequence of non-negative integers); raises ``ValueError``."""
    value = params.get(key, default)
    if value is None:
        raise ValueError(f"the parameter {key} is missing: a list of extents is needed.")
    extents = tuple(value) if isinstance(value, tuple | list) else (value,)
    shape = []
    for extent in extents:
        if isinstance(extent, bool) or not isinstance(extent, int) or extent < 0:
            raise ValueError(f"{key} is {value!r}; each extent must be an integer of at least 0.")
        shape.append(extent)
    return tuple(shape)


def float_param(params: Mapping[str, ParamValue], key: str, default: float) -> float:
    """Return a number; ``nan``, ``inf`` and ``-inf`` are written as text, which JSON can carry."""
    value = params.get(key, default)
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key} is {value!r}; a number is needed, or one of nan, inf, -inf as text.")
    return float(value)


def other_device(params: Mapping[str, ParamValue], device: torch.device) -> torch.device:
    """Return the second operand's device: the same, or for ``mismatch`` one that must be refused.

    Next to CUDA tensors that is the CPU. Next to CPU tensors it is ``meta``, the one other device that
    every machine has.
    """
    if text_param(params, "other_device", "same", ("same", "mismatch")) == "same":
        return device
    return torch.device("cpu" if device.type == "cuda" else "meta")


def make_tensor(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    values: str,
    layout: str,
    generator: torch.Generator,
    device: torch.device,
    *,
    huge_cap: float = math.inf,
) -> torch.Tensor:
    """Return a tensor of that shape, dtype, value class and memory layout on ``device``.

    Memory that belongs to the storage but not to the tensor (gaps, a leading offset) holds NaN, so
    that a kernel which reads it is found out.
    """
    base_shape = _expanded_base(shape) if layout == "expanded" else shape
    made = make_values(base_shape, dtype, values, generator, huge_cap=huge_cap)
    if device.type == "meta":
        return torch.empty(shape, dtype=dtype, device=device)
    return _lay_out(made, shape, layout, device)


def make_values(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    values: str,
    generator: torch.Generator,
    *,
    huge_cap: float = math.inf,
) -> torch.Tensor:
    """Return a contiguous CPU tensor holding values of one class (see ``VALUES``)."""
    if not dtype.is_floating_point:
        return torch.randint(1, 9, shape, dtype=dtype, generator=generator)
    drawn_as = torch.float64 if dtype == torch.float64 else torch.float32
    if values == "integers":
        # +-1 ... +-8: sums of two are exact in every dtype, so a dropped or altered term shows whole.
        magnitude = torch.randint(1, 9, shape, generator=generator).to(drawn_as)
        return (magnitude * _random_signs(shape, drawn_as, generator)).to(dtype)
    normal = torch.randn(shape, dtype=drawn_as, generator=generator)
    match values:
        case "normal":
            made = normal
        case "zeros":
            made = _mark(normal, 2, 0, 0.0, -0.0)
        case "infinities":
            made = _mark(normal, 7, 3, math.inf, -math.inf)
        case "nans":
            made = _mark(normal, 7, 3, math.nan, math.nan)
        case "tiny":
            # Both sides of the smallest normal number: subnormals must not be flushed to zero.
            made = normal * (2 * torch.finfo(dtype).tiny)
        case "huge":
            scale = min(torch.finfo(dtype).max * HUGE_FRACTION_OF_MAX, huge_cap)
            made = _signed_magnitudes(shape, drawn_as, generator) * (scale / 2)
        case "signed":
            made = _mark(_signed_magnitudes(shape, drawn_as, generator), 16, 5, -0.0, -0.0)
        case "wide":
            exponents = torch.rand(shape, dtype=drawn_as, generator=generator) * 6 - 3
            made = normal * torch.pow(10.0, exponents)
        case _:
            raise ValueError(f"values is {values!r}; allowed are {', '.join(VALUES)}.")
    return made.to(dtype)


def _random_signs(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    return (torch.randint(0, 2, shape, generator=generator) * 2 - 1).to(dtype)


def _signed_magnitudes(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> torch.Tensor:
    """Return values of either sign with magnitudes in [0.5, 2): far from zero on both sides."""
    magnitude = torch.rand(shape, dtype=dtype, generator=generator) * 1.5 + 0.5
    return magnitude * _random_signs(shape, dtype, generator)


def _mark(values: torch.Tensor, period: int, phase: int, first: float, second: float) -> torch.Tensor:
    """Overwrite every ``period``-th element of every second row (zeros: the row entire).

    The other rows stay ordinary, so that neither a constant nor an untouched input can be right, and a
    special value that leaks from its row into a neighbour is seen.
    """
    marked = values.clone()
    rows = marked.view(-1, marked.shape[-1])[::2] if marked.dim() > 1 and marked.numel() else marked.view(-1)
    whole_rows = period == 2 and rows.dim() > 1
    hit = rows if whole_rows else rows[..., phase::period]
    hit[...] = first
    hit[..., 1::2] = second
    return marked


def _expanded_base(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape before expansion: the first dimension is the one with stride 0."""
    if not shape:
        raise ValueError("an expanded tensor needs at least 1 dimension.")
    return (1, *shape[1:])


def _lay_out(values: torch.Tensor, shape: tuple[int, ...], layout: str, device: torch.device) -> torch.Tensor:
    match layout:
        case "contiguous":
            return values.to(device)
        case "expanded":
            return values.to(device).expand(shape)
        case "transposed":
            if len(shape) < 2:
                raise ValueError("a transposed tensor needs at least 2 dimensions.")
            return values.transpose(-1, -2).contiguous().to(device).transpose(-1, -2)
        case "offset":
            # One element past an allocation's start: no longer on a 16-byte boundary.
            storage = _gap_storage(values.numel() + OFFSET_ELEMENTS, values.dtype)
            storage[OFFSET_ELEMENTS:] = values.reshape(-1)
            return storage.to(device)[OFFSET_ELEMENTS:].view(shape)
        case "strided":
            if not shape:
                raise ValueError("a strided tensor needs at least 1 dimension.")
            wide = _gap_storage(values.numel() * STRIDED_STEP, values.dtype)
            wide = wide.view(*shape[:-1], shape[-1] * STRIDED_STEP)
            wide[..., ::STRIDED_STEP] = values
            return wide.to(device)[..., ::STRIDED_STEP]
        case _:
            raise ValueError(f"layout is {layout!r}; allowed are {', '.join(LAYOUTS)}.")


def _gap_storage(element_count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((element_count,), math.nan if dtype.is_floating_point else 0, dtype=dtype)
