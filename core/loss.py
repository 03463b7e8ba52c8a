"""Interface 3 of 5: prediction + target → scalar."""

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Any, ClassVar, Literal, cast

from torch import Tensor, nn

from taskloom.core.component import Component
from taskloom.core.data import Labels
from taskloom.core.prediction import Prediction, ReplayRequest, ScoreMeans

#: What a loss looks at: one logit per class, one number per example, or the sentence vectors alone.
Expects = Literal["classes", "score", "vectors"]
#: A generator that yields requests for replays, is sent the answers, and returns the loss.
LossProgram = Generator[ReplayRequest, Any, Tensor]


class Loss(nn.Module, Component, ABC):
    """Turns a prediction and its target into one number to minimise.

    ``expects`` says what it looks at: ``classes`` (one logit per class), ``score`` (one number per example) or
    ``vectors`` (only the sentence vectors; any head will do). The target is [B]: class numbers (int64) or values
    (float32), as the data set's labels say.

    ``score_means`` says what the one number of a ``score`` is: the ``logit`` of the second of two classes, which then
    counts above 0, or a ``value`` in the units of the labels, which is rounded to the nearest class. A loss for two
    classes states it. A loss that wraps others hands on what they say; as only its constructor knows ``expects``, its
    class states the annotation alone (``expects: Expects``).

    ``separable`` says that the loss of a batch is the mean of its examples' losses, each independent of the others:
    such a batch can be processed in micro-batches whose activations are freed. Any other loss sees the whole batch at
    once, however few examples are in memory at a time.

    ``stops_gradient`` says that a part of the loss is detached on purpose (the target branch of SimSiam, a running mean
    that it is divided by), so that its gradient is not that of its value, which ``check`` would otherwise require.

    A loss that changes over time keeps its state in buffers: they are saved with every checkpoint and restored.

    ``taskloom.core.testing.check`` requires: one finite number, for extreme scores and a batch of one too; the
    gradient of finite differences (what it adds to embeddings before a replay counts as a constant); no dependence on
    the order of examples; no sum over examples; float32 and bfloat16; random numbers from ``self.generator`` alone;
    buffers that keep no graph of a step and, with ``separable``, are the same after micro-batches as after the batch.
    """

    kind: ClassVar[str] = "loss"
    expects: Expects
    #: What one number per example means; None where it is not looked at, or labels are not classes.
    score_means: ScoreMeans = None
    #: The numbers of vectors per example that it accepts (2 for a pair); None: any.
    vectors: tuple[int, ...] | None = None
    #: Whether the loss of a batch is the mean of its examples' losses; not assumed.
    separable: bool = False
    #: Whether it replays its pass, or differentiates with respect to ``replay.embedded``. Where a combiner keeps tasks'
    #: gradients apart, they are then processed one after another: several passes of all tasks at once would fill the
    #: memory, and the graph from the embeddings to the score exists only in a task's own pass.
    replays: bool = False
    #: Whether the gradient differs from that of the value on purpose, because a part is detached.
    stops_gradient: bool = False

    def prepare(self, *, labels: Labels, rows: int) -> None:
        """Called once before training with the meaning of the labels and the number of training examples.

        Raise ``TrainingError`` for labels that it cannot use: planning calls this too, before anything is trained.
        """

    @abstractmethod
    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        """The loss of a batch: a scalar, the mean over its examples."""

    def program(self, prediction: Prediction, target: Tensor) -> LossProgram:
        """``forward`` as a generator that yields a :class:`ReplayRequest` for each replay and is sent its answer.

        Worth overriding where a loss replays: a run then answers all tasks of a step in one pass.
        """
        return self(prediction, target)  # type: ignore[no-any-return]
        yield  # makes this a generator

    def epoch_ended(self, *, epoch: int, score: float, overall: float) -> None:
        """Called after each epoch (counted from 1) with the task's dev metric and the overall dev score."""

    def metrics(self) -> dict[str, float]:
        """The parts of its state that are worth a curve, by name; recorded after each epoch."""
        return {}


def run_program(program: LossProgram, prediction: Prediction) -> Tensor:
    """Run a loss program to its end, with a forward pass for every replay that it requests; returns the loss."""
    answer = None
    try:
        while True:
            request = program.send(answer)
            assert prediction.replay is not None, "a run's predictions can be replayed"
            answer = request.answer(prediction.replay)
    except StopIteration as end:
        return cast(Tensor, end.value)
