"""Everything the judge asks the oracle, in typed words: a card loaded, cases made, results compared, times.

What the card's own code raises comes back as a ``Failed``, for the caller to say whose fault it is. Anything
else that the oracle should not say is a fault of the tool and raised, unless the caller is ``lenient``: it
has a word of its own for a case that gave nothing, whatever the reason.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mini_kv.core import protocol as p
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError, InternalError
from mini_kv.core.records.card import Case, TaskCard
from mini_kv.core.records.correctness import Numerics
from mini_kv.core.records.results import Finding
from mini_kv.core.tensors import OutputSpec
from mini_kv.core.time_limits import LOAD_TIMEOUT_S, NULL_AUDIT_TIMEOUT_S
from mini_kv.system.conversation import Conversation
from mini_kv.system.workers import Answer, Payload


@dataclass(frozen=True, kw_only=True)
class MadeCase:
    """A case as the oracle made it; ``payloads`` are the bytes of the input storages, in their order."""

    reply: p.CaseMade
    payloads: list[bytearray]


def not_makeable(failed: p.Failed, *, named: bool = True, traced: bool = False) -> Finding:
    """Return the finding about a case whose input factory or reference raised.

    ``named`` says which exception it was; without it the sentence has the first 500 characters of what it
    said. ``traced`` keeps its traceback as evidence.
    """
    said = f" {failed.code}: {failed.message}" if named else f": {failed.message[:500]}"
    return Finding(
        code=Code.CASE_NOT_MAKEABLE,
        message=f"the card's input factory or reference raised{said}",
        evidence=(failed.traceback,) if traced else (),
    )


class OracleClient(Conversation):
    """The judge's end of the conversation. Raises ``InternalError`` when the oracle is lost."""

    @abstractmethod
    def ask(
        self,
        message: p.Request,
        payloads: Sequence[Payload] = (),
        *,
        timeout_s: float,
        max_reply_bytes: int = p.DEFAULT_MAX_FRAME_BYTES,
    ) -> Answer:
        """Ask the oracle; raises ``InternalError`` when it is lost. ``Failed`` is a reply like others."""

    def load_card(self, card: TaskCard) -> p.ReferenceLoaded:
        """Import a card's reference and input factory; raises ``ConfigurationError``."""
        request = p.LoadReference(
            reference=card.reference,
            input_factory=card.input_factory,
            tolerances={str(name): limit for name, limit in card.tolerances.items()},
        )
        reply = self.ask(request, timeout_s=LOAD_TIMEOUT_S).reply
        if isinstance(reply, p.ReferenceLoaded):
            return reply
        raise ConfigurationError(
            Code.REFERENCE_NOT_IMPORTABLE,
            f"the card's reference '{card.reference}' or input factory '{card.input_factory}' "
            f"cannot be imported: {text_of(reply)}",
        )

    def make_case(
        self,
        key: str,
        case: Case,
        seed: str,
        *,
        timeout_s: float,
        expect_values: bool = True,
        expect_gradients: bool = False,
        lenient: bool = False,
    ) -> MadeCase | p.Failed:
        """Make the inputs of a case from a seed of 16 hex digits; return what its code raised instead.

        What the case must give is kept under ``key`` until :meth:`forget`, where values are expected.
        """
        request = p.MakeCase(
            key=key,
            params=case.params,
            seed=seed,
            expect_values=expect_values,
            expect_gradients=expect_gradients,
        )
        answer = self.ask(request, timeout_s=timeout_s)
        match answer.reply:
            case p.CaseMade() as made:
                return MadeCase(reply=made, payloads=answer.payloads)
            case other:
                return _failed(request, other, lenient=lenient)

    def compare(
        self,
        key: str,
        outputs: tuple[OutputSpec, ...],
        payloads: Sequence[Payload],
        *,
        timeout_s: float,
        lenient: bool = False,
    ) -> Numerics | p.Failed:
        """Compare contiguous outputs with what ``key`` must give; ``Failed`` where the bytes do not fit."""
        request = p.Compare(key=key, outputs=outputs)
        match self.ask(request, payloads, timeout_s=timeout_s).reply:
            case p.Compared() as compared:
                return compared.numerics
            case other:
                return _failed(request, other, lenient=lenient)

    def audit(self, key: str) -> p.CaseAudited:
        """Return which null candidates pass the case made under ``key``; raises ``InternalError``."""
        reply = self.ask(p.AuditCase(key=key), timeout_s=NULL_AUDIT_TIMEOUT_S).reply
        if isinstance(reply, p.CaseAudited):
            return reply
        raise InternalError(Code.NOT_AUDITED, f"the oracle could not audit '{key}': {text_of(reply)}")

    def forget(self, *keys: str, timeout_s: float) -> None:
        """Free what is kept under these keys, gradients included."""
        for key in keys:
            self.ask(p.Forget(key=key), timeout_s=timeout_s)

    def prepare_timing(self, case_id: str, keys: Sequence[str], *, timeout_s: float) -> None:
        """Make the reference ready to be timed on the inputs kept under ``keys``, in rotation."""
        request = p.PrepareReferenceTiming(case_id=case_id, keys=tuple(keys))
        self.ask(request, timeout_s=timeout_s)

    def time_reference(self, request: p.TimeBatch, *, timeout_s: float) -> p.Timed:
        """Take a batch of the prepared reference; raises ``InternalError`` where it cannot be timed."""
        reply = self.ask(request, timeout_s=timeout_s).reply
        if isinstance(reply, p.Timed):
            return reply
        raise InternalError(
            Code.REFERENCE_NOT_TIMED, f"the reference of '{request.case_id}' cannot be timed: {_said(reply)}"
        )

    def measure_timer(self, cache: Literal["cold", "hot"], *, timeout_s: float) -> p.TimerMeasured:
        """Have the timer measure itself and the memory; raises ``InternalError``."""
        reply = self.ask(p.MeasureTimer(cache=cache), timeout_s=timeout_s).reply
        if isinstance(reply, p.TimerMeasured):
            return reply
        raise InternalError(Code.TIMER_FAILED, f"the timer could not measure itself: {_said(reply)}")

    def time_copies(self, case_id: str, keys: Sequence[str], *, timeout_s: float) -> p.CopiesTimed:
        """Time what moving the bytes of a call takes on the inputs of ``keys``; raises ``InternalError``."""
        reply = self.ask(p.TimeCopies(case_id=case_id, keys=tuple(keys)), timeout_s=timeout_s).reply
        if isinstance(reply, p.CopiesTimed):
            return reply
        raise InternalError(
            Code.COPIES_NOT_TIMED, f"the oracle cannot copy the inputs of a case: {_said(reply)}"
        )


def text_of(reply: p.Reply) -> str:
    """Return what a reply that nobody hoped for says, with the name of what was raised."""
    if isinstance(reply, p.Failed):
        return f"{reply.code}: {reply.message}"
    return f"unexpected answer {type(reply).__name__}"


def _said(reply: p.Reply) -> str:
    return reply.message if isinstance(reply, p.Failed) else type(reply).__name__


def _failed(request: p.Request, reply: p.Reply, *, lenient: bool) -> p.Failed:
    if isinstance(reply, p.Failed):
        return reply
    if lenient:
        return p.Failed(code=Code.PROTOCOL, message="an unexpected answer")
    raise InternalError(
        Code.PROTOCOL, f"the oracle answered {type(request).__name__} with {type(reply).__name__}"
    )
