"""Tensors to bytes and back, whole storages, without numpy and without pickle."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mini_kv.core.tensors import AbsentArg, Argument, OutputSpec, ScalarArg, TensorSpec
from mini_kv.worker.channel import Payload
from mini_kv.worker.ownership import is_held

_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """Return the torch dtype of a name; raises ``ValueError``."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"'{name}' is not a dtype of torch")
    return dtype


def _memory(tensor: torch.Tensor) -> memoryview:
    # A view of contiguous CPU memory; the caller keeps the tensor alive while it uses it.
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """Copy a tensor's elements, in row-major order, to bytes on the host."""
    host = tensor.detach().contiguous().cpu()
    return bytes(_memory(host))


def storage_bytes(tensor: torch.Tensor) -> bytes:
    """Copy the whole storage behind a tensor, gaps included, to bytes on the host."""
    if tensor.device.type == "meta":
        return b""
    storage = tensor.untyped_storage()
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    return tensor_bytes(flat)


def export_arguments(arguments: Sequence[object]) -> tuple[tuple[Argument, ...], list[bytes]]:
    """Describe call arguments; tensors that share a storage share a payload.

    Raises ``TypeError`` for a type the protocol does not carry.
    """
    described: list[Argument] = []
    payloads: list[bytes] = []
    blobs: dict[int, int] = {}
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            pointer = argument.untyped_storage().data_ptr()
            blob = blobs.get(pointer) if pointer else None
            if blob is None:
                blob = len(payloads)
                payloads.append(storage_bytes(argument))
                if pointer:
                    blobs[pointer] = blob
            described.append(
                TensorSpec(
                    shape=tuple(argument.shape),
                    strides=tuple(argument.stride()),
                    storage_offset=int(argument.storage_offset()),
                    dtype=dtype_name(argument.dtype),
                    device=str(argument.device),
                    storage_bytes=argument.untyped_storage().nbytes(),
                    blob=blob,
                )
            )
        elif argument is None:
            described.append(AbsentArg())
        elif isinstance(argument, float) and not math.isfinite(argument):
            described.append(ScalarArg(special=str(argument)))
        elif isinstance(argument, bool | int | float | str):
            described.append(ScalarArg(value=argument))
        else:
            raise TypeError(
                f"an input factory returned a {type(argument).__name__}; allowed: tensors, "
                "int, float, bool, str and None"
            )
    return tuple(described), payloads


def import_arguments(
    arguments: Sequence[Argument],
    payloads: Sequence[Payload],
    made: Mapping[int, torch.Tensor] | None = None,
) -> list[object]:
    """Rebuild call arguments in fresh memory on the devices their specs name.

    ``made`` are storages (as flat uint8 tensors) that are there already, by the number of their payload.
    """
    storages = dict(made or {})
    return [_import_one(argument, payloads, storages) for argument in arguments]


def _import_one(argument: Argument, payloads: Sequence[Payload], storages: dict[int, torch.Tensor]) -> object:
    match argument:
        case AbsentArg():
            return None
        case ScalarArg():
            return _SPECIAL[argument.special] if argument.special is not None else argument.value
        case TensorSpec():
            dtype = dtype_of(argument.dtype)
            if argument.device == "meta":
                return torch.empty_strided(argument.shape, argument.strides, dtype=dtype, device="meta")
            flat = storages.get(argument.blob)
            if flat is None:
                flat = _fresh_storage(payloads[argument.blob], argument.device)
                storages[argument.blob] = flat
            return torch.empty(0, dtype=dtype, device=flat.device).set_(
                flat.untyped_storage(), argument.storage_offset, argument.shape, argument.strides
            )


def _fresh_storage(payload: Payload, device: str) -> torch.Tensor:
    if memoryview(payload).nbytes == 0:
        return torch.empty(0, dtype=torch.uint8, device=device)
    source = torch.frombuffer(payload, dtype=torch.uint8)
    return source.clone() if device == "cpu" else source.to(device)


def describe_outputs(
    outputs: Sequence[torch.Tensor], inputs: Sequence[object]
) -> tuple[tuple[OutputSpec, ...], list[bytes]]:
    """Describe and copy results; ``aliases_input`` names the input whose storage a result shares.

    ``held`` is a result whose memory more owners have than the results themselves. That is looked at last: it
    may take a while, and what is judged are the results as they were returned.
    """
    pointers = {
        tensor.untyped_storage().data_ptr(): position
        for position, tensor in enumerate(inputs)
        if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta"
    }
    pointers.pop(0, None)
    payloads = [tensor_bytes(output) for output in outputs if output.device.type != "meta"]
    held = [is_held(output, outputs) for output in outputs]
    specs: list[OutputSpec] = []
    copied = 0
    for output, one_held in zip(outputs, held, strict=True):
        on_meta = output.device.type == "meta"
        specs.append(
            OutputSpec(
                shape=tuple(output.shape),
                strides=tuple(output.stride()),
                storage_offset=int(output.storage_offset()),
                dtype=dtype_name(output.dtype),
                device=str(output.device),
                aliases_input=None if on_meta else pointers.get(output.untyped_storage().data_ptr()),
                blob=None if on_meta else copied,
                held=one_held,
            )
        )
        copied += not on_meta
    return tuple(specs), payloads


def values_of(returned: object) -> list[object]:
    """Return what a function returned as a list: one value, or each of several."""
    return list(returned) if isinstance(returned, tuple | list) else [returned]


def tensors_of(returned: object) -> list[torch.Tensor]:
    """Return the tensors of what a function returned, of whatever class, in order; all else is left out."""
    return [value for value in values_of(returned) if isinstance(value, torch.Tensor)]


def as_outputs(result: object) -> list[torch.Tensor]:
    """Return what an operator returned as a list of plain tensors; raises ``TypeError`` for anything else."""
    return [plain(value) for value in values_of(result)]


def plain(value: object) -> torch.Tensor:
    """Return a value that is a tensor whose elements stand in memory; raises ``TypeError``.

    Anything else could compute when it is looked at, after the time was taken: a subclass in Python, one in
    C++ (its table of virtual functions is another), a view that negates later, a clone that copies later.
    """
    if type(value) is not torch.Tensor:
        raise TypeError(f"the operator returned a {type(value).__name__}, not a torch.Tensor")
    if _functions_of(value) != _PLAIN:
        raise TypeError("the operator returned a tensor of a C++ class of its own, not a plain one")
    if value.is_neg() or value.is_conj() or value._is_zerotensor():
        raise TypeError("the operator returned a tensor whose elements are worked out when it is read")
    internals: Any = torch._C  # its stub lacks the next one
    if internals._is_cow_tensor(value):
        raise TypeError("the operator returned a tensor whose memory is copied when it is used")
    return value


def _functions_of(tensor: torch.Tensor) -> int | None:
    # A C++ object begins with the address of its class's virtual functions.
    return ctypes.c_void_p.from_address(tensor._cdata).value


_PLAIN = _functions_of(torch.empty(0))
