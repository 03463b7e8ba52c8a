"""A fixed weight for each task."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from taskloom.core import Problem, RequestError, unknown
from taskloom.plugins.combiners.fixed import FixedWeights


class Weighted(FixedWeights):
    """The sum of the tasks' gradients, each times a weight of your choice.

    g = Σᵢ wᵢ gᵢ, the gradient of the weighted sum of losses. The heads' own parameters get the weight too. A task
    that is not named weighs 1; a task of weight 0 is scored but does not train the model.

    Reads: the gradient of every task in the step; keeps none of them.

    Options:
        weights: task → weight, as in {"sst": 2.0}; none named is ``sum``

    Siblings: ``sum`` weighs all tasks alike; ``dwa``, ``uncertainty`` and ``famo`` adapt the weights themselves.

    Reference: Caruana, "Multitask Learning", Machine Learning 28, 1997.

    Example:
        {"stages": [{"combiner": {"name": "weighted", "weights": {"para": 0.5, "sts": 2.0}}}]}
    """

    name = "weighted"

    def __init__(self, *, weights: dict[str, Annotated[float, Field(ge=0)]] | None = None) -> None:
        super().__init__()
        self.named = dict(weights or {})

    def problems(self, tasks: Sequence[str]) -> list[Problem]:
        unknown_tasks = [task for task in self.named if task not in tasks]
        return [Problem("weights", unknown("task", task, tasks, where="tasks of the stage")) for task in unknown_tasks]

    def prepare(self, *, tasks: Sequence[str]) -> None:
        if problems := self.problems(tasks):
            raise RequestError("combiner 'weighted'", problems)

    def factors(self, tasks: Sequence[str]) -> list[float]:
        return [self.named.get(task, 1.0) for task in tasks]
