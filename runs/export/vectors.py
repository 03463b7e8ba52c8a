"""How sentence vectors are made of the states of their tokens, as other programs have to know it."""

from dataclasses import dataclass

from taskloom.core import TaskloomError
from taskloom.runs.predict.trained import TrainedModel

#: What becomes of states in every format; what an encoder calls otherwise is unknown on the other side.
POOLINGS = ("pooler", "cls", "mean", "max")


@dataclass(frozen=True)
class Way:
    """A pooling, and whether vectors are divided by their length afterwards."""

    pooling: str
    normalized: bool = False

    def __str__(self) -> str:
        return f"{self.pooling} and normalized" if self.normalized else self.pooling


def own_way(model: TrainedModel) -> Way:
    """How ``model.encode`` does it: as all heads of the run ask for, or, if they differ, as the encoder by itself."""
    return _way(model, model.pooling_of(None))


def way_of(model: TrainedModel, task: str) -> Way:
    """How the vectors are made that a task's head reads."""
    return _way(model, model.pooling_of(task))


def ways(model: TrainedModel) -> list[Way]:
    """All ways that the model needs, its own first."""
    return list(dict.fromkeys([own_way(model), *(way_of(model, task) for task in model.tasks)]))


def _way(model: TrainedModel, asked: str | None) -> Way:
    encoder = model.encoder
    found = Way(asked) if asked else Way(str(encoder.pooling), encoder.normalized)
    if found.pooling not in POOLINGS:
        raise TaskloomError(
            f"encoder {encoder.name!r} pools by {encoder.pooling!r}, which other programs do not know; an exported "
            f"model pools by {', '.join(POOLINGS)}"
        )
    return found
