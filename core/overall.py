"""How the scores of a run's tasks become one. No pydantic, so that tables need none."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any


@dataclass(frozen=True)
class Overall:
    """The overall score of a run: Σᵢ wᵢ sᵢ / Σᵢ wᵢ over the scores sᵢ of its tasks.

    ``normalised`` maps correlations to (r + 1)/2 first. A task that is not among the ``weights`` weighs 1, and one that
    weighs 0 does not count.

    >>> how = Overall.of({"overall": {"name": "mean", "weights": {"sst": 3}}})
    >>> how.shares(["sst", "sts"]), how.score({"sst": 0.5, "sts": 0.9}, correlations=["sts"])
    ({'sst': 0.75, 'sts': 0.25}, 0.6)
    """

    normalised: bool = False
    weights: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> "Overall":
        """The overall score that a run's specification states, resolved or not."""
        spec = run.get("overall", "mean")
        spec = {"name": spec} if isinstance(spec, str) else spec
        return cls(spec.get("name") == "normalised", spec.get("weights", {}))

    def shares(self, tasks: Iterable[str]) -> dict[str, float]:
        """The weight of each task that counts; they sum to 1. Empty if none counts."""
        weights = {task: weight for task in tasks if (weight := float(self.weights.get(task, 1.0))) > 0}
        total = sum(weights.values())
        return {task: weight / total for task, weight in weights.items()}

    def slopes(self, tasks: Iterable[str], correlations: Collection[str]) -> dict[str, float]:
        """How far the overall score moves with the score of each task that counts: its share, or half of it."""
        halved = correlations if self.normalised else ()
        return {task: (0.5 if task in halved else 1.0) * share for task, share in self.shares(tasks).items()}

    def score(self, scores: Mapping[str, float], correlations: Collection[str]) -> float | None:
        """The overall score; None if no task counts."""
        mapped = correlations if self.normalised else ()
        counted = self.shares(scores)
        parts = [(scores[task] + 1) / 2 if task in mapped else scores[task] for task in counted]
        return fmean(parts, [float(self.weights.get(task, 1.0)) for task in counted]) if parts else None
