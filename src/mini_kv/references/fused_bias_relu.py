"""Reference, inputs and cost of ``bias_relu(Tensor x, Tensor bias) -> Tensor``: ``relu(x + bias)``."""

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


def reference(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return ``relu(x + bias)``, contiguous. ``x`` is ``[..., hidden]``, ``bias`` ``[hidden]``.

    NaN stays NaN: ``relu`` is a comparison with zero that only true negatives fail.
    """
    return torch.relu(x + bias).contiguous()


def make_inputs(
    params: Mapping[str, ParamValue], generator: torch.Generator, device: torch.device
) -> tuple[object, ...]:
    """Return ``(x, bias)``. Raises ``ValueError`` for parameters outside ``PARAMETERS``.

    ``other_*`` concern ``bias``; its shape defaults to the last extent of ``shape``, its layout to
    contiguous.
    """
    inputs.refuse_unknown(params, PARAMETERS, "fused_bias_relu")
    shape = inputs.shape_param(params, "shape")
    dtype = inputs.dtype_param(params, "dtype")
    values = inputs.text_param(params, "values", "normal", inputs.VALUES)
    layout = inputs.text_param(params, "layout", "contiguous", inputs.LAYOUTS)
    bias_shape = inputs.shape_param(params, "other_shape", shape[-1:] or (1,))
    bias_dtype = inputs.dtype_param(params, "other_dtype", str(dtype).removeprefix("torch."))
    bias_layout = inputs.text_param(params, "other_layout", "contiguous", inputs.LAYOUTS)
    # Special values enter through x alone: one infinite bias would decide a whole column.
    bias_values = "normal" if values in ("zeros", "infinities", "nans") else values
    x = inputs.make_tensor(shape, dtype, values, layout, generator, device)
    bias = inputs.make_tensor(
        bias_shape, bias_dtype, bias_values, bias_layout, generator, inputs.other_device(params, device)
    )
    return x, bias


def cost_model(params: Mapping[str, ParamValue]) -> Cost:
    """One read and one write an element and one read of the bias; an addition and a maximum each."""
    shape = inputs.shape_param(params, "shape")
    count = element_count(shape)
    hidden = shape[-1] if shape else 1
    item_bytes = ITEM_SIZE_BYTES[str(params.get("dtype", "float32"))]
    return Cost(bytes_moved=(2 * count + hidden) * item_bytes, flops=2 * count)
