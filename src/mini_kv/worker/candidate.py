"""The candidate worker: opens the library and calls the operator. It holds no expected value."""

from __future__ import annotations

import builtins
import functools
import hashlib
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch

from mini_kv.core import protocol as p
from mini_kv.core.codes import Code
from mini_kv.core.records.process_state import ProcessState
from mini_kv.core.tensors import TensorSpec
from mini_kv.worker.channel import Payload, sendable
from mini_kv.worker.contract_checks import CHECKS
from mini_kv.worker.device import open_device
from mini_kv.worker.gradients import gradients_of
from mini_kv.worker.guards import GuardedArguments, import_guarded
from mini_kv.worker.load_faults import has_schema, operator_names, python_fault, registered_text
from mini_kv.worker.ownership import PATIENCE_S, python_keeps
from mini_kv.worker.poison import perturbed, poison
from mini_kv.worker.process_snapshot import describe_process, foreign_kernels
from mini_kv.worker.replaced_functions import code_here, replaced_since
from mini_kv.worker.storage import as_outputs, describe_outputs, import_arguments, storage_bytes, tensor_bytes
from mini_kv.worker.tensor_state import Forms, altered_arguments, forms_of, require_plain_results
from mini_kv.worker.timed_cases import TimedCases
from mini_kv.worker.trace import trace_calls

Answer = tuple[p.Reply, Sequence[Payload]]

_DISPATCH_KEYS = (
    "CPU",
    "CUDA",
    "Meta",
    "AutogradCPU",
    "AutogradCUDA",
    "Autograd",
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
)


