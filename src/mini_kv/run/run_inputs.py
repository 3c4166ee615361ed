"""Everything a run is given, read and checked before anything is started."""

from __future__ import annotations

import os
import secrets
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from mini_kv import benchmark, task_card
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.records.card import Case, CaseKind, DeviceKind, DeviceRequest
from mini_kv.core.records.environment import Environment
from mini_kv.core.records.isolation import IsolationLevel
from mini_kv.run.environment_facts import environment
from mini_kv.run.secret_shapes import SEED_NAME, secret_cases
from mini_kv.system.gpu import GpuReport, read_gpus
from mini_kv.system.modules import import_path
from mini_kv.system.sandbox.cage import Cage, build_cage
from mini_kv.system.scratch import sweep_scratch
from mini_kv.system.toolchain import Toolchain, find_toolchain

BUILD_FOLDER = ".build"
SHARED_FOLDER = "/tmp"


@dataclass(frozen=True, kw_only=True)
class RunInputs:
    """One card, one candidate and this machine. ``secret_seeds`` are drawn fresh for every run.

    ``secret_cases`` follow from the card and the seed named ``secret_shapes``.
    """

    root: Path
    artifacts_root: Path
    card: task_card.LoadedCard
    manifest: task_card.LoadedManifest
    device: DeviceKind
    gpus: GpuReport
    toolchain: Toolchain
    environment: Environment
    cage: Cage
    secret_seeds: dict[str, str]
    secret_cases: tuple[Case, ...] = ()

    def with_candidate(self, folder: Path) -> RunInputs:
        """Return the same run of another candidate: same card, machine and seeds."""
        manifest = task_card.load_manifest(folder, self.root)
        task_card.check_pair(self.card.card, manifest.manifest)
        return replace(self, manifest=manifest)


def read_inputs(
    *,
    task: Path,
    candidate: Path | None,
    device: DeviceRequest | None,
    artifacts_root: Path | None,
    require_isolation: IsolationLevel,
) -> RunInputs:
    """Read and check it all; raises ``ConfigurationError``. ``None`` takes the card's or project's own."""
    sweep_scratch()  # what a killed run left: before anything of this one is made, and timed
    root = task_card.find_project_root(task)
    card = task_card.load_task_card(task, root)
    folder = candidate if candidate is not None else root / card.card.candidate
    manifest = task_card.load_manifest(folder, root)
    task_card.check_pair(card.card, manifest.manifest)
    toolchain = find_toolchain(root / BUILD_FOLDER, os.environ)
    gpus = read_gpus(os.environ)
    kind = resolve_device(device or card.card.device, gpus, toolchain)
    archive = artifacts_root or root / "artifacts"
    cage = _cage(kind, root, archive, require_isolation)
    shapes_seed = secrets.token_hex(8)
    unseen = secret_cases(card.card, shapes_seed)
    legal = [case for case in (*card.card.cases, *unseen) if case.kind is not CaseKind.ILLEGAL]
    return RunInputs(
        root=root,
        artifacts_root=archive,
        card=card,
        manifest=manifest,
        device=kind,
        gpus=gpus,
        toolchain=toolchain,
        environment=environment(
            device=kind,
            timer_plan=benchmark.TIMER_PLAN[kind],
            isolation=cage.isolation.level.value,
            isolation_features=cage.isolation.features,
            toolchain=toolchain,
            gpus=gpus,
        ),
        cage=cage,
        secret_seeds={case.id: secrets.token_hex(8) for case in legal}
        | ({SEED_NAME: shapes_seed} if unseen else {}),
        secret_cases=unseen,
    )


def _cage(device: DeviceKind, root: Path, archive: Path, wanted: IsolationLevel) -> Cage:
    """Find out what candidates can be shut in with here; raises when that is less than was asked for."""
    cage = build_cage(device, import_path(root), (root, archive.absolute()))
    if not cage.isolation.level.reaches(wanted):
        raise ConfigurationError(
            Code.ISOLATION_TOO_WEAK,
            f"isolation level '{wanted.value}' was asked for, but this machine gives "
            f"'{cage.isolation.level.value}': {cage.isolation.reason(wanted)}.",
        )
    return cage


def resolve_device(wanted: DeviceRequest, gpus: GpuReport, toolchain: Toolchain) -> DeviceKind:
    """Return the device to verify on; ``auto`` is CUDA where GPU, CUDA build of torch and nvcc are here."""
    if wanted == "cpu":
        return "cpu"
    usable = bool(gpus.gpus) and toolchain.torch is not None and toolchain.torch.cuda is not None
    if wanted == "cuda":
        if not usable:
            raise ConfigurationError(
                Code.GPU_MISSING,
                "device 'cuda' was asked for, but no GPU with a driver and a CUDA build of torch is visible "
                "here; use --device cpu, or see 'mini-kv doctor'.",
            )
        return "cuda"
    return "cuda" if usable and toolchain.nvcc is not None else "cpu"


def device_lock(device: DeviceKind, gpus: GpuReport) -> Path:
    """Return the lock file of the measured device; all users of a machine share it, whatever their TMPDIR."""
    name = (gpus.gpus[0].uuid or "gpu0") if device == "cuda" else "cpu"
    shared = os.access(SHARED_FOLDER, os.W_OK | os.X_OK)
    return Path(SHARED_FOLDER if shared else tempfile.gettempdir()) / f"mini-kv-{name}.lock"
