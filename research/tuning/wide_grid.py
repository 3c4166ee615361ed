"""The wide grid: longer rows, float32, rows that are no whole number of packs, and one size of vector add.

What differs is where a row waits for its sum (registers, shared memory, the caches), how many blocks share an
SM, and what the caches are told.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from research.tuning.variants import CTYPE, ENUM, LANES, STORE, WHEN, Variant, bulk

# group, rows, hidden, dtype
SHAPES = (
    ("rmsnorm", 1024, 4096, "f32"), ("rmsnorm", 1024, 8192, "f16"), ("rmsnorm", 512, 16384, "f16"),
    ("rmsnorm", 1024, 5120, "f16"), ("bias_relu", 1024, 4097, "f16"), ("bias_relu", 1024, 4096, "f32"),
    ("vector_add", 1, 1 << 24, "f16"),
)  # fmt: skip

# The loads and stores that the register forms try: a plain one, no copy in L1, given up first by the L2.
HINTS = (("plain", "plain"), ("ef", "plain"), ("nca", "plain"), ("ef", "cs"), ("plain", "cs"))
FORMS = {
    640: ((128, 5, 1), (160, 4, 1), (160, 4, 2), (320, 2, 1), (320, 2, 2), (640, 1, 1), (640, 1, 2)),
    1024: ((128, 8, 1), (256, 4, 1), (256, 4, 2), (512, 2, 1), (512, 2, 2), (1024, 1, 1), (1024, 1, 2)),
    2048: ((256, 8, 1), (512, 4, 1), (512, 4, 2), (1024, 2, 1), (1024, 2, 2)),
}  # fmt: skip
SM_THREADS, SM_BYTES = 2048, 220 << 10


def _text(flag: bool) -> str:
    return str(flag).lower()


def blocks(t: int, k: int, r: int) -> tuple[int, ...]:
    """Return how many blocks an SM is asked to hold: 64 and 128 KiB of rows, as far as threads go."""
    most = SM_THREADS // t
    return tuple(sorted({max(1, min(most, units // (t * k * r))) for units in (4096, 8192)}))


def row(dtype: str, t: int, k: int, r: int, ld: str, st: str, when: str, mb: int) -> Variant:
    """Rmsnorm, the row in registers."""
    text = f"launch_row_once<{CTYPE[dtype]},{t},{k},{r},{ENUM[ld]},{STORE[st]},{WHEN[when]},0,{mb}>"
    axes: dict[str, object] = {"t": t, "k": k, "r": r, "ld": ld, "st": st, "w": when, "mb": mb}
    return Variant("rmsnorm", "row", dtype, text, axes)


def shipped(dtype: str, t: int, k: int, r: int, *, ef: bool) -> Variant:
    """Rmsnorm as the product's own kernel, in a form that fitting.cuh could choose by one line."""
    text = f"launch_shipped<{CTYPE[dtype]},{t},{k},{r},{_text(ef)}>"
    return Variant("rmsnorm", "shipped", dtype, text, {"t": t, "k": k, "r": r, "ef": int(ef)})


def reread(dtype: str, t: int, k: int, ld: str, again: str, st: str, *, early: bool, mb: int) -> Variant:
    """Rmsnorm, the row read a second time from cache."""
    text = f"launch_reread<{CTYPE[dtype]},{t},{k},{ENUM[ld]},{ENUM[again]},{STORE[st]},{_text(early)},{mb}>"
    axes: dict[str, object] = {
        "t": t, "k": k, "ld": ld, "again": again, "st": st, "w": "early" if early else "late", "mb": mb,
    }  # fmt: skip
    return Variant("rmsnorm", "reread", dtype, text, axes)


def staged(dtype: str, t: int, k: int, r: int, st: str, when: str, *, hint: bool, mb: int) -> Variant:
    """Rmsnorm, the row in shared memory, copied there by its threads."""
    text = f"launch_staged<{CTYPE[dtype]},{t},{k},{r},{_text(hint)},{STORE[st]},{WHEN[when]},{mb}>"
    axes: dict[str, object] = {
        "t": t, "k": k, "r": r, "hint": int(hint), "st": st, "w": when, "mb": mb,
    }  # fmt: skip
    return Variant("rmsnorm", "staged", dtype, text, axes)


def clustered(dtype: str, c: int, t: int, k: int, ld: str, st: str, mb: int) -> Variant:
    """Rmsnorm, a row over ``c`` blocks."""
    text = f"launch_cluster<{CTYPE[dtype]},{c},{t},{k},{ENUM[ld]},{STORE[st]},{mb}>"
    axes: dict[str, object] = {"c": c, "t": t, "k": k, "ld": ld, "st": st, "mb": mb}
    return Variant("rmsnorm", "cluster", dtype, text, axes)


def bulk_once(dtype: str, t: int, k: int, r: int, st: str, *, hint: bool) -> Variant:
    """Rmsnorm, the row in shared memory, copied there by the bulk engine."""
    out = st == "bulk"
    text = (
        f"launch_bulk_once<{CTYPE[dtype]},{t},{k},{r},{_text(hint)},{_text(out)},"
        f"{STORE['plain' if out else st]}>"
    )
    return Variant("rmsnorm", "bulk_once", dtype, text, {"t": t, "k": k, "r": r, "hint": int(hint), "st": st})


