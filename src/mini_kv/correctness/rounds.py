"""The rounds of a case: which values, which fill pattern, and what is asked of the call. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mini_kv.core import protocol as p
from mini_kv.core.canonical import fixed_seed
from mini_kv.core.records.card import CandidateManifest, Case, CaseKind, TaskCard

# Two patterns a result cannot hold by chance: 0xFF is NaN in every float type, 0x5A a large number.
POISON = (0xFF, 0x5A)


def seed_text(seed: int) -> str:
    """Return a 64-bit seed as 16 hex digits."""
    return f"{seed:016x}"


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """One call of a case. ``seed`` is 16 hex digits, ``poison`` a byte.

    ``refill`` puts the values where those of the round before were: what is remembered by address is stale.
    ``version`` is how often fresh inputs count as written to: in the fixed round as often as refilled ones in
    the secret round, where what is remembered by version and form alone is stale.
    """

    name: str
    seed: str
    poison: int
    mode: p.CallMode = "no_grad"
    refill: bool = False
    version: int = 0

    def key(self, case: Case) -> str:
        """Return what the oracle keeps the expected values of this round under."""
        made = f"{case.id}/{self.seed}"
        return p.gradients_key(made) if self.mode == "gradients" else made

    def expected(self, made: p.CaseMade) -> tuple[p.ExpectedOutput, ...]:
        """Return the form of what the round is to give."""
        return made.gradients if self.mode == "gradients" else made.expected


def fixed_round(card: TaskCard, case: Case, name: str = "fixed") -> RoundPlan:
    """Return the round on values that are the same on every machine."""
    return RoundPlan(
        name=name, seed=seed_text(fixed_seed(card.task_id, case.id)), poison=POISON[0], version=1
    )


def plan_rounds(
    card: TaskCard, manifest: CandidateManifest, case: Case, secret_seed: str
) -> tuple[RoundPlan, ...]:
    """Return the rounds of a legal case.

    Secret values come as in training where the candidate can be trained: a result must not depend on whether
    gradients are wanted, and an operator could ask. They replace the fixed ones in place, except where an
    operator that is not functional may have returned its inputs, which are looked at again.
    """
    trains = manifest.autograd and card.contract.functional
    secret = RoundPlan(
        name="secret", seed=secret_seed, poison=POISON[1], mode="requires_grad" if trains else "grad"
    )
    if case.kind is CaseKind.BENCHMARK:
        return (secret,)  # large, and checked again on the outputs of timed calls
    fixed, secret = fixed_round(card, case), replace(secret, refill=card.contract.functional)
    plans = [fixed]
    if card.contract.deterministic:
        plans.append(RoundPlan(name="repeat", seed=fixed.seed, poison=POISON[1]))
    plans.append(secret)
    if wants_gradients(card, manifest, case):
        plans.append(RoundPlan(name="gradients", seed=secret_seed, poison=POISON[1], mode="gradients"))
    return tuple(plans)


def wants_gradients(card: TaskCard, manifest: CandidateManifest, case: Case) -> bool:
    """Say whether the gradients of a case are compared with the reference's."""
    trains = card.contract.gradcheck and card.contract.functional and manifest.autograd
    return trains and case.kind in (CaseKind.CORE, CaseKind.LAYOUT, CaseKind.BOUNDARY)
