"""The grid of the focused run: fewer sizes, and every hint and form that could matter for them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from research.tuning.variants import ENUM, STORE, WHEN, Variant, fits, held

# Asks the L2 cache to keep what it reads.
KEEPER = (512, 1, 2, "el", "plain", "early", 0, 4)


def once(
    group: str, block: int, k: int, ld: str, st: str, *, touch: int = 0, spread: bool = False
) -> Variant:
    """Copy or add whole packs."""
    op = {"copy": "kCopy", "vector_add": "kAdd"}[group]
    text = f"launch_once<__half,{op},{block},{k},{ENUM[ld]},{STORE[st]},{touch},{str(spread).lower()}>"
    axes: dict[str, object] = {
        "block": block, "k": k, "ld": ld, "st": st, "touch": touch, "spread": int(spread),
    }  # fmt: skip
    return Variant(group, "once", "f16", text, axes)


def bias(block: int, k: int, ld: str, st: str, *, touch: int = 0, first: bool = False) -> Variant:
    """Bias + ReLU over one run of packs."""
    text = f"launch_bias_once<__half,{block},{k},{ENUM[ld]},{STORE[st]},{touch},{str(first).lower()}>"
    axes: dict[str, object] = {
        "block": block, "k": k, "ld": ld, "st": st, "touch": touch, "first": int(first),
    }  # fmt: skip
    return Variant("bias_relu", "once", "f16", text, axes)


def tile(bx: int, r: int, ld: str, st: str) -> Variant:
    """Bias + ReLU where a thread stays in its column."""
    text = f"launch_bias_tile<__half,{bx},1,{r},{ENUM[ld]},{STORE[st]},kPaired,true,0>"
    axes: dict[str, object] = {"bx": bx, "r": r, "ld": ld, "st": st}
    return Variant("bias_relu", "tile", "f16", text, axes)


def row(t: int, k: int, r: int, ld: str, st: str, when: str, touch: int, mb: int) -> Variant:
    """Rmsnorm, the row in registers."""
    text = f"launch_row_once<__half,{t},{k},{r},{ENUM[ld]},{STORE[st]},{WHEN[when]},{touch},{mb}>"
    axes: dict[str, object] = {
        "t": t, "k": k, "r": r, "ld": ld, "st": st, "w": when, "touch": touch, "mb": mb,
    }  # fmt: skip
    return Variant("rmsnorm", "row", "f16", text, axes)


def bulk(t: int, k: int, r: int, hint: bool, st: str) -> Variant:
    """Rmsnorm through shared memory, one launch; ``st`` bulk lets the rows leave the same way."""
    out = st == "bulk"
    text = (
        f"launch_bulk_once<__half,{t},{k},{r},{str(hint).lower()},{str(out).lower()},"
        f"{STORE['plain' if out else st]}>"
    )
    axes: dict[str, object] = {"t": t, "k": k, "r": r, "hint": int(hint), "st": st}
    return Variant("rmsnorm", "bulk_once", "f16", text, axes)


def stream(group: str, t: int, k: int, chunks: int, st: str) -> Variant:
    """Copy, add or bias + ReLU through shared memory; ``st`` bulk lets the results leave the same way."""
    op = {"copy": "kStreamCopy", "vector_add": "kStreamAdd", "bias_relu": "kStreamBias"}[group]
    out = st == "bulk"
    text = f"launch_stream<__half,{op},{t},{k},{chunks},{str(out).lower()},{STORE['plain' if out else st]}>"
    axes: dict[str, object] = {"t": t, "k": k, "chunks": chunks, "st": st}
    return Variant(group, "stream", "f16", text, axes)


def pointwise() -> Iterator[Variant]:
    """Copy, vector add and bias + ReLU."""
    blocks, packs = (64, 128, 256, 512, 1024), (1, 2, 4)
    for block, k, ld, st in itertools.product(blocks, packs, ("plain", "nca", "ef"), ("plain", "cs")):
        yield once("vector_add", block, k, ld, st)
        yield bias(block, k, ld, st)
        yield once("copy", block, k, ld, st)
    for block, k, ld in itertools.product((128, 256, 512), (2, 4), ("plain", "nca")):
        yield once("vector_add", block, k, ld, "plain", spread=True)
        yield bias(block, k, ld, "plain", first=True)
    for bx, r, st in itertools.product((64, 128, 256), packs, ("plain", "cs")):
        yield tile(bx, r, "plain", st)
    for t, k, chunks, st in itertools.product(
        (64, 128, 256, 512), (1, 2, 4), (1, 2, 4), ("plain", "cs", "bulk")
    ):
        if t * k <= 1024 and chunks * t * k <= 2048:
            yield stream("vector_add", t, k, chunks, st)
            yield stream("bias_relu", t, k, chunks, st)
            yield stream("copy", t, k, chunks, st)


def rmsnorm() -> Iterator[Variant]:
    """Hidden 4096, float16."""
    forms = ((128, 4, 1), (128, 4, 2), (256, 2, 2), (256, 2, 4), (512, 1, 1), (512, 1, 2), (512, 1, 4))
    for (t, k, r), ld, st, when in itertools.product(
        forms, ("plain", "ef"), ("plain", "cs"), ("early", "first", "late")
    ):
        yield row(t, k, r, ld, st, when, 0, fits(t, 1, r))
    yield row(*KEEPER)
    for g, ld, st in itertools.product((4, 8), ("plain", "nca"), ("plain", "cs")):
        yield held("f16", 32, 16, 1, g, ld=ld, st=st, when="late")
    for (t, k), r, hint, st in itertools.product(
        ((64, 8), (128, 4), (256, 2), (512, 1)), (1, 2, 4, 8), (True, False), ("plain", "cs", "bulk")
    ):
        yield bulk(t, k, r, hint, st)


def focused() -> list[Variant]:
    """Return every variant of the focused run once, in a fixed order."""
    return list({v.call: v for v in itertools.chain(pointwise(), rmsnorm())}.values())
