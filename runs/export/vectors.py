"""How token states are pooled into sentence vectors, as far as other programs have to know it."""

from dataclasses import dataclass

from taskloom.core import TaskloomError
from taskloom.runs.predict.trained import TrainedModel

#: The poolings that every format can express; an encoder's own kinds are unknown on the other side.
POOLINGS = ("pooler", "cls", "mean", "max")


@dataclass(frozen=True)
class SentencePooling:
    """A pooling method, and whether the pooled vectors are divided by their length."""

    method: str
    normalized: bool = False

    def __str__(self) -> str:
        return f"{self.method} and normalized" if self.normalized else self.method


def own_pooling(model: TrainedModel) -> SentencePooling:
    """Return the pooling of ``model.encode``: the one that all heads ask for or, if they differ, the encoder's own."""
    return _pooling(model, model.pooling_of(None))


def head_pooling(model: TrainedModel, task: str) -> SentencePooling:
    """Return the pooling of the vectors that a task's head reads."""
    return _pooling(model, model.pooling_of(task))


def all_poolings(model: TrainedModel) -> list[SentencePooling]:
    """Return every pooling that the model needs, its own first."""
    return list(dict.fromkeys([own_pooling(model), *(head_pooling(model, task) for task in model.tasks)]))


def _pooling(model: TrainedModel, method: str | None) -> SentencePooling:
    """Return a pooling by ``method``, by default the encoder's own; ``TaskloomError`` if no format can express it."""
    encoder = model.encoder
    pooling = SentencePooling(method) if method else SentencePooling(str(encoder.pooling), encoder.normalized)
    if pooling.method not in POOLINGS:
        raise TaskloomError(
            f"encoder {encoder.name!r} pools by {encoder.pooling!r}, which other programs do not know; an exported "
            f"model pools by {', '.join(POOLINGS)}"
        )
    return pooling
