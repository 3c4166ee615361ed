"""One kernel variant, and the launchers and names that several grids share."""

from __future__ import annotations

from dataclasses import dataclass, field

CTYPE = {"f16": "__half", "bf16": "__nv_bfloat16", "f32": "float"}
LANES = {"f16": 8, "bf16": 8, "f32": 4}
ENUM = {
    "plain": "kPlain", "nc": "kNc", "nca": "kNca", "cs": "kCs", "ef": "kEvictFirst", "el": "kEvictLast",
}  # fmt: skip
STORE = {"plain": "kStorePlain", "cs": "kStoreCs", "ef": "kStoreEf"}
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
