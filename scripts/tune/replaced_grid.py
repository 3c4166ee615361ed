"""What ships, on a shape of every form, beside the forms that it replaced and their nearest relatives.

The wide grid chose the forms at a few lengths; here are the lengths between them, fewer rows, and the shapes
that must not have become slower.
"""

from __future__ import annotations

from collections.abc import Iterator

from variants import CTYPE, ENUM, STORE, Variant
from wide_grid import SM_BYTES, SM_THREADS, bias_once, shipped, staged

# group, rows, hidden, dtype
SHAPES = (
    ("rmsnorm", 1024, 4096, "f32"), ("rmsnorm", 1024, 8192, "f32"), ("rmsnorm", 512, 16384, "f32"),
    ("rmsnorm", 1024, 5120, "f16"), ("rmsnorm", 1024, 6144, "f16"), ("rmsnorm", 1024, 7168, "f16"),
    ("rmsnorm", 1024, 8192, "f16"), ("rmsnorm", 512, 12288, "f16"), ("rmsnorm", 512, 16384, "f16"),
    ("rmsnorm", 16, 8192, "f16"), ("rmsnorm", 256, 8192, "f16"),
    ("rmsnorm", 1024, 4096, "f16"), ("rmsnorm", 65536, 4096, "f16"),
    ("bias_relu", 1024, 4097, "f16"), ("bias_relu", 1024, 4097, "f32"), ("bias_relu", 1024, 4096, "f32"),
    ("bias_relu", 4096, 4096, "f16"), ("bias_relu", 1024, 4096, "f16"), ("bias_relu", 65536, 4096, "f16"),
)  # fmt: skip
BESIDE_COMPILED = tuple(shape for shape in SHAPES if 1 << 22 <= shape[1] * shape[2] < 1 << 25)

# Threads, units, rows and the load's hint, by the units of a row.
ROWS = {
    512: ((512, 1, 2, True), (512, 1, 4, False)),
    640: ((128, 5, 1, False), (160, 4, 2, False)),
    768: ((128, 6, 1, False), (192, 4, 2, False)),
    896: ((128, 7, 1, False), (224, 4, 2, False)),
    1024: ((128, 8, 1, False), (512, 2, 2, False)),
    1536: ((512, 3, 1, False), (384, 4, 1, False)),
    2048: ((512, 4, 1, False), (256, 8, 1, False)),
    4096: ((1024, 4, 1, False), (512, 8, 1, False)),
}
STAGED = {
    640: ((320, 2, 2),),
    768: ((384, 2, 2), (384, 2, 1), (192, 4, 2)),
    896: ((448, 2, 2), (448, 2, 1), (224, 4, 2)),
    1024: ((512, 2, 2), (512, 2, 1), (128, 8, 1)),
    1536: ((768, 2, 2), (768, 2, 1), (384, 4, 1)),
    2048: ((1024, 2, 2), (1024, 2, 1), (512, 4, 1)),
    4096: ((1024, 4, 1), (512, 8, 1)),
}


def rmsnorm(dtype: str) -> Iterator[Variant]:
    """Rows in registers and in shared memory."""
    for forms in ROWS.values():
        for t, k, r, ef in forms:
            yield shipped(dtype, t, k, r, ef=ef)
    for longer in STAGED.values():
        for t, k, r in longer:
            room = min(SM_THREADS // t, SM_BYTES // (t * k * r * 16), 8 // r)
            for hint in (True, False):
                yield staged(dtype, t, k, r, "plain", "early", hint=hint, mb=max(1, room))


def bias_relu() -> Iterator[Variant]:
    """Packs that begin at any column, and rows of whole packs."""
    for dtype in ("f16", "f32"):
        for block, k, by in (
            (128, 2, "kSplit"),
            (128, 4, "kSplit"),
            (512, 1, "kShifted"),
            (512, 2, "kShifted"),
        ):
            for ld in ("plain", "nca"):
                text = f"launch_bias_odd<{CTYPE[dtype]},{block},{k},{ENUM[ld]},{STORE['plain']},{by}>"
                axes: dict[str, object] = {"block": block, "k": k, "ld": ld, "by": by}
                yield Variant("bias_relu", "odd", dtype, text, axes)
    for k in (1, 2, 4):
        for ld in ("plain", "nca"):
            yield bias_once(128, k, ld, "plain", first=False)


def replaced() -> list[Variant]:
    """Return every variant of this run once, in a fixed order."""
    return [*bias_relu(), *rmsnorm("f16"), *rmsnorm("f32")]
