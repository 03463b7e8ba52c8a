"""The model of one run: a shared encoder, and a head and a loss for each task."""

from collections.abc import Iterable, Iterator, Mapping
from typing import cast

import torch
from torch import nn

from taskloom.core import Encoder, Head, Loss, SharedModules, Tokens, derive_generator
from taskloom.core.forward import Pass
from taskloom.registry.installed.task import Task

_PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class _ByTask(nn.ModuleDict):
    """Modules by task; unlike its base it takes any name, so that a task may be called ``type`` or ``train``."""

    def __setitem__(self, key: str, module: nn.Module) -> None:
        self._modules[key] = module


class Model(nn.Module):
    """Everything with weights or buffers that belongs to a run.

    Each part draws its first weights from a generator of its own, named after it, so that adding a task changes
    nothing for the others. ``precision`` is that of the forward pass; the weights are float32.
    """

    def __init__(self, encoder: Encoder, tasks: dict[str, Task], *, seed: int, precision: str = "float32") -> None:
        super().__init__()
        self.precision = _PRECISIONS[precision]
        encoder.requested_poolings = requested_poolings(tasks)
        encoder.build(generator=derive_generator(seed, "encoder"))
        self.encoder = encoder
        self.shared = SharedModules(seed)
        for name, task in tasks.items():
            generator = derive_generator(seed, "head", name)
            task.build_head(width=encoder.width, generator=generator, shared=self.shared)
        self.heads = _ByTask({name: task.head for name, task in tasks.items()})
        self.losses = _ByTask({name: task.loss for name, task in tasks.items()})

    def head(self, task: str) -> Head:
        return cast(Head, self.heads[task])

    def loss(self, task: str) -> Loss:
        return cast(Loss, self.losses[task])

    def forward_pass(self, task: str, tokens: Tokens, rows: torch.Tensor | None = None, *, part: int = 0) -> Pass:
        """The pass of a task's batch, not yet run: call it with None."""
        return Pass(self.encoder, self.head(task), tokens, rows, part=part, precision=self.precision)

    def freeze_encoder(self, frozen: bool) -> None:
        """Freeze the encoder, or make it trainable if its own options say so."""
        self.encoder.requires_grad_(self.encoder.trainable and not frozen)

    def shared_parameters(self) -> list[nn.Parameter]:
        """What all tasks share and learn: the encoder and whatever heads share."""
        return [p for part in (self.encoder, self.shared) for p in part.parameters() if p.requires_grad]

    def own_parameters(self, task: str) -> list[nn.Parameter]:
        """What one task has for itself and learns: its head and its loss, less what heads share."""
        shared = {id(p) for p in self.shared.parameters()}
        parts = (self.heads[task], self.losses[task])
        return [p for part in parts for p in part.parameters() if p.requires_grad and id(p) not in shared]

    def trained_parameters(self, names: Iterable[str]) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters that a stage with these tasks trains, by name."""
        prefixes = ("shared.", *_prefixes(names))
        for name, parameter in self.named_parameters():
            if parameter.requires_grad and name.startswith(prefixes):
                yield name, parameter

    def trained_state(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Weights and buffers of the encoder and of these tasks (with the layers they share), by name."""
        prefixes = _prefixes(names)
        return {name: tensor for name, tensor in self.state_dict().items() if name.startswith(prefixes)}


def requested_poolings(tasks: Mapping[str, Task]) -> frozenset[str]:
    """The poolings that the heads of a run request of its encoder."""
    return frozenset(task.head.pooling for task in tasks.values() if task.head.pooling is not None)


def _prefixes(names: Iterable[str]) -> tuple[str, ...]:
    """The prefixes of the names of the encoder's tensors and of these tasks'."""
    return ("encoder.", *(f"{part}.{name}." for part in ("heads", "losses") for name in names))


def device_for_this_process(name: str | None = None) -> torch.device:
    """The device of that name, or else the first visible GPU, or the CPU."""
    return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
