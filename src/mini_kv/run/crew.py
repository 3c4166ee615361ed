"""The processes of a run: oracle, candidate worker, contract worker; and opening a library in them."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from mini_kv import benchmark, compiler, correctness
from mini_kv.core import protocol as p
from mini_kv.core.codes import Code, while_loading
from mini_kv.core.errors import ConfigurationError, InternalError
from mini_kv.core.records.build import Build
from mini_kv.core.records.results import Finding
from mini_kv.core.rules.registration import no_fake
from mini_kv.core.time_limits import IMPORTER_TIMEOUT_S
from mini_kv.run.run_inputs import RunInputs
from mini_kv.system.bytecode import lacks_bytecode, torch_folder
from mini_kv.system.host import usable_cpus
from mini_kv.system.modules import import_path
from mini_kv.system.scratch import scratch_folder
from mini_kv.system.seats import CandidateSeat, OracleSeat
from mini_kv.system.workers import Lost, Nursery

ContractSeat = Literal["always", "where judged", "never"]


@dataclass(frozen=True, kw_only=True)
class Crew:
    """Who takes part. All of them import torch while the compiler runs; ``scratch`` is removed with them."""

    scratch: Path
    nursery: Nursery
    inputs: RunInputs
    oracle: OracleSeat
    candidate: CandidateSeat
    contract: CandidateSeat | None

    def load_oracle(self) -> tuple[str, p.Ready]:
        """Wait for the oracle and import the reference; return its sources' hash and the device's facts."""
        ready = self.oracle.greet()
        reference = self.oracle.load_card(self.inputs.card.card)
        return reference.source_sha256, ready

    def load(self, build: Build) -> Finding | None:
        """Open the library in the candidate worker; return what is wrong with it."""
        return load_fault(self.candidate, self.inputs, build)

    def contract_worker(
        self, build: Build, turn: AbstractContextManager[object] | None = None
    ) -> correctness.ContractWorker | None:
        """Return the contract worker, where there is one; it may still be importing what the checks need."""
        if self.contract is None:
            return None
        load = functools.partial(load_fault, self.contract, self.inputs, build)
        return correctness.ContractWorker(seat=self.contract, load=load, turn=turn or nullcontext())

    def close_contract(self) -> None:
        """End the contract worker, where there is one."""
        if self.contract is not None:
            self.contract.close()

    def for_another(self, inputs: RunInputs) -> Crew:
        """Return a crew for another candidate of the same run, around the same oracle."""
        return replace(
            self,
            inputs=inputs,
            candidate=fresh_candidate(self.nursery, inputs),
            contract=fresh_contract(self.nursery, inputs),
        )

    def subject(self, timeout_s: float) -> correctness.Subject:
        """Return what the correctness stage works on."""
        inputs = self.inputs
        card = inputs.card.card
        return correctness.Subject(
            card=msgspec.structs.replace(card, cases=(*card.cases, *inputs.secret_cases)),
            manifest=inputs.manifest.manifest,
            device=inputs.device,
            oracle=self.oracle,
            seat=self.candidate,
            secret_seeds=inputs.secret_seeds,
            timeout_s=timeout_s,
        )

    def timed(self, timeout_s: float) -> benchmark.TimedSubject:
        """Return what the benchmark stage works on."""
        inputs = self.inputs
        return benchmark.TimedSubject(
            card=inputs.card.card,
            device=inputs.device,
            oracle=self.oracle,
            seat=self.candidate,
            secret_seeds=inputs.secret_seeds,
            gpu=inputs.gpus.gpus[0] if inputs.device == "cuda" else None,
            timeout_s=timeout_s,
            chooser=random.SystemRandom(),
        )


@contextmanager
def start_crew(
    inputs: RunInputs, elder: Nursery | None = None, *, contract: ContractSeat = "always"
) -> Iterator[Crew]:
    """Start oracle and candidate workers at once; end them, and whatever they started, at the end.

    ``elder`` is the nursery of a crew that goes on working afterwards. Who traces the candidate's own worker
    last wants a ``contract`` worker only where a card has something judged there. Where bytecode is missing
    that every run would compile anew, one more process leaves it while the contract worker, which needs it
    too, imports.
    """
    judged = contract == "where judged" and correctness.judged_apart(inputs.card.card.contract)
    apart = contract == "always" or judged
    with ExitStack() as stack:
        scratch = stack.enter_context(scratch_folder())
        nursery = Nursery(scratch, import_path(inputs.root), inputs.cage, elder)
        stack.callback(nursery.close)
        importer = nursery.start("importer") if apart and _wants_importer(inputs, elder) else None
        yield Crew(
            scratch=scratch,
            nursery=nursery,
            inputs=inputs,
            oracle=OracleSeat(nursery, p.Hello(device=inputs.device, threads=usable_cpus())),
            candidate=fresh_candidate(nursery, inputs),
            contract=fresh_contract(nursery, inputs) if apart else None,
        )
        if importer is not None:  # not after Ctrl-C or a fault of our own: the next run starts another
            importer.ended(IMPORTER_TIMEOUT_S)


def _wants_importer(inputs: RunInputs, elder: Nursery | None) -> bool:
    return elder is None and inputs.card.card.contract.opcheck and lacks_bytecode(torch_folder())


def fresh_candidate(nursery: Nursery, inputs: RunInputs) -> CandidateSeat:
    """Start a candidate worker."""
    return CandidateSeat(nursery, p.Hello(device=inputs.device, threads=usable_cpus()))


def fresh_contract(nursery: Nursery, inputs: RunInputs) -> CandidateSeat:
    """Start a contract worker: it runs concurrently with the candidate's, so it gets one thread."""
    # Only opcheck needs the imports that a "contract" worker makes beforehand, for seconds.
    role = "contract" if inputs.card.card.contract.opcheck else "candidate"
    return CandidateSeat(nursery, p.Hello(device=inputs.device, threads=1), role)


