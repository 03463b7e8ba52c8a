"""What belongs to one stage of a run: sampler, combiner, optimizer, random states; saved and restored as one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from taskloom.core import GradientCombiner, Sampler, bind_generator, derive_generator
from taskloom.runs.training import checkpoint as saved
from taskloom.runs.training.diagnostics import Diagnostics
from taskloom.runs.training.optimize import make_optimizer

if TYPE_CHECKING:
    from taskloom.runs.training.cell import Run


@dataclass
class StageState:
    """What belongs to one stage: sampler, combiner, optimizer, and the generators they draw from."""

    stage: dict[str, Any]
    sampler: Sampler
    combiner: GradientCombiner
    optimizer: torch.optim.Optimizer
    names: list[str]  # of the trained parameters
    generators: dict[str, torch.Generator]
    step: int = 0  # of the stage
    place: int = 0  # steps taken in the current epoch
    through: bool = False  # all steps of the epoch are taken, and the sampler is at the start of the next
    sums: dict[str, float] = field(default_factory=dict)  # of the losses of this epoch, by task
    counts: dict[str, int] = field(default_factory=dict)
    diagnostics: Diagnostics = field(default_factory=Diagnostics)  # of this epoch

    @classmethod
    def build(cls, run: "Run", index: int, stage: dict[str, Any], tasks: tuple[str, ...]) -> "StageState":
        seed = run.job.spec["seed"]
        generators = {
            "model": derive_generator(seed, "stage", index, "model", device=run.device),
            "combiner": derive_generator(seed, "stage", index, "combiner"),
        }
        bind_generator(run.model, generators["model"])
        sampler = run.catalogue.make(Sampler, stage["sampler"])
        pools = {name: run.train[name].pool() for name in tasks}
        draws = derive_generator(seed, "stage", index, "sampler")
        sampler.prepare(pools, generator=draws, epochs=stage["epochs"])
        combiner = run.catalogue.make(GradientCombiner, stage["combiner"])
        combiner.prepare(tasks=tasks)
        combiner.to(run.device)
        bind_generator(combiner, generators["combiner"])
        trained = dict(run.model.trained_parameters(tasks))
        trained |= {f"combiner.{name}": parameter for name, parameter in combiner.named_parameters()}
        optimizer = make_optimizer(list(trained.values()), stage["optimizer"])
        return cls(stage, sampler, combiner, optimizer, list(trained), generators)

    @property
    def trained(self) -> list[torch.nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    @property
    def losses(self) -> dict[str, float]:
        """Each task's mean loss in the current epoch."""
        return {name: self.sums[name] / self.counts[name] for name in self.sums}

    def add_losses(self, losses: Mapping[str, torch.Tensor]) -> None:
        """Count a step."""
        self.step += 1
        self.place += 1
        for name, loss in losses.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(loss)
            self.counts[name] = self.counts.get(name, 0) + 1

    def end_epoch(self) -> None:
        """Reset what is counted per epoch."""
        self.place, self.through, self.sums, self.counts = 0, False, {}, {}
        self.diagnostics = Diagnostics()

    def save(self, run: "Run", index: int, epoch: int) -> None:
        """Write a checkpoint: after ``epoch`` whole epochs and the steps taken in the next."""
        tensors = saved.module_state(run.model, "model.") | saved.module_state(self.combiner, "combiner.")
        tensors |= saved.optimizer_state(self.optimizer, self.names) | saved.random_state(self.generators)
        state = {
            "stage": index,
            "epoch": epoch,
            "step": self.step,
            "place": self.place,
            "through": self.through,
            "sums": self.sums,
            "counts": self.counts,
            "sampler": self.sampler.state_dict(),
            "best": vars(run.best) if run.best.epoch >= 0 else None,  # JSON has no infinity
            "costs": dict(run.costs),
            "diagnostics": vars(self.diagnostics),
            "seconds": run.seconds,
            "history": json.dumps(run.history, default=float),  # as a string: a metric of a loss may be NaN
        }
        saved.save_checkpoint(run.folder, index, epoch, tensors, state, place=self.place)

    def load(self, run: "Run", tensors: saved.Tensors, state: dict[str, Any]) -> None:
        saved.load_module_state(run.model, tensors, "model.")
        saved.load_module_state(self.combiner, tensors, "combiner.")
        saved.load_optimizer_state(self.optimizer, self.names, tensors)
        saved.load_random_state(self.generators, tensors)
        self.sampler.load_state_dict(state["sampler"])
        self.step, self.place, self.through = state["step"], state["place"], state["through"]
        self.sums, self.counts = dict(state["sums"]), dict(state["counts"])
        self.diagnostics = Diagnostics(**state["diagnostics"])
