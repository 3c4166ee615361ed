"""What a candidate's manifest must obey beyond its shape: files, flags, names, the operator's schema."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.records.card import DISPATCHER_NAME, CandidateManifest, TaskCard
from mini_kv.core.rules.operator_schema import SchemaFault, parse_schema
from mini_kv.system.paths import PathRefused, confined_path, require_regular_file
from mini_kv.task_card.document import KeyPath, Plain
from mini_kv.task_card.structure import Finding
from mini_kv.task_card.wording import found_text

MAX_FLAGS = 64
MAX_FLAG_CHARACTERS = 200

COMPILED_SUFFIXES = (".cpp", ".cc", ".cxx", ".cu")
HEADER_SUFFIXES = (".h", ".hpp", ".hxx", ".cuh", ".inl")

_MACRO = r"-D[A-Za-z_][A-Za-z0-9_]*(=[A-Za-z0-9_.+-]*)?"

ALLOWED_CXX_FLAGS: tuple[str, ...] = (
    # Optimisation and language
    r"-O[0-3s]",
    r"-std=(c|gnu)\+\+(17|20)",
    r"-march=native",
    r"-m(avx|avx2|avx512f|fma|f16c|sse4\.2)",
    _MACRO,
    # Arithmetic: what it changes is seen by the numerical checks
    r"-f(no-)?(fast-math|math-errno|trapping-math|signed-zeros|finite-math-only|associative-math)",
    r"-f(no-)?(reciprocal-math|unsafe-math-optimizations|rounding-math)",
    r"-ffp-contract=(off|on|fast)",
    # Code generation
    r"-f(no-)?(unroll-loops|tree-vectorize|strict-aliasing|inline-functions|omit-frame-pointer)",
    r"-f(no-)?(exceptions|rtti)",
    r"-fvisibility=(default|hidden)",
    r"-fopenmp(-simd)?",
    r"-g[0-3]?",
    # Warnings; -Wl, -Wa and -Wp would hand options on to other tools
    r"-W(?![lap]\b)[A-Za-z0-9][A-Za-z0-9+=-]*",
    r"-w",
    r"-pedantic",
)
"""What ``cxx_flags`` may hold; each flag must match one expression as a whole."""

ALLOWED_CUDA_FLAGS: tuple[str, ...] = (
    r"-O[0-3]",
    r"-std=c\+\+(17|20)",
    _MACRO,
    r"--?use_fast_math",
    r"--?(fmad|ftz|prec-div|prec-sqrt)=(true|false)",
    r"--?(lineinfo|generate-line-info)",
    r"--?maxrregcount=[1-9][0-9]{0,2}",
    r"--?(expt-relaxed-constexpr|expt-extended-lambda|extended-lambda)",
    r"--?(extra-device-vectorization|restrict|res-usage)",
    r"--?(Xptxas|ptxas-options)=(-v|-O[0-3]|-dl?cm=(ca|cg|cs|cv)|-dlcm=(ca|cg)|--?warn-on-spills)",
    r"-w",
)
"""What ``cuda_flags`` may hold. Architectures are chosen for the machine, not by the manifest."""

# What torch 2.11 registers itself (torch._C._dispatch_get_all_op_names), and its companions.
# fmt: off
RESERVED_NAMESPACES = frozenset(
    [
        "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_quantized", "_test", "aten",
        "c10d", "c10d_functional", "cuda", "debug_mode_ops", "debugprims", "export", "flash_attn",
        "fsdp", "higher_order", "inductor", "metal", "mkl", "mkldnn", "mkldnn_prepacked", "nvprims",
        "onednn", "prepacked", "prim", "prims", "profiler", "quantization", "quantized",
        "quantized_decomposed", "rngprims", "sparse", "static_runtime", "symm_mem", "tensorexpr",
        "torch", "torch_attn", "torchao", "torchaudio", "torchvision", "triton", "vulkan",
        "xnnpack",
    ]
)
# fmt: on

_DISPATCHER = re.compile(DISPATCHER_NAME)


def manifest_findings(data: dict[str, Any], folder: Path) -> Iterator[Finding]:
    """Yield every breach of the rules between and inside a manifest's keys; ``folder`` is a real path."""
    yield from _files(data, folder)
    for key, patterns in (("cxx_flags", ALLOWED_CXX_FLAGS), ("cuda_flags", ALLOWED_CUDA_FLAGS)):
        yield from _flags(key, data.get(key), patterns)
    yield from _dispatcher(data.get("dispatcher"))
    yield from _operator_schema(data.get("schema"), data.get("dispatcher"))
    yield from _kernel_name(data.get("kernel_name_regex"))
    for key in ("backends", "dtypes"):
        yield from _repeated(key, data.get(key))


