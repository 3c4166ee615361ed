"""Reference, inputs and cost of ``add(Tensor a, Tensor b) -> Tensor``: element by element, no broadcast."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mini_kv.core.cost import Cost
from mini_kv.core.dtypes import ITEM_SIZE_BYTES
from mini_kv.core.records.card import ParamValue
from mini_kv.core.tensors import element_count
from mini_kv.references import inputs

PARAMETERS = frozenset(
    {
        "shape",
        "dtype",
        "values",
        "layout",
        "other_shape",
        "other_dtype",
        "other_layout",
        "other_device",
    }
)


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a + b`` as a new contiguous tensor; both have one shape, dtype and device."""
    return torch.add(a, b).contiguous()


def make_inputs(
    params: Mapping[str, ParamValue], generator: torch.Generator, device: torch.device
) -> tuple[object, ...]:
    """Return ``(a, b)``. Raises ``ValueError`` for parameters outside ``PARAMETERS``.

    ``other_shape``, ``other_dtype``, ``other_layout`` and ``other_device`` concern ``b`` and default to
    what ``a`` has.
    """
    inputs.refuse_unknown(params, PARAMETERS, "vector_add")
    shape = inputs.shape_param(params, "shape")
    dtype = inputs.dtype_param(params, "dtype")
    values = inputs.text_param(params, "values", "normal", inputs.VALUES)
    layout = inputs.text_param(params, "layout", "contiguous", inputs.LAYOUTS)
    other_shape = inputs.shape_param(params, "other_shape", shape)
    other_dtype = inputs.dtype_param(params, "other_dtype", str(dtype).removeprefix("torch."))
    other_layout = inputs.text_param(params, "other_layout", layout, inputs.LAYOUTS)
    # Next to zeroed rows stand ordinary ones: 0 + b is b, and b alone must not pass for the sum.
    other_values = "normal" if values == "zeros" else values
    a = inputs.make_tensor(shape, dtype, values, layout, generator, device)
    b = inputs.make_tensor(
        other_shape, other_dtype, other_values, other_layout, generator, inputs.other_device(params, device)
    )
    return a, b


def cost_model(params: Mapping[str, ParamValue]) -> Cost:
    """Two reads and one write an element, one addition each."""
    count = element_count(inputs.shape_param(params, "shape"))
    item_bytes = ITEM_SIZE_BYTES[str(params.get("dtype", "float32"))]
    return Cost(bytes_moved=3 * count * item_bytes, flops=count)
