"""Published figures: whether an overall score that somebody printed follows from the parts printed beside it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

#: Metrics whose kind is known without importing plugins. ``normalised`` maps only correlations to (r + 1)/2.
CORRELATIONS = frozenset({"pearson", "spearman"})
SHARES = frozenset({"accuracy", "macro_f1"})


@dataclass(frozen=True)
class Derived:
    """The overall score that follows from printed parts, and how far rounding can have moved a printed one from it."""

    value: float
    slack: float

    def explains(self, printed: float) -> bool:
        return abs(printed - self.value) <= self.slack + 1e-9  # the parts are binary fractions


def derive_overall(
    reported: Mapping[str, float], tasks: Iterable[str], spec: Mapping[str, Any], digits: int
) -> Derived | None:
    """The overall score of a row by the run's rule, or None where parts are missing or a metric is of unknown kind.

    overall = Σᵢ wᵢ sᵢ + c: with T tasks wᵢ is 1/T, and 1/(2T) for a correlation that is normalised. A figure printed
    with k digits is off by at most h = ½ · 10⁻ᵏ, each part moves the sum by up to wᵢ h, and the printed overall is off
    by h itself; so a printed overall follows from its parts if it lies within h (1 + Σᵢ wᵢ) of their combination.

    >>> spec = {"overall": "mean", "tasks": {"a": {"metric": "accuracy"}, "b": {"metric": "pearson"}}}
    >>> derived = derive_overall({"a": 0.5, "b": 0.25}, ["a", "b"], spec, digits=3)
    >>> derived.value, round(derived.slack, 6), derived.explains(0.376), derived.explains(0.377)
    (0.375, 0.001, True, False)
    """
    parts = spec.get("tasks", {})
    names = [name for name in tasks if name in parts]
    if not names or any(name not in reported for name in names):
        return None
    metrics = {name: _name_of(parts[name].get("metric", "accuracy")) for name in names}
    normalised = spec.get("overall") == "normalised"
    if normalised and not set(metrics.values()) <= CORRELATIONS | SHARES:
        return None
    value, weights = 0.0, 0.0
    for name in names:
        mapped = normalised and metrics[name] in CORRELATIONS
        weights += (0.5 if mapped else 1.0) / len(names)
        value += ((reported[name] + 1) / 2 if mapped else reported[name]) / len(names)
    return Derived(value, 0.5 * 10.0**-digits * (1 + weights))


def printed_digits(figures: Iterable[float]) -> int:
    """With how many digits figures were printed: the most that any has, since a number drops its last zeros.

    >>> printed_digits([0.5, 0.25, 1])
    2
    """
    exponents = (Decimal(str(figure)).normalize().as_tuple().exponent for figure in figures)
    return max((-exponent for exponent in exponents if isinstance(exponent, int)), default=0)


def _name_of(component: Any) -> str:
    return str(component["name"] if isinstance(component, Mapping) else component)
