"""Chooses and runs the contract checks; they answer other questions than numerics and replace nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from mini_kv.core import protocol as p
from mini_kv.core.canonical import fixed_seed
from mini_kv.core.codes import Code, of_check
from mini_kv.core.progress import Event, Progress
from mini_kv.core.records.card import CandidateManifest, Case, CaseKind, Contract, DeviceKind, TaskCard
from mini_kv.core.records.correctness import ContractCheck
from mini_kv.core.records.results import Finding, Status
from mini_kv.core.rules.policies import judges_trace
from mini_kv.core.rules.registration import NO_FAKE
from mini_kv.core.tensors import Argument, TensorSpec, contiguous_strides, element_count, input_bytes
from mini_kv.core.time_limits import CASE_TIMEOUT_S, CONTRACT_CHECK_TIMEOUT_S
from mini_kv.correctness.rounds import seed_text
from mini_kv.system.oracle_client import MadeCase, OracleClient
from mini_kv.system.seats import CandidateSeat
from mini_kv.system.workers import Answer, Lost

# gradcheck calls the operator twice an input element: larger cases cost time and prove nothing more.
GRADCHECK_ELEMENTS = 2_000
DYNAMIC_SIZES = 3
# These import torch.compile's machinery for seconds, which the contract worker does beforehand. The
# others are asked in the numerics worker, which has nothing else to do once its cases are answered.
HEAVY_CHECKS = frozenset({"opcheck", "opcheck_layout", "dynamic_shapes", "fake_results", "gradcheck"})


def judged_apart(contract: Contract) -> bool:
    """Say whether the card has anything judged in a second worker: a check that imports, or a trace."""
    return contract.opcheck or contract.gradcheck or judges_trace(contract)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The arguments of one case with its fixed seed."""

    case: Case
    arguments: tuple[Argument, ...]
    payloads: list[bytearray]

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The tensor arguments."""
        return tuple(argument for argument in self.arguments if isinstance(argument, TensorSpec))

    @property
    def elements(self) -> int:
        """Elements of all tensor arguments."""
        return sum(element_count(tensor.shape) for tensor in self.tensors)


@dataclass(frozen=True, kw_only=True)
class Question:
    """One check to be run on one or more samples."""

    check: str
    samples: tuple[Sample, ...]


def collect_samples(card: TaskCard, oracle: OracleClient) -> tuple[Sample, ...]:
    """Have the oracle make the inputs of all legal cases but the benchmark shapes, fixed seeds.

    Where the card forbids library calls, the timed shapes are among them: they tempt most.
    """
    samples: list[Sample] = []
    timed = card.benchmark.case_ids if not card.contract.allow_library_calls else ()
    for case in card.cases:
        if case.kind is CaseKind.ILLEGAL or (case.kind is CaseKind.BENCHMARK and case.id not in timed):
            continue
        seed = seed_text(fixed_seed(card.task_id, case.id))
        key = f"contract/{case.id}"
        made = oracle.make_case(key, case, seed, timeout_s=CASE_TIMEOUT_S, expect_values=False, lenient=True)
        if isinstance(made, MadeCase):
            samples.append(Sample(case=case, arguments=made.reply.arguments, payloads=made.payloads))
    return tuple(samples)


def plan_questions(
    card: TaskCard, samples: Sequence[Sample], device: DeviceKind, device_count: int
) -> tuple[Question, ...]:
    """Return what the card's contract makes us ask. Pure."""
    core = sorted(
        (s for s in samples if s.case.kind is CaseKind.CORE), key=lambda s: input_bytes(s.arguments)
    )
    questions: list[Question] = []
    if not core:
        return ()
    if card.contract.opcheck:
        questions += [
            Question(check="opcheck", samples=(sample,)) for sample in _smallest_of_each_dtype(core)
        ]
        questions += [
            Question(check="opcheck_layout", samples=(sample,))
            for sample in samples
            if sample.case.kind is CaseKind.LAYOUT
        ]
        questions.append(Question(check="dynamic_shapes", samples=dynamic_samples(core)))
        small = tuple(sample for sample in samples if sample.case.kind is not CaseKind.BENCHMARK)
        questions.append(Question(check="fake_results", samples=small))
    if card.contract.gradcheck:
        questions.append(Question(check="gradcheck", samples=(_gradcheck_sample(core),)))
    if device == "cuda" and card.contract.streams:
        largest = core[-1]
        questions.append(Question(check="current_stream", samples=(largest,)))
        questions.append(Question(check="graph_capture", samples=(largest,)))
        if device_count > 1:
            questions.append(Question(check="second_device", samples=(largest,)))
    return tuple(questions)


