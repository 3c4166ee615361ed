"""Shapes that no candidate has seen: core shapes moved to the edges of warps, blocks and powers of two.

They are a function of the card and one secret seed, so that an archived attempt can be run again.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import msgspec

from mini_kv.core.records.card import Case, CaseKind, TaskCard
from mini_kv.core.tensors import element_count

COUNT = 3
# What the seed of the shapes is called among an attempt's secret seeds.
SEED_NAME = "secret_shapes"
# A secret case costs what a core case costs: at most this many elements, or four times its base.
MAX_ELEMENTS = 1 << 18
_GROWTH = 4
# No device holds such a case; to look for primes near its extents would take the judge hours.
MAX_BASE_ELEMENTS = 1 << 38
# One or two values are right by chance too often (relu of them is zero); such cases are the card's own.
MIN_ELEMENTS = 16
_EDGES = (2, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def secret_cases(card: TaskCard, seed: str) -> tuple[Case, ...]:
    """Return the secret cases of a run; none where the card forbids them or has no ``shape`` to move.

    ``seed`` is 16 hex digits. Only ``shape`` changes: a core case whose other parameters name a shape
    too is no base, since the two would have to move together.
    """
    bases = [case for case in card.cases if _is_base(case)]
    if not (card.contract.secret_shapes and bases):
        return ()
    chance = random.Random(int(seed, 16))
    known: set[object] = {case.params.get("shape") for case in card.cases}
    taken = {case.id for case in card.cases}
    # A case of the card that has such a name takes no secret one's place.
    free = (name for number in itertools.count(1) if (name := f"secret_{number}") not in taken)
    found: list[Case] = []
    for _ in range(COUNT):
        base = chance.choice(bases)
        shape = _new_shape(_extents(base), known, chance)
        if shape is None:
            continue
        known.add(shape)
        found.append(
            msgspec.structs.replace(
                base, id=next(free), kind=CaseKind.BOUNDARY, params=base.params | {"shape": shape}
            )
        )
    return tuple(found)


def _extents(case: Case) -> tuple[int, ...]:
    shape = case.params["shape"]
    assert isinstance(shape, tuple)
    return tuple(extent for extent in shape if isinstance(extent, int))


def _is_base(case: Case) -> bool:
    shape = case.params.get("shape")
    whole = isinstance(shape, tuple) and all(
        isinstance(extent, int) and not isinstance(extent, bool) and extent > 0 for extent in shape
    )
    others = any(name != "shape" and name.endswith("shape") for name in case.params)
    usable = case.kind is CaseKind.CORE and bool(shape) and whole and not others
    return usable and element_count(_extents(case)) <= MAX_BASE_ELEMENTS


def _new_shape(base: Sequence[int], known: set[object], chance: random.Random) -> tuple[int, ...] | None:
    limit = max(MAX_ELEMENTS, _GROWTH * element_count(tuple(base)))
    for _ in range(100):
        shape = list(base)
        # The last extent decides how rows lie on threads: it moves always, another one now and then.
        shape[-1] = _moved(shape[-1], chance)
        if len(shape) > 1 and chance.random() < 0.5:
            position = chance.randrange(len(shape) - 1)
            shape[position] = _moved(shape[position], chance)
        if tuple(shape) not in known and MIN_ELEMENTS <= element_count(tuple(shape)) <= limit:
            return tuple(shape)
    return None


def _moved(extent: int, chance: random.Random) -> int:
    """Return a neighbour, a prime, an odd number, or one next to a power of two."""
    edge = chance.choice([edge for edge in _EDGES if edge <= 4 * extent] or [2])
    return chance.choice(
        (
            max(extent + chance.choice((-1, 1)), 1),
            _next_prime(extent + chance.randrange(1, 1 + max(extent // 2, 2))),
            (extent + chance.randrange(max(extent, 2))) | 1,
            max(edge + chance.choice((-1, 0, 1)), 1),
        )
    )


def _next_prime(least: int) -> int:
    number = max(least, 2)
    while any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number += 1
    return number
