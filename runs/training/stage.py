"""The state of one stage of a run: sampler, combiner, optimizer, learning-rate schedule, random states."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import nn

from taskloom.core import (
    Event,
    GradientCombiner,
    OutOfMemory,
    Sampler,
    TrainingError,
    bind_generator,
    derive_generator,
    derive_seed,
)
from taskloom.core.errors import NotFiniteError
from taskloom.registry.results.tensors import Tensors
from taskloom.runs.training import checkpoint as saved
from taskloom.runs.training.cell import Run
from taskloom.runs.training.diagnostics import Diagnostics
from taskloom.runs.training.machine import gpu_generator, to_device

#: Called with numbers that a device has computed, once the host has them.
Then = Callable[[list[float]], None]
#: The highest learning rate that the message of a loss that is not finite proposes.
SAFE_RATE = 1e-3
#: Losses of a task that are remembered, for the message of one that is not finite.
LAST = 3
#: The counters of a stage, which go into checkpoints under these names.
COUNTED = ("step", "place", "through", "sums", "counts")
#: The generators that are on the host whatever the device; the states of others fit only their own device.
ON_HOST = ("combiner", "torch")


@dataclass
class StageState:
    """The state of one stage: sampler, combiner, optimizer, and the generators they draw from."""

    index: int
    stage: dict[str, Any]
    sampler: Sampler
    combiner: GradientCombiner
    optimizer: torch.optim.Optimizer
    shared: list[nn.Parameter]  # what all tasks share and learn
    trained: list[nn.Parameter]  # all that the stage learns
    generators: dict[str, torch.Generator]
    micro_batch: int | None  # most examples of a task in memory at a time: see ``microbatch``
    step: int = 0  # of the stage
    place: int = 0  # steps taken in the current epoch
    through: bool = False  # all steps of the epoch were taken, and the sampler is at the start of the next
    sums: dict[str, float] = field(default_factory=dict)  # of the losses of this epoch, by task
    counts: dict[str, int] = field(default_factory=dict)
    last: dict[str, deque[float]] = field(default_factory=dict)  # losses, by task, since the run began or was resumed
    diagnostics: Diagnostics = field(default_factory=Diagnostics)  # of this epoch
    epoch: int = 1  # the current one
    unread: list[tuple[torch.Tensor, Then, int]] = field(default_factory=list)  # see ``read``

    @classmethod
    def build(cls, run: Run, index: int) -> "StageState":
        seed, stage = run.job.spec["seed"], run.job.spec["stages"][index]
        tasks = tuple(stage["tasks"])
        generators = {
            "model": derive_generator(seed, "stage", index, "model", device=run.device),
            "combiner": derive_generator(seed, "stage", index, "combiner"),
            "torch": torch.default_generator,  # in case a plugin draws from it, as from the next
        }
        if run.device.type != "cpu":  # fused kernels draw from it; each stage has a seed of its own
            # The name is that of checkpoints, whatever the kind of GPU.
            generators["cuda"] = gpu_generator(torch.get_device_module(run.device))
            generators["cuda"].manual_seed(derive_seed(seed, "stage", index, "device"))
        bind_generator(run.model, generators["model"])
        sampler = run.catalogue.make(Sampler, stage["sampler"])
        pools = {name: run.train[name].pool() for name in tasks}
        draws = derive_generator(seed, "stage", index, "sampler")
        sampler.prepare(pools, generator=draws, epochs=stage["epochs"])
        combiner = run.catalogue.make(GradientCombiner, stage["combiner"])
        combiner.prepare(tasks=tasks)
        to_device(combiner, run.device)
        bind_generator(combiner, generators["combiner"])
        trained = [*(parameter for _, parameter in run.model.trained_parameters(tasks)), *combiner.parameters()]
        optimizer, shared = make_optimizer(trained, stage["optimizer"]), run.model.shared_parameters()
        # What the stage says, or less where memory did not allow it.
        micro_batch = min(filter(None, (stage.get("micro_batch"), run.job.micro_batch)), default=None)
        return cls(index, stage, sampler, combiner, optimizer, shared, trained, generators, micro_batch)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        steps = self.sampler.steps * self.stage["epochs"]
        rate: float = self.stage["optimizer"]["lr"]
        return rate * rate_factor(self.step, steps, self.stage["schedule"])

    @property
    def losses(self) -> dict[str, float]:
        """Each task's mean loss in the current epoch."""
        return {name: self.sums[name] / self.counts[name] for name in self.sums}

    def add_losses(self, losses: Mapping[str, torch.Tensor]) -> None:
        """Add the losses of a step and count it."""
        names = tuple(losses)

        def add(values: list[float]) -> None:
            for name, value in zip(names, values, strict=True):
                self.sums[name] = self.sums.get(name, 0.0) + value
                self.counts[name] = self.counts.get(name, 0) + 1
                self.last.setdefault(name, deque(maxlen=LAST)).append(value)

        self.read(torch.stack(list(losses.values())), add)
        self.step += 1
        self.place += 1

    def read(self, values: torch.Tensor, then: Then) -> None:
        """Call ``then`` with numbers of this step, [n]: at once, or in ``settle`` if a GPU is still computing them."""
        if values.device.type == "cpu":
            then(values.tolist())
        else:
            self.unread.append((values, then, self.place + 1))

    def settle(self) -> None:
        """Read all unread numbers in one copy, in the order of the steps; raises the errors of earlier steps."""
        unread, self.unread = self.unread, []
        if unread:
            numbers = iter(torch.cat([values for values, _, _ in unread]).tolist())
            for values, then, step in unread:
                with self.annotate_place(self.epoch, step):
                    then(list(islice(numbers, len(values))))

    @contextmanager
    def annotate_place(self, epoch: int, step: int) -> Iterator[None]:
        """Add stage, epoch and step to the message of an error; of one that is not finite, possible causes, too."""
        try:
            yield
        except OutOfMemory:
            raise
        except TrainingError as error:
            why = self._circumstances() if isinstance(error, NotFiniteError) else ""
            raise TrainingError(f"{error} (stage {self.index + 1}, epoch {epoch}, step {step}){why}") from None

    def _circumstances(self) -> str:
        """The settings that a loss or gradient may not be finite for, the last losses before it, and what to try."""
        rate, clip = self.stage["optimizer"]["lr"], self.stage["clip"]
        before = "; ".join(
            f"{task} {', '.join(f'{loss:.4g}' for loss in losses)}" for task, losses in self.last.items()
        )
        advice = [f'"lr": {min(rate / 10, SAFE_RATE):g}', *(['"clip": 1'] if clip is None else [])]
        advice += ['a warmup in "schedule"'] if not self.stage["schedule"]["warmup"] else []
        return (
            f"; lr {rate:g}, {'no clipping' if clip is None else f'clip {clip:g}'}, "
            f"last losses before: {before or 'none, this was the first step'}; try {', '.join(advice)}"
        )

    def end_epoch(self) -> None:
        """Reset the counters of an epoch."""
        self.place, self.through, self.sums, self.counts = 0, False, {}, {}
        self.diagnostics = Diagnostics()

    def save(self, run: Run, epoch: int) -> None:
        """Write a checkpoint: after ``epoch`` whole epochs and the steps taken in the next."""
        self.settle()
        tensors = saved.module_state(run.model, "model.") | saved.module_state(self.combiner, "combiner.")
        tensors |= saved.optimizer_state(self.optimizer)
        tensors |= {f"random.{name}": generator.get_state() for name, generator in self.generators.items()}
        state = {
            "stage": self.index,
            "epoch": epoch,
            "device": run.device.type,
            "trained_on": run.trained_on,
            **{name: getattr(self, name) for name in COUNTED},
            "sampler": self.sampler.state_dict(),
            "diagnostics": vars(self.diagnostics),
            "best": vars(run.best),
            "costs": dict(run.costs),
            "seconds": run.seconds,
            "history": run.history,
        }
        saved.save_checkpoint(run.folder, self.index, epoch, tensors, state, steps=self.place)

    def load(self, run: Run, tensors: Tensors, state: dict[str, Any]) -> None:
        saved.load_module_state(run.model, tensors, "model.")
        saved.load_module_state(self.combiner, tensors, "combiner.")
        saved.load_optimizer_state(self.optimizer, tensors)
        moved = state["device"] != run.device.type
        if moved:
            message = f"the checkpoint was written on {state['device']}; the cell goes on from it on {run.device.type}"
            run.emit(Event("log", run.job.cell, {"message": f"{message}, with other random numbers there"}))
        for name, generator in self.generators.items():
            if moved and name not in ON_HOST:
                position = (self.index, name, state["epoch"], state["place"], run.device.type)
                generator.manual_seed(derive_seed(run.job.spec["seed"], "moved", *position))
            else:
                generator.set_state(tensors[f"random.{name}"])
        self.sampler.load_state_dict(state["sampler"])
        for name in COUNTED:
            setattr(self, name, state[name])
        self.diagnostics = Diagnostics(**state["diagnostics"])


def make_optimizer(parameters: Sequence[nn.Parameter], options: dict[str, Any]) -> torch.optim.AdamW:
    """AdamW over the parameters, in one fused kernel; ``options`` are those of ``OptimizerSpec``."""
    # An empty list is no error here: an untrained baseline, or heads without weights on a frozen encoder.
    return torch.optim.AdamW([{"params": list(parameters)}], fused=True, **options)


def rate_factor(step: int, steps: int, schedule: dict[str, Any]) -> float:
    """The share of the full learning rate at a step (counted from 0) of a stage of ``steps`` steps.

    >>> [rate_factor(step, 10, {"name": "linear", "warmup": 2}) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.125]
    """
    warmup: float = schedule["warmup"] if schedule["warmup"] >= 1 else schedule["warmup"] * steps
    if step + 1 < warmup:
        return (step + 1) / warmup
    progress = min(1.0, max(0.0, (step - warmup) / max(1.0, steps - warmup)))
    if schedule["name"] == "linear":
        return 1.0 - progress
    if schedule["name"] == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0
