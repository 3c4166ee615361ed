"""What is said to the oracle: the reference, the cases that it makes, and the outputs that it compares."""

from __future__ import annotations

from mini_kv.core.record import Record
from mini_kv.core.records.card import ParamValue, Tolerance
from mini_kv.core.records.correctness import Numerics
from mini_kv.core.tensors import Argument, OutputSpec


class LoadReference(Record, frozen=True, kw_only=True, tag="load_reference"):
    """Import the card's reference and input factory."""

    reference: str
    input_factory: str
    tolerances: dict[str, Tolerance]


class ReferenceLoaded(Record, frozen=True, kw_only=True, tag="reference_loaded"):
    """Answer to LoadReference; ``source_sha256`` hashes the modules' source files."""

    source_sha256: str
    has_cost_model: bool


class MakeCase(Record, frozen=True, kw_only=True, tag="make_case"):
    """Make the inputs of a case from a seed and keep the expected values under ``key``.

    ``expect_values`` is false for illegal cases, of which the reference is not asked. ``expect_gradients``
    keeps the expected gradients too, under the key that :func:`gradients_key` gives.
    """

    key: str
    params: dict[str, ParamValue]
    seed: str
    expect_values: bool
    expect_gradients: bool = False


# What a case's seed is derived for: the weights of its gradients follow from it and do not tell it.
WEIGHTS_OF_GRADIENTS = "weights of gradients"


def gradients_key(key: str) -> str:
    """Return the key of the expected gradients of the case that was made under ``key``."""
    return f"{key}/gradients"


class ExpectedOutput(Record, frozen=True, kw_only=True):
    """What the plan demands of one output."""

    shape: tuple[int, ...]
    dtype: str
    device: str


class CaseMade(Record, frozen=True, kw_only=True, tag="case_made"):
    """Answer to MakeCase (payloads: input storages).

    ``gradients`` are those expected for the floating-point inputs; none where the reference has none, or none
    that is within tolerance itself.
    """

    arguments: tuple[Argument, ...]
    expected: tuple[ExpectedOutput, ...]
    bytes_moved: int | None
    flops: int | None
    reference_within_tolerance: bool
    gradients: tuple[ExpectedOutput, ...] = ()


class Compare(Record, frozen=True, kw_only=True, tag="compare"):
    """Compare outputs (payloads: contiguous bytes, one an output) with the expected values of ``key``."""

    key: str
    outputs: tuple[OutputSpec, ...]


class Compared(Record, frozen=True, kw_only=True, tag="compared"):
    """Answer to Compare."""

    numerics: Numerics


class AuditCase(Record, frozen=True, kw_only=True, tag="audit_case"):
    """Ask which null candidates would pass the case that was made under ``key``."""

    key: str


class CaseAudited(Record, frozen=True, kw_only=True, tag="case_audited"):
    """Answer to AuditCase: the null candidates that pass, by name.

    ``lower_precision`` names narrower dtypes whose rounding alone the tolerance forgives: a remark.
    """

    element_count: int
    passed: tuple[str, ...]
    lower_precision: tuple[str, ...] = ()


class Forget(Record, frozen=True, kw_only=True, tag="forget"):
    """Free the inputs and expected values of ``key``."""

    key: str


class PrepareReferenceTiming(Record, frozen=True, kw_only=True, tag="prepare_reference_timing"):
    """Time the reference on the inputs that were made under ``keys``."""

    case_id: str
    keys: tuple[str, ...]


OracleRequest = LoadReference | MakeCase | Compare | AuditCase | Forget | PrepareReferenceTiming
OracleReply = ReferenceLoaded | CaseMade | Compared | CaseAudited
