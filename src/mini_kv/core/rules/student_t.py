"""Student's t distribution through the regularised incomplete beta function."""

from __future__ import annotations

import math

_TINY = 1e-300
_EPSILON = 1e-15
_MAX_TERMS = 10_000


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Evaluate the continued fraction of I_x(a, b) (DLMF 8.17.22) by the modified Lentz method."""
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    value = d
    for m in range(1, _MAX_TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + term * d
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = 1.0 + term / c
            c = c if abs(c) > _TINY else _TINY
            step = c * d
            value *= step
        if abs(step - 1.0) < _EPSILON:
            return value
    raise ArithmeticError(f"I_x(a, b) did not converge at a={a}, b={b}, x={x}")


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b) for a, b > 0 and 0 <= x <= 1."""
    if not (a > 0.0 and b > 0.0 and 0.0 <= x <= 1.0):
        raise ValueError(f"I_x(a, b) is not defined at a={a}, b={b}, x={x}")
    if x in (0.0, 1.0):
        return x
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    # The fraction converges fast below the mean of the distribution; above it the symmetry is used.
    if x < (a + 1.0) / (a + b + 2.0):
        return math.exp(log_front) * _beta_fraction(a, b, x) / a
    return 1.0 - math.exp(log_front) * _beta_fraction(b, a, 1.0 - x) / b


def survival(t: float, degrees: float) -> float:
    """Return P(T > t) for Student's t with ``degrees`` degrees of freedom."""
    if math.isnan(t) or not degrees > 0.0:
        raise ValueError(f"Student's t is not defined at t={t} with {degrees} degrees of freedom")
    if math.isinf(t):
        return 0.0 if t > 0.0 else 1.0
    square = t * t
    if square < degrees:  # near the middle 1 - x would lose the digits of t
        half = 0.5 * incomplete_beta(0.5, degrees / 2.0, square / (degrees + square))
        return 0.5 - half if t >= 0.0 else 0.5 + half
    tail = 0.5 * incomplete_beta(degrees / 2.0, 0.5, degrees / (degrees + square))
    return tail if t >= 0.0 else 1.0 - tail


def quantile(probability: float, degrees: float) -> float:
    """Return t with P(T <= t) = ``probability``, for 0 < probability < 1, by bisection."""
    if not 0.0 < probability < 1.0 or not degrees > 0.0:
        raise ValueError(f"no quantile at {probability} with {degrees} degrees of freedom")
    if probability < 0.5:
        return -quantile(1.0 - probability, degrees)
    low, high = 0.0, 1.0
    while survival(high, degrees) > 1.0 - probability:
        low, high = high, high * 2.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if survival(middle, degrees) > 1.0 - probability:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)