def _smallest_of_each_dtype(core: Sequence[Sample]) -> list[Sample]:
    by_dtype: dict[str, Sample] = {}
    for sample in core:
        by_dtype.setdefault(sample.tensors[0].dtype if sample.tensors else "", sample)
    return list(by_dtype.values())


def _gradcheck_sample(core: Sequence[Sample]) -> Sample:
    # The largest case that is still cheap: more elements see more of the formula.
    small = [sample for sample in core if sample.elements <= GRADCHECK_ELEMENTS]
    return max(small, key=lambda sample: sample.elements) if small else core[0]


def dynamic_samples(core: Sequence[Sample]) -> tuple[Sample, ...]:
    """Choose up to three cases that differ in size only, with no extent 0 or 1 and none equal.

    Extents of 0 and 1 specialise by design in torch.compile, and equal extents share a symbol.
    """
    groups: dict[tuple[object, ...], list[Sample]] = {}
    for sample in core:
        if all(_plain(tensor) for tensor in sample.tensors) and sample.tensors:
            signature = tuple((len(tensor.shape), tensor.dtype) for tensor in sample.tensors)
            chosen = groups.setdefault(signature, [])
            if all(sample.tensors[0].shape != other.tensors[0].shape for other in chosen):
                chosen.append(sample)
    best = max(groups.values(), key=len, default=[])
    return tuple(best[:DYNAMIC_SIZES]) or (core[0],)


def _plain(tensor: TensorSpec) -> bool:
    extents = tensor.shape
    return (
        all(extent > 1 for extent in extents)
        and len(set(extents)) == len(extents)
        and tensor.strides == contiguous_strides(extents)
    )


def run_contract(
    card: TaskCard,
    manifest: CandidateManifest,
    questions: Sequence[Question],
    seat: CandidateSeat,
    *,
    load: Callable[[], Finding | None],
    progress: Progress,
) -> tuple[ContractCheck, ...]:
    """Ask the questions that need what the contract worker has imported; each answer stands for itself."""
    fault = load() if questions else None
    if fault is not None:
        status = without_answer(fault.code)
        return (_answer("load", None, status, code=fault.code, message=fault.message),)
    checks = told_once(ask_all(manifest, questions, seat, progress))
    if card.contract.gradcheck and not manifest.autograd:
        checks.append(
            _answer(
                "autograd_claimed",
                None,
                Status.FAIL,
                code=Code.AUTOGRAD_MISSING,
                message="the card demands gradients; the candidate's manifest says autograd: false",
            )
        )
    return tuple(checks)


def told_once(checks: Sequence[ContractCheck]) -> list[ContractCheck]:
    """Let the first check that fails for want of a fake kernel say so; the others ask nothing without one.

    The worker only names the cause: the first one that it names so stays a failure.
    """
    told: ContractCheck | None = None
    kept: list[ContractCheck] = []
    for check in checks:
        if check.status is not Status.FAIL or not (check.message or "").startswith(NO_FAKE):
            kept.append(check)
        elif told is None:
            told = check
            kept.append(check)
        else:
            message = f"not asked: {NO_FAKE}, as {told.name} on {told.case_id} says"
            changes = {"status": Status.SKIPPED, "code": Code.NO_FAKE_KERNEL, "message": message}
            kept.append(msgspec.structs.replace(check, **changes))
    return kept


def ask_all(
    manifest: CandidateManifest, questions: Sequence[Question], seat: CandidateSeat, progress: Progress
) -> tuple[ContractCheck, ...]:
    """Ask one worker the questions in turn."""
    checks: list[ContractCheck] = []
    for done, question in enumerate(questions):
        progress(Event(stage="contract", done=done, total=len(questions), detail=question.check))
        checks += _ask(question, manifest, seat)
    progress(Event(stage="contract", done=len(questions), total=len(questions), detail="done"))
    return tuple(checks)