class LoadError(Exception):
    """The library could not be opened or does not hold the operator; ``code`` says which."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class Candidate:
    """State of the candidate's process."""

    def __init__(self) -> None:
        self._device = torch.device("cpu")
        self._unheard = torch.zeros(1)
        self._operator: Callable[..., object] | None = None
        self._timed: TimedCases | None = None
        self._dispatcher = ""
        self._before = ProcessState(facts={})
        self._code: dict[str, object] = {}
        self._kept_for = ""
        self._kept: dict[str, list[torch.Tensor]] = {}
        self._kept_forms: dict[str, Forms] = {}
        self._inputs: GuardedArguments | None = None

    def answer(self, request: p.Request, payloads: Sequence[bytearray]) -> Answer:
        """Carry out one request; what the candidate raises in a case is a reply, not an exception."""
        if not isinstance(request, p.RunCase):
            self._inputs = None
        match request:
            case p.Hello():
                self._device, ready = open_device(request)
                self._unheard = torch.zeros(1, device=self._device)
                return ready, ()
            case p.LoadCandidate():
                return self._load(request), ()
            case p.RunCase():
                return self._run(request, payloads)
            case p.Recall():
                return p.Recalled(), [payload for name in request.kept for payload in self._recall(name)]
            case p.CheckContract() | p.TraceCalls() | p.DescribeState():
                return self._tell(request, payloads), ()
            case p.PrepareTiming():
                sets = [import_arguments(arguments, payloads) for arguments in request.argument_sets]
                self._timing().prepare(request.case_id, self._need(), sets)
                return p.Done(), ()
            case p.TimeUnseen():
                return self._time_unseen(request, payloads), ()
            case (
                p.TimeBatch()
                | p.MeasureTimer()
                | p.ReadyForUnseen()
                | p.WitnessKernels()
                | p.PrepareRepeats()
                | p.RunRepeats()
                | p.FetchRepeated()
                | p.DropTiming()
                | p.FetchTimedOutput()
                | p.FetchTimedInputs()
            ):
                return self._timing().answer(request)
            case _:
                raise ValueError(f"a candidate worker does not answer {type(request).__name__}")

    def _tell(
        self, request: p.CheckContract | p.TraceCalls | p.DescribeState, payloads: Sequence[bytearray]
    ) -> p.Reply:
        match request:
            case p.CheckContract():
                return self._check(request, payloads)
            case p.TraceCalls():
                traced = [import_arguments(arguments, payloads) for arguments in request.argument_sets]
                return trace_calls(self._need(), traced, self._device, kernels=request.kernels)
            case p.DescribeState():
                return self._state()

    def _time_unseen(self, request: p.TimeUnseen, payloads: Sequence[bytearray]) -> p.Timed:
        timing, operator = self._timing(), self._need()
        return timing.unseen(
            request.case_id,
            operator,
            lambda: [import_arguments(one, payloads) for one in request.argument_sets],
        )

    def _timing(self) -> TimedCases:
        if self._timed is None:
            self._timed = TimedCases(self._device, keeps_outputs=True)
        return self._timed

    def _need(self) -> Callable[..., object]:
        if self._operator is None:
            raise ValueError("LoadCandidate comes first")
        return self._operator

    def _state(self) -> p.StateDescribed:
        # A candidate's own namespace is there to be new.
        foreign = foreign_kernels(self._dispatcher.partition("::")[0])
        replaced = {f"code.{name}": what for name, what in replaced_since(self._code).items()}
        before = self._before.facts | dict.fromkeys(replaced, "as it was")
        after = describe_process().facts | foreign | replaced
        return p.StateDescribed(before=ProcessState(facts=before), after=ProcessState(facts=after))

    def _load(self, request: p.LoadCandidate) -> p.Reply:
        self._dispatcher, self._before = request.dispatcher, describe_process()
        self._code = code_here()
        try:
            return self._open(request)
        except LoadError as error:
            return p.Failed(code=error.code, message=str(error))

    def _open(self, request: p.LoadCandidate) -> p.CandidateLoaded:
        namespace, _, name = request.dispatcher.partition("::")
        if has_schema(request.dispatcher):
            raise LoadError(
                Code.OPERATOR_ALREADY_REGISTERED,
                f"torch already has an operator '{request.dispatcher}' before the candidate is loaded; "
                "a dispatcher name must be the candidate's own",
            )
        digest = hashlib.sha256(Path(request.library).read_bytes()).hexdigest()
        if digest != request.library_sha256:
            raise LoadError(Code.LIBRARY_CHANGED, "the library on disk is not the one that was built")
        known = operator_names()
        try:
            torch.ops.load_library(request.library)
        except (OSError, RuntimeError, ImportError) as error:
            # torch says only which library; the loader's own words are in the cause.
            raise LoadError(Code.LIBRARY_DOES_NOT_LOAD, str(error.__cause__ or error)) from error
        if not has_schema(request.dispatcher):
            raise LoadError(
                Code.OPERATOR_NOT_REGISTERED,
                f"the library loads but registers no operator '{request.dispatcher}'; "
                f"{registered_text(request.dispatcher, known)}",
            )
        if request.python is not None:
            self._run_python(request.python)
        overload = getattr(getattr(getattr(torch.ops, namespace), name), "default", None)
        if overload is not None and type(overload) is not torch._ops.OpOverload:
            raise LoadError(
                Code.OPERATOR_REPLACED,
                f"torch.ops.{namespace}.{name}.default is a {type(overload).__name__}, not what the "
                "dispatcher holds: something was put in the operator's place",
            )
        if overload is None:
            raise LoadError(
                Code.OPERATOR_NOT_REGISTERED,
                f"'{request.dispatcher}' is registered with named overloads only; the default one is called",
            )
        self._operator = overload
        kernels = {
            key: torch._C._dispatch_has_kernel_for_dispatch_key(request.dispatcher, key)
            for key in _DISPATCH_KEYS
        }
        return p.CandidateLoaded(schema=str(overload._schema), kernels=kernels)

    def _run_python(self, path: str) -> None:
        try:
            runpy.run_path(path, run_name="mini_kv_candidate")
        except BaseException as error:  # SystemExit too: the file is the candidate's
            where, what = python_fault(error, path)
            raise LoadError(
                Code.PYTHON_FILE_FAILED, f"{where}: the candidate's Python file raised {what}"
            ) from error

    def _run(self, request: p.RunCase, payloads: Sequence[bytearray]) -> Answer:
        if request.key != self._kept_for:
            self._kept_for, self._kept, self._inputs = request.key, {}, None
        earlier = self._inputs if request.refill else None
        guarded = import_guarded(request.arguments, payloads, request.poison, earlier, request.version)
        self._inputs, arguments = guarded, guarded.values
        if request.mode == "requires_grad":
            _require_gradients(arguments)
        neighbours = [poison(size, request.poison, self._device) for size in request.poison_bytes]
        operator = self._need()
        if request.mode == "gradients":
            operator = functools.partial(_gradients, operator, request.weights_seed)
        forms = forms_of(arguments)
        try:
            with (
                torch.set_grad_enabled(request.mode != "no_grad"),
                perturbed(request.poison, self._device),
            ):
                result = operator(*arguments)
                kept_behind = python_keeps(result)
                self._synchronize()
            outputs = as_outputs(result)
            require_plain_results(outputs, arguments, with_gradients=request.mode != "no_grad")
            specs, output_payloads = describe_outputs(outputs, arguments)
            # After the copies: what a late thread still writes is not what is judged.
            kept_behind = kept_behind and python_keeps(result, own=1, patience_s=PATIENCE_S)
        except BaseException as error:  # noqa: BLE001 - an operator may raise anything
            return self._raised(error), ()
        if request.keep is not None:
            self._kept[request.keep] = outputs
            self._kept_forms[request.keep] = forms_of(outputs)
        altered = altered_arguments(forms, arguments)
        after = [storage_bytes(tensor) for tensor in _storages(request, arguments)]
        zones = guarded.zones(len(payloads))
        if kept_behind and request.mode == "no_grad":
            specs = tuple(msgspec.structs.replace(spec, held=True) for spec in specs)
        first, last = len(output_payloads), len(output_payloads) + len(after)
        return (
            p.Ran(
                outputs=specs,
                input_blobs=tuple(range(first, last)),
                guard_blobs=tuple(range(last, last + len(zones))),
                stray_writes=sum(one.stray_writes() for one in neighbours),
                altered=altered,
            ),
            [*output_payloads, *after, *zones],
        )

    def _recall(self, name: str) -> list[bytes]:
        kept = self._kept[name]
        # A result that has another form now is another result: no bytes are those it had.
        same = forms_of(kept) == self._kept_forms[name]
        return [tensor_bytes(tensor) if same else b"" for tensor in kept]

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
            # The error of a launch that nobody looked at stays until the next one: it belongs to this call.
            self._unheard.zero_()

    def _raised(self, error: BaseException) -> p.Raised:
        return p.Raised(
            types=tuple(map(_name_of, type(error).__mro__)),
            message=sendable(str(error)[:4000]),
            device_lost=not self._device_works(),
        )

    def _device_works(self) -> bool:
        try:
            return float(torch.ones(2, device=self._device).sum().item()) == 2.0
        except Exception:  # noqa: BLE001 - any error says the same: the device is gone
            return False

    def _check(self, request: p.CheckContract, payloads: Sequence[bytearray]) -> p.Reply:
        check = CHECKS[request.check]
        sets = [import_arguments(arguments, payloads) for arguments in request.argument_sets]
        results = check(self._need(), sets, request.autograd)
        return p.ContractAnswer(results=results)


def _gradients(operator: Callable[..., object], seed: str, *arguments: object) -> list[torch.Tensor]:
    return gradients_of(operator, arguments, seed, strained=True)


def _name_of(kind: type) -> str:
    # The class's own name, whatever its metaclass says; who has a built-in one's name is still another class.
    name = str(type.__dict__["__name__"].__get__(kind))
    own = getattr(builtins, name, kind) is not kind
    return f"{type.__dict__['__module__'].__get__(kind)}.{name}" if own else name


def _require_gradients(arguments: Sequence[object]) -> None:
    for value in arguments:
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
            value.requires_grad_(True)


def _storages(request: p.RunCase, arguments: Sequence[object]) -> list[torch.Tensor]:
    # One tensor for every payload, in payload order, so that the judge can compare byte by byte.
    by_blob: dict[int, torch.Tensor] = {}
    for spec, value in zip(request.arguments, arguments, strict=True):
        if isinstance(spec, TensorSpec) and isinstance(value, torch.Tensor):
            by_blob.setdefault(spec.blob, value)
    return [by_blob[blob] for blob in sorted(by_blob)]


__all__ = ["Candidate"]
