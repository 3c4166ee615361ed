"""The grids of kernel variants: which template arguments are tried for which operator and size."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

CTYPE = {"f16": "__half", "bf16": "__nv_bfloat16", "f32": "float"}
LANES = {"f16": 8, "bf16": 8, "f32": 4}
ENUM = {
    "plain": "kPlain", "nc": "kNc", "nca": "kNca", "nca256": "kNca256", "cs": "kCs", "ef": "kEvictFirst",
    "el": "kEvictLast",
}  # fmt: skip
STORE = {"plain": "kStorePlain", "cs": "kStoreCs", "wt": "kStoreWt", "ef": "kStoreEf"}
WHEN = {"late": "kLate", "early": "kEarly", "first": "kFirst"}


@dataclass(frozen=True)
class Variant:
    """One kernel: the C++ expression of its launcher and the axes it stands for."""

    group: str
    kind: str
    dtype: str
    call: str
    axes: dict[str, object] = field(hash=False)

    @property
    def label(self) -> str:
        """Return the axes in one line; unique within a group."""
        return f"{self.kind} {self.dtype} " + " ".join(f"{k}={v}" for k, v in self.axes.items())


def held(
    dtype: str, t: int, k: int, r: int = 1, g: int = 1, *, ld: str = "plain", st: str = "plain",
    when: str = "early", exact: bool = True, keep: bool = True, mb: int = 1, ps: int = 0,
) -> Variant:  # fmt: skip
    """Rmsnorm with the row in registers."""
    text = (
        f"launch_held<{CTYPE[dtype]},{t},{k},{r},{g},{ENUM[ld]},{STORE[st]},{WHEN[when]},"
        f"{str(exact).lower()},{str(keep).lower()},{mb},{ps}>"
    )
    axes: dict[str, object] = {
        "t": t, "k": k, "r": r, "g": g, "ld": ld, "st": st, "w": when, "exact": int(exact),
        "keep": int(keep), "mb": mb, "ps": ps,
    }  # fmt: skip
    return Variant("rmsnorm", "held", dtype, text, axes)


def bulk(dtype: str, t: int, k: int, stages: int, per_sm: int, st: str) -> Variant:
    """Rmsnorm through shared memory."""
    text = f"launch_bulk<{CTYPE[dtype]},{t},{k},{stages},{STORE[st]},1,{per_sm}>"
    axes: dict[str, object] = {"t": t, "k": k, "stages": stages, "ps": per_sm, "st": st}
    return Variant("rmsnorm", "bulk", dtype, text, axes)


def fits(t: int, g: int, r: int, rows_per_sm: int = 8) -> int:
    """Return how many blocks an SM should hold so that 1024 rows run in one wave."""
    return max(1, min(rows_per_sm // (r * g), 2048 // (t * g)))


def rmsnorm_main() -> Iterator[Variant]:
    """Hidden 4096, float16, every axis."""
    forms = (
        (128, 4, 1, 1), (128, 4, 2, 1), (128, 4, 4, 1),
        (256, 2, 1, 1), (256, 2, 2, 1), (256, 2, 4, 1), (256, 2, 8, 1),
        (512, 1, 1, 1), (512, 1, 2, 1), (512, 1, 4, 1), (512, 1, 8, 1),
        (64, 8, 1, 1), (64, 8, 2, 1), (32, 16, 1, 1), (32, 16, 1, 4), (32, 16, 1, 8),
    )  # fmt: skip
    for (t, k, r, g), ld, st, when in itertools.product(
        forms, ("plain", "nca", "cs"), ("plain", "cs"), ("late", "early")
    ):
        for mb in sorted({1, fits(t, g, r)}):
            yield held("f16", t, k, r, g, ld=ld, st=st, when=when, mb=mb)
    for (t, k, r), ld, when in itertools.product(
        ((128, 4, 1), (256, 2, 1), (512, 1, 1), (256, 2, 4), (512, 1, 4)), ("plain", "nca"), ("late", "early")
    ):
        yield held("f16", t, k, r, ld=ld, when=when, exact=False, mb=fits(t, 1, r))
        yield held("f16", t, k, r, ld=ld, when=when, keep=False, mb=1)
        yield held("f16", t, k, r, ld=ld, st="wt", when=when, mb=fits(t, 1, r))
        yield held("f16", t, k, r, ld="ef", st="ef", when=when, mb=fits(t, 1, r))
        yield held("f16", t, k, r, ld="nc", st="ef", when=when, mb=fits(t, 1, r))
    for (t, k, r, ps), ld, st in itertools.product(
        ((512, 1, 4, 2), (512, 1, 2, 4), (512, 1, 2, 2), (256, 2, 2, 4), (256, 2, 4, 2), (256, 2, 1, 8),
         (128, 4, 1, 8), (128, 4, 1, 12), (128, 4, 2, 4), (512, 1, 1, 4)),
        ("plain", "nca", "cs"),
        ("plain", "cs"),
    ):  # fmt: skip
        yield held("f16", t, k, r, ld=ld, st=st, when="first", mb=1, ps=ps)
    for (t, k, stages, ps), st in itertools.product(
        ((128, 4, 1, 8), (128, 4, 2, 4), (128, 4, 2, 8), (128, 4, 4, 4), (256, 2, 1, 8), (256, 2, 2, 4),
         (256, 2, 2, 8), (256, 2, 4, 2), (256, 2, 4, 4), (512, 1, 2, 4), (512, 1, 4, 2), (512, 1, 8, 1),
         (512, 1, 8, 2)),
        ("plain", "cs"),
    ):  # fmt: skip
        yield bulk("f16", t, k, stages, ps, st)


def rmsnorm_others() -> Iterator[Variant]:
    """Other hidden sizes (by their number of packs) and dtypes, the likely axes only."""
    forms = {
        ("f16", 96): ((32, 3), (96, 1)),
        ("f16", 640): ((64, 10), (128, 5), (160, 4), (320, 2), (640, 1)),
        ("f16", 1024): ((128, 8), (256, 4), (512, 2), (1024, 1)),
        ("f16", 2048): ((256, 8), (512, 4), (1024, 2)),
        ("bf16", 512): ((128, 4), (256, 2), (512, 1)),
        ("f32", 1024): ((128, 8), (256, 4), (512, 2), (1024, 1)),
    }
    for (dtype, packs), pairs in forms.items():
        for (t, k), ld, st, when in itertools.product(
            pairs, ("plain", "nca"), ("plain", "cs"), ("late", "early")
        ):
            for r in (1, 2, 4):
                if k * r > 10:
                    continue
                rows_per_sm = max(1, 4096 // packs)
                groups = (1, 4, 8) if t == 32 else (1,)
                for g in groups:
                    for mb in sorted({1, fits(t, g, r, rows_per_sm)}):
                        yield held(dtype, t, k, r, g, ld=ld, st=st, when=when, mb=mb)


def bias_relu() -> Iterator[Variant]:
    """Tiles and flat runs, float16 with every axis; float32 with the likely ones."""

    def tile(
        dtype: str, bx: int, by: int, r: int, ld: str, st: str, math: str, first: bool, ps: int
    ) -> Variant:
        text = (
            f"launch_bias_tile<{CTYPE[dtype]},{bx},{by},{r},{ENUM[ld]},{STORE[st]},{math},"
            f"{str(first).lower()},{ps}>"
        )
        axes: dict[str, object] = {
            "bx": bx, "by": by, "r": r, "ld": ld, "st": st, "math": math, "first": int(first), "ps": ps,
        }  # fmt: skip
        return Variant("bias_relu", "tile", dtype, text, axes)

    def flat(dtype: str, block: int, k: int, ld: str, st: str, math: str) -> Variant:
        text = f"launch_bias_flat<{CTYPE[dtype]},{block},{k},{ENUM[ld]},{STORE[st]},{math}>"
        axes: dict[str, object] = {"block": block, "k": k, "ld": ld, "st": st, "math": math}
        return Variant("bias_relu", "flat", dtype, text, axes)

    blocks = ((512, 1), (256, 1), (128, 1), (128, 2), (64, 4))
    loads, stores = ("plain", "nca", "nca256", "cs"), ("plain", "cs")
    for (bx, by), r, ld, st, first in itertools.product(blocks, (1, 2, 4, 8), loads, stores, (True, False)):
        yield tile("f16", bx, by, r, ld, st, "kPaired", first, 0)
    for (bx, by), r in itertools.product(blocks, (1, 2, 4, 8)):
        yield tile("f16", bx, by, r, "nca", "plain", "kFloat", True, 0)
        yield tile("f16", bx, by, r, "nca", "plain", "kPaired", True, 4)
        yield tile("f16", bx, by, r, "nca", "cs", "kPaired", True, 8)
        yield tile("f16", bx, by, r, "ef", "ef", "kPaired", True, 0)
        for ld, st in itertools.product(("plain", "nca"), stores):
            yield tile("f32", bx, by, r, ld, st, "kFloat", True, 0)
    for block, k, ld, st in itertools.product((128, 256, 512, 1024), (1, 2, 4), loads, stores):
        yield flat("f16", block, k, ld, st, "kPaired")


def vector_add() -> Iterator[Variant]:
    """float16, every axis."""

    def add(block: int, k: int, ld: str, st: str, math: str, ps: int) -> Variant:
        text = f"launch_add<__half,{block},{k},{ENUM[ld]},{STORE[st]},{math},{ps}>"
        axes: dict[str, object] = {"block": block, "k": k, "ld": ld, "st": st, "math": math, "ps": ps}
        return Variant("vector_add", "add", "f16", text, axes)

    for block, k, ld, st in itertools.product(
        (64, 128, 256, 512, 1024), (1, 2, 4), ("plain", "nca", "nca256", "cs", "ef"), ("plain", "cs")
    ):
        yield add(block, k, ld, st, "kPaired", 0)
    for block, k in itertools.product((128, 256, 512), (1, 2, 4)):
        yield add(block, k, "plain", "plain", "kFloat", 0)
        yield add(block, k, "nca", "ef", "kPaired", 0)
        yield add(block, k, "nca", "plain", "kPaired", 2048 // block)
        yield add(block, k, "nca", "cs", "kPaired", 4096 // block)


def all_variants() -> list[Variant]:
    """Return every variant once, in a fixed order."""
    chain = itertools.chain(vector_add(), bias_relu(), rmsnorm_main(), rmsnorm_others())
    return list({v.call: v for v in chain}.values())