def _ask(question: Question, manifest: CandidateManifest, seat: CandidateSeat) -> list[ContractCheck]:
    case_id = question.samples[0].case.id
    if question.check == "dynamic_shapes" and len(question.samples) < 2:
        return [
            _answer(
                "dynamic_shapes",
                case_id,
                Status.SKIPPED,
                code=Code.TOO_FEW_SIZES,
                message="the card has no two core cases that differ in size only",
            )
        ]
    if question.check == "gradcheck" and "float64" not in manifest.dtypes:
        return [
            _answer(
                "gradcheck",
                case_id,
                Status.FAIL,
                code=Code.FLOAT64_NOT_CLAIMED,
                message="gradcheck needs float64 and the manifest does not claim it",
            )
        ]
    started = time.monotonic()
    arguments, payloads = joined(question.samples)
    outcome = seat.ask(
        p.CheckContract(check=question.check, argument_sets=arguments, autograd=manifest.autograd),
        payloads,
        timeout_s=CONTRACT_CHECK_TIMEOUT_S,
        max_reply_bytes=0,
    )
    elapsed_s = round(time.monotonic() - started, 4)
    if isinstance(outcome, Lost):
        lost = _answer(
            question.check,
            case_id,
            without_answer(outcome.code),
            code=outcome.code,
            message=outcome.message,
        )
        graded = [lost]
    else:
        graded = _grade(question.check, case_id, outcome)
    return [msgspec.structs.replace(one, elapsed_s=elapsed_s) for one in graded]


def without_answer(code: str) -> Status:
    """Return what a check is whose worker was lost with ``code``: where the judge hung up, nobody failed."""
    return Status.UNVERIFIED if code == Code.ABANDONED else Status.FAIL


def joined(samples: Sequence[Sample]) -> tuple[tuple[tuple[Argument, ...], ...], list[bytearray]]:
    """Return the samples' arguments with their payloads in one list, numbered anew."""
    sets: list[tuple[Argument, ...]] = []
    payloads: list[bytearray] = []
    for sample in samples:
        offset = len(payloads)
        sets.append(
            tuple(
                msgspec.structs.replace(argument, blob=argument.blob + offset)
                if isinstance(argument, TensorSpec)
                else argument
                for argument in sample.arguments
            )
        )
        payloads += sample.payloads
    return tuple(sets), payloads


# What each check must answer for a pass: a short reply is a failure, not a success.
_PARTS = {
    "opcheck": (
        "opcheck.test_schema",
        "opcheck.test_autograd_registration",
        "opcheck.test_faketensor",
        "opcheck.test_aot_dispatch_dynamic",
    ),
    "opcheck_layout": ("opcheck.test_schema", "opcheck.test_faketensor"),
}


def _grade(check: str, case_id: str, outcome: Answer) -> list[ContractCheck]:
    if not isinstance(outcome.reply, p.ContractAnswer):
        text = outcome.reply.message if isinstance(outcome.reply, p.Failed) else "an unexpected answer"
        return [_answer(check, case_id, Status.FAIL, code=Code.CHECK_FAILED_TO_RUN, message=text[:1000])]
    answers = outcome.reply.results
    graded: list[ContractCheck] = []
    for part in _PARTS.get(check, (check,)):
        if part not in answers:
            message = "the worker gave no answer"
            graded.append(_answer(part, case_id, Status.FAIL, code=Code.UNANSWERED, message=message))
        elif answers[part] is None:
            graded.append(_answer(part, case_id, Status.PASS))
        else:
            graded.append(_answer(part, case_id, Status.FAIL, code=of_check(part), message=answers[part]))
    return graded


def _answer(
    name: str,
    case_id: str | None,
    status: Status,
    *,
    code: str | None = None,
    message: str | None = None,
) -> ContractCheck:
    return ContractCheck(name=name, case_id=case_id, status=status, code=code, message=message, elapsed_s=0.0)
