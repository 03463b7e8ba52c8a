"""Interface 3 of 5: prediction + target → scalar."""

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Any, ClassVar, Literal, cast

from torch import Tensor, nn

from taskloom.core.component import Component
from taskloom.core.data import Labels
from taskloom.core.prediction import Again, Prediction, ScoreMeans

#: What a loss looks at: one logit per class, one number per example, or the sentence vectors alone.
Expects = Literal["classes", "score", "vectors"]
#: Yields what a loss asks for, is sent the answers, returns the loss.
Course = Generator[Again, Any, Tensor]


class Loss(nn.Module, Component, ABC):
    """Turns a prediction and its target into one number to be made small.

    ``expects`` says what it looks at: ``classes`` (one logit per class), ``score`` (one number per example) or
    ``vectors`` (only the sentence vectors; any head will do). The target is [B]: class numbers (int64) or values
    (float32), as the data set's labels say.

    ``score_means`` says what the one number of a ``score`` is: the ``logit`` of the second of two classes, which then
    counts above 0, or a ``value`` in the units of the labels, which is rounded to the nearest class. A loss for two
    classes states it. A loss that wraps others hands on what they say; as only its constructor knows ``expects``, its
    class states the annotation alone (``expects: Expects``).

    ``separable`` says that the loss of a batch is the mean over its examples, each one's by itself: such a batch can be
    worked off in parts that are forgotten one after another. Any other loss sees the whole batch at once, however few
    examples are in memory at a time.

    ``stops_gradient`` says that a part of the loss is detached on purpose (the target branch of SimSiam, a running mean
    that it is divided by), so that its gradient is not that of its value, which ``check`` would otherwise require.

    A loss that changes over time keeps its state in buffers: they are saved with every checkpoint and restored.

    What ``taskloom.core.testing.check`` asks: one finite number, for extreme scores and a batch of one too; the
    gradient of finite differences (what it adds to embeddings before a replay counts as a constant); the order of
    examples does not matter; no sum over examples; float32 and bfloat16; random numbers from ``self.generator`` alone;
    buffers that keep no graph of a step, and with ``separable`` are after the parts as after the whole batch.
    """

    kind: ClassVar[str] = "loss"
    expects: Expects
    #: What one number per example means; None where it is not looked at, or labels are no classes.
    score_means: ScoreMeans = None
    #: How many vectors per example it can work with (2 for a pair); None where it does not matter.
    vectors: tuple[int, ...] | None = None
    #: Whether the loss of a batch is the mean of the losses of its examples; to be on the safe side, not.
    separable: bool = False
    #: Whether it replays its pass, or differentiates it by ``replay.embedded``. Where a combiner keeps gradients apart,
    #: tasks are then taken one after another: several passes of several tasks at once would fill the memory, and the
    #: embeddings lead to the score only in a pass of its own.
    replays: bool = False
    #: Whether the gradient is meant to differ from that of the value, as something in it is detached.
    stops_gradient: bool = False

    def prepare(self, *, labels: Labels, rows: int) -> None:
        """Called once before training with the meaning of the labels and the number of training examples.

        Raise ``TrainingError`` for labels that make no sense here: planning asks too, before anything is trained.
        """

    @abstractmethod
    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        """The loss of a batch: a scalar, the mean over its examples."""

    def course(self, prediction: Prediction, target: Tensor) -> Course:
        """The same as a generator that pauses wherever it wants a replay: it yields what it asks for and is sent the
        answer. Worth overriding where a loss replays: a run then answers all tasks of a step by one pass.
        """
        return self(prediction, target)  # type: ignore[no-any-return]
        yield  # which makes it a generator

    def epoch_ended(self, *, epoch: int, score: float, overall: float) -> None:
        """Called after each epoch (counted from 1) with the task's dev metric and the overall dev score."""

    def metrics(self) -> dict[str, float]:
        """Those parts of its state that are worth a curve, by name; recorded after each epoch."""
        return {}


def finish(course: Course, prediction: Prediction) -> Tensor:
    """Go through the course of a loss, with a pass of its own for everything that it asks for."""
    answer = None
    try:
        while True:
            ask = course.send(answer)
            assert prediction.replay is not None, "a run's predictions can be replayed"
            answer = ask.answer(prediction.replay)
    except StopIteration as end:
        return cast(Tensor, end.value)
