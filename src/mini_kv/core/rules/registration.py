"""What a candidate left unregistered, in one sentence that says how to register it."""

from __future__ import annotations

NO_FAKE = "no fake (Meta) kernel is registered"
NO_DERIVATIVE = "no derivative is registered"

_PYTHON_FILE = "the candidate's Python file ('python' in the manifest)"


def no_fake(dispatcher: str) -> str:
    """Return the sentence about an operator that cannot be called with fake tensors."""
    return (
        f"{NO_FAKE} for '{dispatcher}': add torch.library.register_fake to {_PYTHON_FILE}, "
        "or TORCH_LIBRARY_IMPL(..., Meta, ...) in C++"
    )


def no_derivative(dispatcher: str) -> str:
    """Return the sentence about an operator whose results carry no gradient."""
    return (
        f"{NO_DERIVATIVE} for '{dispatcher}' (no Autograd kernel): add torch.library.register_autograd to "
        f"{_PYTHON_FILE}, or TORCH_LIBRARY_IMPL(..., Autograd, ...) in C++"
    )