def check_pair(card: TaskCard, manifest: CandidateManifest) -> None:
    """Raise :class:`ConfigurationError` (``WRONG_CANDIDATE``) when the candidate is not for this card."""
    if manifest.operator != card.operator:
        raise ConfigurationError(
            Code.WRONG_CANDIDATE,
            f"The candidate {manifest.candidate_id} implements the operator {manifest.operator!r}; "
            f"the card {card.task_id} allows only {card.operator!r}.",
        )


def _files(data: dict[str, Any], folder: Path) -> Iterator[Finding]:
    sources = data.get("sources")
    if isinstance(sources, list):
        seen: dict[Path, int] = {}
        for index, text in enumerate(sources):
            if isinstance(text, str) and text:
                suffixes = COMPILED_SUFFIXES + HEADER_SUFFIXES
                real = yield from _file(("sources", index), text, folder, suffixes)
                if real is not None and real in seen:
                    yield ("sources", index), f"found {found_text(text)} again; allowed: each file once"
                elif real is not None:
                    seen[real] = index
        if sources and not any(
            isinstance(each, str) and each.endswith(COMPILED_SUFFIXES) for each in sources
        ):
            yield ("sources",), f"found nothing to compile; required: a {', '.join(COMPILED_SUFFIXES)} file"
    python = data.get("python")
    if isinstance(python, str) and python:
        yield from _file(("python",), python, folder, (".py",))


def _file(
    path: KeyPath, text: str, folder: Path, suffixes: tuple[str, ...]
) -> Iterator[Finding] | Any:  # a generator whose value is the real path, or None
    try:
        real = confined_path(text, folder, "the candidate's folder")
        require_regular_file(real)
    except PathRefused as refusal:
        detail = (
            f" at {found_text(text)}"
            if refusal.found.startswith(("no such", "a directory", "a pipe"))
            else ""
        )
        yield path, f"found {refusal.found}{detail}; allowed: {refusal.allowed}"
        return None
    if PurePosixPath(text).suffix not in suffixes:
        yield path, f"found {found_text(text)}; allowed: files that end in {', '.join(suffixes)}"
        return None
    return real


def _flags(key: str, flags: Plain, patterns: tuple[str, ...]) -> Iterator[Finding]:
    if not isinstance(flags, list):
        return
    if len(flags) > MAX_FLAGS:
        yield (key,), f"found {len(flags)} flags; allowed: at most {MAX_FLAGS}"
    for index, flag in enumerate(flags):
        if not isinstance(flag, str):
            continue
        if len(flag) > MAX_FLAG_CHARACTERS or not any(re.fullmatch(each, flag) for each in patterns):
            yield (key, index), f"found the flag {found_text(flag)}; allowed: {flag_summary(key)}"


def flag_summary(key: str) -> str:
    """Return the allow-list of ``cxx_flags`` or ``cuda_flags`` in words."""
    if key == "cxx_flags":
        return (
            "-O0..-O3, -Os, -std=c++17|20, -march=native, -DNAME[=VALUE], -W..., arithmetic and "
            "code-generation -f flags, no include, link, plugin or output options"
        )
    return (
        "-O0..-O3, -std=c++17|20, -DNAME[=VALUE], --use_fast_math, --fmad=, -lineinfo, -maxrregcount=N, "
        "--expt-relaxed-constexpr, --extra-device-vectorization, -Xptxas=-v, "
        "no include, link or output options"
    )


def _dispatcher(name: Plain) -> Iterator[Finding]:
    if isinstance(name, str) and _DISPATCHER.fullmatch(name):
        namespace = name.partition("::")[0]
        if namespace.lower() in RESERVED_NAMESPACES:
            yield (
                ("dispatcher",),
                f"found the namespace {namespace!r}, which is PyTorch's; allowed: one of your own",
            )


def _operator_schema(text: Plain, dispatcher: Plain) -> Iterator[Finding]:
    if not isinstance(text, str) or not isinstance(dispatcher, str) or not _DISPATCHER.fullmatch(dispatcher):
        return
    operator = dispatcher.partition("::")[2]
    try:
        parsed = parse_schema(text)
    except SchemaFault as fault:
        yield ("schema",), f"{fault}, such as '{operator}(Tensor x) -> Tensor'"
        return
    name = f"{parsed.namespace}::{parsed.name}" if parsed.namespace else parsed.name
    if name not in (operator, dispatcher):
        yield ("schema",), f"found the name {name!r}; allowed: {operator!r}, as the dispatcher says"


def _kernel_name(text: Plain) -> Iterator[Finding]:
    if not isinstance(text, str) or not text:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        yield ("kernel_name_regex",), f"found {found_text(text)} ({error}); allowed: a regular expression"


def _repeated(key: str, values: Plain) -> Iterator[Finding]:
    if not isinstance(values, list):
        return
    for index, value in enumerate(values):
        if value in values[:index]:
            yield (key, index), f"found {found_text(value)} again; allowed: each once"
