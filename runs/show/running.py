"""One cell at work, as far as its events tell."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from taskloom.core.events import Event
from taskloom.core.units import figures, memory
from taskloom.runs.show.forecast import AtWork


@dataclass
class Running:
    """A cell at work: where, since when, how far, and how well."""

    title: str
    epochs: list[int]  # of each stage
    began: float = 0.0  # by the board's clock: since when its pace is measured
    heard: float = 0.0  # when it last said how far it is
    worker: str = ""
    stage: int = 0
    epoch: int = 0  # finished in this stage
    step: int = 0
    steps: int = 0
    rate: float = 0.0
    memory: int = 0
    losses: Mapping[str, float] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    before: float | None = 0.0  # its share when it began; None until a resumed cell has said so

    @property
    def share(self) -> float:
        """How much of the cell is done, 0 to 1."""
        done = sum(self.epochs[: self.stage]) + self.epoch + (self.step / self.steps if self.steps else 0.0)
        return min(1.0, done / max(1, sum(self.epochs)))

    def hear(self, event: Event, now: float) -> None:
        facts, share = event.facts, self.share
        self.memory = facts.get("memory") or self.memory
        match event.what:
            case "progress":
                self.stage, self.epoch = facts["stage"], facts["epoch"] - 1
                self.step, self.steps, self.rate = facts["step"], facts["steps"], facts["rate"] or self.rate
                self.losses = facts["losses"] or self.losses
            case "epoch":
                self.stage, self.epoch, self.step = facts["stage"], facts["epoch"], 0
                self.losses, self.scores = facts["losses"], facts["scores"]
            case "stage":
                self.stage, self.epoch, self.step = facts["index"] + 1, 0, 0
            case _:
                return
        self.heard = now if self.share != share else self.heard
        elsewhere = facts.get("shared") or facts.get("retold")  # nobody trained that here: it says nothing of the pace
        if self.before is None or elsewhere:
            self.before, self.began = self.share, now

    def take_over(self, attempt: "Running") -> None:
        """Go on from the last epoch of an attempt that ended."""
        self.stage, self.epoch, self.scores, self.losses = attempt.stage, attempt.epoch, attempt.scores, attempt.losses

    def at_work(self, expected: float | None, now: float) -> AtWork:
        """What a forecast needs to know of it."""
        return AtWork(expected, self.share, now - self.began, now - self.heard, self.before or 0.0)

    @property
    def position(self) -> str:
        """Stage and epoch: ``stage 1/2  epoch 2/3``; the epoch that is being trained, or the last one that was."""
        stage = min(self.stage, len(self.epochs) - 1)
        current = min(self.epoch + (self.step > 0), self.epochs[stage])
        text = f"epoch {current}/{self.epochs[stage]}"
        return f"stage {stage + 1}/{len(self.epochs)}  {text}" if len(self.epochs) > 1 else text

    def line(self) -> str:
        """Epoch, step, rate, losses, scores and memory; what is not known yet is left out."""
        parts = [self.position]
        if self.step:
            parts += [f"step {self.step}/{self.steps}", f"{self.rate:.1f} steps/s"]
        parts += [f"loss {figures(self.losses)}"] if self.losses else []
        parts += [f"dev {figures(self.scores)}"] if self.scores else []
        parts += [memory(self.memory)] if self.memory else []
        return "  ".join(parts)