# --------------------------------------------------------------------------- loading


def load_fault(seat: CandidateSeat, inputs: RunInputs, build: Build) -> Finding | None:
    """Open a build's library in a worker and look at what it registers; return what is wrong with it.

    Raises ``ConfigurationError`` and ``InternalError`` where the worker itself cannot start.
    """
    greeting = seat.greet()
    if isinstance(greeting, p.Failed):
        raise ConfigurationError(Code.DEVICE_UNUSABLE, f"{greeting.code}: {greeting.message}")
    if isinstance(greeting, Lost):
        raise InternalError(
            Code.WORKER_LOST, f"a worker did not start: {greeting.message} {greeting.output[-500:]}"
        )
    loaded = seat.load(_load_request(inputs, build))
    if isinstance(loaded, Lost):
        return Finding(
            code=while_loading(loaded.code),
            message=f"while the library was opened, {loaded.message}",
            evidence=(loaded.output[-4000:],),
        )
    if isinstance(loaded, p.Failed):
        message = loaded.message
        if loaded.code == Code.LIBRARY_DOES_NOT_LOAD:
            message = compiler.explain_load_error(message)
        return Finding(code=loaded.code, message=message)
    return _registration_fault(loaded, inputs)


def _load_request(inputs: RunInputs, build: Build) -> p.LoadCandidate:
    manifest = inputs.manifest.manifest
    assert build.library is not None and build.library_sha256 is not None
    # The Python file is taken from the build's own copy: the bytes that were hashed are the ones loaded.
    sources = compiler.logs_folder(inputs.root, build) / "sources"
    return p.LoadCandidate(
        library=str(inputs.root / build.library),
        library_sha256=build.library_sha256,
        python=str(sources / manifest.python) if manifest.python else None,
        dispatcher=manifest.dispatcher,
        schema=manifest.schema,
    )


def _registration_fault(loaded: p.CandidateLoaded, inputs: RunInputs) -> Finding | None:
    manifest = inputs.manifest.manifest
    composite = loaded.kernels.get("CompositeImplicitAutograd") or loaded.kernels.get(
        "CompositeExplicitAutograd"
    )
    for backend in (inputs.device, *manifest.backends):
        key = {"cpu": "CPU", "cuda": "CUDA", "meta": "Meta"}[backend]
        if backend == "cuda" and inputs.device != "cuda":
            continue  # a CPU build leaves the CUDA kernels out
        if not loaded.kernels.get(key) and not composite:
            if backend == "meta":  # torch.library.register_fake registers a Meta kernel too
                message = f"the manifest names backend meta, but {no_fake(manifest.dispatcher)}"
                return Finding(code=Code.NO_FAKE_KERNEL, message=message)
            return Finding(
                code=Code.NOT_REGISTERED_FOR_DEVICE,
                message=f"'{manifest.dispatcher}' has no kernel for dispatch key {key}"
                + ("" if backend == inputs.device else f", although the manifest names backend {backend}"),
            )
    claimed, found = _normal_schema(manifest.schema), _normal_schema(loaded.schema)
    if claimed != found:
        return Finding(
            code=Code.SCHEMA_DIFFERS,
            message=f"the operator's schema is '{loaded.schema}'; the manifest says '{manifest.schema}'",
        )
    return None


def _normal_schema(text: str) -> str:
    """Return a schema without namespace, overload name and white space, for comparison."""
    head, bracket, tail = text.partition("(")
    return (head.rpartition("::")[2].partition(".")[0] + bracket + tail).replace(" ", "")
