"""Contrasts by their figures."""

from taskloom.runs.analysis.contrasts import Contrast, Noise


def contrast_of(
    delta: float, seeds: int, spread: float, common: float = 0.0, freedom: float = 12, share: float = 1.0
) -> Contrast:
    """A contrast with one estimate of its noise, which has the whole level unless a share is given."""
    kind = "pooled" if seeds > 1 else "examples"
    return Contrast(delta, seeds, (Noise(kind, share, spread, freedom, common, seeds),))
