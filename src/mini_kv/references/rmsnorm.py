"""Reference, inputs and cost of ``rmsnorm(Tensor x, Tensor weight, float eps) -> Tensor``.

``y = x / sqrt(mean(x ** 2) + eps) * weight`` over the last dimension (Zhang and Sennrich 2019, "Root
Mean Square Layer Normalization", equation 4, with the customary eps).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mini_kv.core.cost import Cost
from mini_kv.core.dtypes import ITEM_SIZE_BYTES
from mini_kv.core.records.card import ParamValue
from mini_kv.core.tensors import element_count
from mini_kv.references import inputs

DEFAULT_EPS = 1e-5
PARAMETERS = frozenset(
    {
        "shape",
        "dtype",
        "values",
        "layout",
        "eps",
        "other_shape",
        "other_dtype",
        "other_layout",
        "other_device",
    }
)


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the RMS-normalised ``x``, contiguous. ``x`` is ``[..., hidden]``, ``weight`` ``[hidden]``.

    Everything is computed in float32 (in float64 for float64 inputs) and rounded once, at the end.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    x_wide = x.to(wide)
    inverse_rms = torch.rsqrt(x_wide.square().mean(dim=-1, keepdim=True) + eps)
    return (x_wide * inverse_rms * weight.to(wide)).to(x.dtype).contiguous()


def make_inputs(
    params: Mapping[str, ParamValue], generator: torch.Generator, device: torch.device
) -> tuple[object, ...]:
    """Return ``(x, weight, eps)``. Raises ``ValueError`` for parameters outside ``PARAMETERS``.

    ``other_*`` concern ``weight``; its shape defaults to the last extent of ``shape``, its layout to
    contiguous. ``eps`` may be the text ``nan``, ``inf`` or ``-inf``.
    """
    inputs.refuse_unknown(params, PARAMETERS, "rmsnorm")
    shape = inputs.shape_param(params, "shape")
    dtype = inputs.dtype_param(params, "dtype")
    values = inputs.text_param(params, "values", "normal", inputs.VALUES)
    layout = inputs.text_param(params, "layout", "contiguous", inputs.LAYOUTS)
    weight_shape = inputs.shape_param(params, "other_shape", shape[-1:] or (1,))
    weight_dtype = inputs.dtype_param(params, "other_dtype", str(dtype).removeprefix("torch."))
    weight_layout = inputs.text_param(params, "other_layout", "contiguous", inputs.LAYOUTS)
    # A weight is of order one in every model; tiny or huge activations are what a kernel meets.
    weight_values = "integers" if values == "integers" else "normal"
    x = inputs.make_tensor(shape, dtype, values, layout, generator, device, huge_cap=inputs.HUGE_SQUARABLE)
    weight = inputs.make_tensor(
        weight_shape,
        weight_dtype,
        weight_values,
        weight_layout,
        generator,
        inputs.other_device(params, device),
    )
    return x, weight, inputs.float_param(params, "eps", DEFAULT_EPS)


def cost_model(params: Mapping[str, ParamValue]) -> Cost:
    """One read and one write an element and one read of the weight.

    Four operations an element (square, accumulate, two products) and three a row (divide, add eps,
    reciprocal square root).
    """
    shape = inputs.shape_param(params, "shape")
    count = element_count(shape)
    hidden = shape[-1] if shape else 1
    rows = element_count(shape[:-1])
    item_bytes = ITEM_SIZE_BYTES[str(params.get("dtype", "float32"))]
    return Cost(bytes_moved=(2 * count + hidden) * item_bytes, flops=4 * count + 3 * rows)
