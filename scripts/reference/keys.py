"""What the reference says and the code does not: exit codes, places of files, meanings of keys."""

from __future__ import annotations

import types
from collections.abc import Mapping

from mini_kv.core.records.card import SCHEMA_VERSION

EXIT_CODES: Mapping[int, str] = types.MappingProxyType(
    {
        0: "accepted",
        2: "configuration: usage, card, manifest, path, environment",
        3: "compilation or loading",
        4: "correctness or contract",
        5: "benchmark: unstable, impossible or unverified time",
        6: "regression",
        7: "integrity: cheating or tampering detected",
        70: "fault of mini-kv itself",
        130: "interrupted; the archive says how far it came",
    }
)

# Where a record stands that is no file of an archive, or not only.
WRITTEN_ELSEWHERE: Mapping[str, str] = types.MappingProxyType(
    {
        "task_card": "`tasks/*.yaml`",
        "candidate_manifest": "`candidates/*/*/candidate.yaml`",
        "artifact_index": "`artifacts/artifact_index.json`, written by `rebuild-index`",
        "leaderboard": "what `mini-kv leaderboard --json` prints",
        "baseline": "`baselines/*.json`, written by `promote-baseline`",
        "card_audit": "what `mini-kv audit-task --json` prints",
        "calibration": "what `mini-kv calibrate --json` writes",
        "profile_comparison": "what `mini-kv compare-profiles --json` prints",
    }
)

# What each key of the two files that people write is for; tests hold these tables to the records.
CARD_KEYS: Mapping[str, str] = types.MappingProxyType(
    {
        "schema_version": f'`"{SCHEMA_VERSION}"`; another major version is refused',
        "task_id": "names the card, its archive folder and its seeds",
        "operator": "what is implemented; candidates of another operator are refused",
        "operator_version": "semantic version of the operator's meaning; baselines of others do not compare",
        "reference": "`module.path:function`: the PyTorch definition of right",
        "input_factory": "`module.path:function(params, generator, device)`: makes the arguments of a call",
        "candidate": "the folder that is verified where `--candidate` names none, relative to the project",
        "device": "`cuda`, `cpu`, or `auto`: CUDA where GPU, CUDA build of torch and nvcc are found",
        "cases": "the input classes; see below",
        "tolerances": "for each dtype of a legal case `{rtol, atol}`",
        "contract": "what the candidate must keep apart from the numbers; see below",
        "benchmark": "what is timed and how often; see below",
    }
)
MANIFEST_KEYS: Mapping[str, str] = types.MappingProxyType(
    {
        "schema_version": f'`"{SCHEMA_VERSION}"`; another major version is refused',
        "candidate_id": "names the candidate in archives and on the leaderboard",
        "operator": "must be the card's",
        "version": "semantic version of the candidate",
        "dispatcher": "`namespace::name` that the library registers; the namespace must be its own",
        "schema": "the operator's signature; it must be what the library registers",
        "sources": "files of this folder to compile (.cpp, .cc, .cxx, .cu) or to copy along (.h, .cuh, ...)",
        "cxx_flags": "extra flags for C++ units, out of the allow-list",
        "cuda_flags": "extra flags for CUDA units, out of the allow-list",
        "backends": "`cpu`, `cuda`, `meta`: dispatch keys that must be registered",
        "autograd": "whether the operator is differentiable; gradcheck asks for it",
        "python": "a Python file that registers autograd or a fake; run after the library was opened",
        "kernel_name_regex": "which CUDA kernel `profile` is about",
        "dtypes": "the dtypes that the candidate claims; a card that demands another one fails it",
    }
)
CONTRACT_KEYS: Mapping[str, str] = types.MappingProxyType(
    {
        "functional": "inputs stay as they were, outputs are fresh memory",
        "opcheck": "`torch.library.opcheck` passes, and one graph serves several sizes",
        "gradcheck": "`torch.autograd.gradcheck` passes in float64",
        "deterministic": "two runs with differently filled memory agree bitwise",
        "streams": "on CUDA: the current stream, CUDA graphs and a second GPU where there is one",
        "allow_library_calls": "PyTorch's computing operators and vendors' kernels may be called",
        "allow_workspace": "memory of torch's allocator may outlive a call's results",
        "allow_global_state": "torch's flags, threads and the environment may be changed",
        "secret_shapes": "three more core cases a run, of shapes that nobody knows before it",
    }
)