def rmsnorm(dtype: str, packs: int) -> Iterator[Variant]:
    """Every way to hold a row of so many packs."""
    for t, k, r in FORMS[packs]:
        for ef in (False, True):
            yield shipped(dtype, t, k, r, ef=ef)
        for mb, (ld, st), when in itertools.product(blocks(t, k, r), HINTS, ("early", "late")):
            if when == "early" or (ld, st) in HINTS[:2]:
                yield row(dtype, t, k, r, ld, st, when, mb)
        if r == 1:
            yield from _one_row(dtype, t, k)
        room = min(SM_THREADS // t, SM_BYTES // (t * k * r * 16), 8 // r)
        for hint, when in itertools.product((True, False), ("early", "late")):
            yield staged(dtype, t, k, r, "plain", when, hint=hint, mb=max(1, room))
        yield staged(dtype, t, k, r, "cs", "early", hint=True, mb=max(1, room))
        for hint, st in ((True, "plain"), (False, "plain"), (True, "cs"), (True, "bulk"), (False, "bulk")):
            yield bulk_once(dtype, t, k, r, st, hint=hint)


def _one_row(dtype: str, t: int, k: int) -> Iterator[Variant]:
    """Return the forms that know one row a block: read twice, over a cluster, blocks that stay."""
    full = max(1, SM_THREADS // t)
    if k < 4 or k % 4 == 0:
        for ld, again in itertools.product(("nc", "el"), ("nc", "ef")):
            yield reread(dtype, t, k, ld, again, "plain", early=True, mb=min(full, 8))
        yield reread(dtype, t, k, "nc", "nc", "plain", early=False, mb=min(full, 8))
        yield reread(dtype, t, k, "nc", "nc", "plain", early=True, mb=1)
        yield reread(dtype, t, k, "nc", "ef", "cs", early=True, mb=min(full, 8))
    for c, ld in itertools.product((2, 4), ("plain", "ef")):
        if k % c == 0:
            yield clustered(dtype, c, t, k // c, ld, "plain", min(full, 8 * c))
        if t % (32 * c) == 0 and k <= 4:
            yield clustered(dtype, c, t // c, k, ld, "plain", min(SM_THREADS * c // t, 8 * c))
    for stages, per_sm in ((2, 2), (2, 4), (3, 2), (1, 8)):
        if stages * per_sm * t * k * 16 <= SM_BYTES and per_sm * t <= SM_THREADS:
            yield bulk(dtype, t, k, stages, per_sm, "plain")


def odd(block: int, k: int, ld: str, st: str, lookup: str) -> Variant:
    """Bias + ReLU over one run of packs that begin at any column."""
    text = f"launch_bias_odd<__half,{block},{k},{ENUM[ld]},{STORE[st]},{lookup}>"
    axes: dict[str, object] = {"block": block, "k": k, "ld": ld, "st": st, "by": lookup}
    return Variant("bias_relu", "odd", "f16", text, axes)


def bias_once(block: int, k: int, ld: str, st: str, *, first: bool) -> Variant:
    """Bias + ReLU over one run of packs, float32."""
    text = f"launch_bias_once<float,{block},{k},{ENUM[ld]},{STORE[st]},0,{_text(first)}>"
    axes: dict[str, object] = {"block": block, "k": k, "ld": ld, "st": st, "first": int(first)}
    return Variant("bias_relu", "once", "f32", text, axes)


def add_once(block: int, k: int, ld: str, st: str, *, spread: bool) -> Variant:
    """Vector add, float16."""
    text = f"launch_once<__half,kAdd,{block},{k},{ENUM[ld]},{STORE[st]},0,{_text(spread)}>"
    axes: dict[str, object] = {"block": block, "k": k, "ld": ld, "st": st, "spread": int(spread)}
    return Variant("vector_add", "once", "f16", text, axes)


def pointwise() -> Iterator[Variant]:
    """Bias + ReLU and vector add."""
    sizes = (128, 256, 512, 1024)
    for block, k, (ld, st) in itertools.product(sizes, (1, 2, 4, 8), HINTS):
        if block * k <= 2048:
            for lookup in ("kWrapped", "kSplit", "kShifted"):
                if (ld, st) in HINTS[:3]:
                    yield odd(block, k, ld, st, lookup)
            yield bias_once(block, k, ld, st, first=False)
            yield add_once(block, k, ld, st, spread=False)
            if k > 1 and (ld, st) in HINTS[:2]:
                yield bias_once(block, k, ld, st, first=True)
                yield add_once(block, k, ld, st, spread=True)


def wide() -> list[Variant]:
    """Return every variant of the wide run once, in a fixed order."""
    norms = itertools.chain.from_iterable(
        rmsnorm(dtype, hidden // LANES[dtype]) for group, _, hidden, dtype in SHAPES if group == "rmsnorm"
    )
    return list({v.call: v for v in itertools.chain(pointwise(), norms)}.values())
