"""TorchJD's aggregators, all of them, behind one name."""

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from taskloom.core import (
    GradientCombiner,
    Gradients,
    Problem,
    RequestError,
    Step,
    TrainingError,
    combine_gradients,
    gramian_of,
    unknown,
)

#: The types that an aggregator's option may have.
Argument = bool | int | float | str | list[float] | None
_BASES = ("Aggregator", "WeightedAggregator", "GramianWeightedAggregator")


class TorchJD(GradientCombiner):
    """Any aggregator of the library TorchJD: UPGrad, DualProj, FairGrad, Krum, ConFIG, GradDrop and the rest.

    An aggregator that is a function of the Gramian is called with it in float64 and costs no more than ``pcgrad``. Any
    other (ConFIG, Constant, ExcessMTL, GradDrop, Mean, NashMTL, Random, Sum, TrimmedMean in version 0.18) needs the
    gradients copied into one matrix [tasks, parameters], which doubles the memory they take. TorchJD draws from
    torch's global generator; here it is seeded from the run's own generator for the call and restored afterwards.
    State (of GradVac, PCD, NashMTL, ExcessMTL) is saved and restored.

    Reads: the gradients of the shared parameters. A head's own parameters get the whole gradient of their task.
    Needs the extra: pip install "taskloom[torchjd]".

    Options:
        aggregator: the class in torchjd.aggregation, such as "UPGrad"
        options: its arguments as TorchJD names them; a list of numbers, in the order of the stage's tasks, becomes
            a vector; the number of tasks is filled in where it is an argument

    Siblings: every aggregator has TorchJD's own scale: PCGrad, GradVac and Sum that of ``sum``, UPGrad, DualProj,
    CAGrad, MGDA, IMTLG and AlignedMTL that of ``mean``. ``pcgrad``, ``gradvac``, ``cagrad``, ``mgda``, ``imtl_g``,
    ``nash_mtl`` and ``aligned_mtl`` need no other library.

    Reference: Quinton and Rey, "Jacobian Descent for Multi-Objective Optimization", 2024, and TorchJD's pages.

    Example:
        {"stages": [{"combiner": {"name": "torchjd", "aggregator": "CAGrad", "options": {"c": 0.4}}}]}
    """

    name = "torchjd"
    relies_on = ("torchjd",)
    anchor: Tensor  # empty; its device is the combiner's

    def __init__(self, *, aggregator: str = "UPGrad", options: dict[str, Argument] | None = None) -> None:
        super().__init__()
        self.wanted = aggregator
        self.options = {
            key: torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value
            for key, value in (options or {}).items()
        }
        self.register_buffer("anchor", torch.zeros(0), persistent=False)
        self._take(make_aggregator(self.wanted, self.options, tasks=2))

    def problems(self, tasks: Sequence[str]) -> list[Problem]:
        """Whether the aggregator accepts this many tasks, by calling it on orthogonal gradients."""
        self._take(make_aggregator(self.wanted, self.options, len(tasks)))
        try:
            self._call(torch.eye(len(tasks), dtype=torch.float64))
        except TrainingError as error:
            return [Problem("options", str(error))]
        return []

    def prepare(self, *, tasks: Sequence[str]) -> None:
        if problems := self.problems(tasks):
            raise RequestError("combiner 'torchjd'", problems)
        self._take(make_aggregator(self.wanted, self.options, len(tasks)))

    def update(self, step: Step) -> dict[str, Tensor]:
        losses, gradients = step.gradients()
        gramian = gramian_of(gradients, step.tasks)
        if self._by_gramian:
            weights = self._call(gramian, self._seed())
            step.observe(gramian, weights)
            combine_gradients(gradients, weights, step.shared)
        elif step.shared:
            jacobian = _jacobian(gradients, step)
            update = self._call(jacobian, self._seed())
            # The weights whose weighted sum of gradients is nearest to the update (exact for most aggregators).
            inner = (jacobian @ update.to(jacobian)).to(gramian)  # [T]
            step.observe(gramian, torch.linalg.pinv(gramian, hermitian=True) @ inner)
            parts = torch.split(update, [parameter.numel() for parameter in step.shared])
            for parameter, part in zip(step.shared, parts, strict=True):
                parameter.grad = part.view_as(parameter).to(parameter.dtype)
        step.apply()
        return losses

    def get_extra_state(self) -> Tensor:
        """A stateful aggregator's state as one tensor of bytes, which is saved beside the weights."""
        state: dict[str, Tensor] = {}
        if self._shape and hasattr(self._aggregator, "reset"):  # only what has state can be reset
            state["shape"] = torch.tensor(self._shape)
            for name, _, _, value in _state_of(self._aggregator):
                if value is not None:
                    dtype = torch.float64 if isinstance(value, float) else None
                    state[name] = torch.as_tensor(value, dtype=dtype).detach().clone().contiguous()
        return torch.frombuffer(bytearray(save(state)), dtype=torch.uint8)

    def set_extra_state(self, packed: Tensor) -> None:
        """Restore an aggregator's state; calling it once first gives that state the right shape."""
        state = load(packed.cpu().numpy().tobytes())
        if "shape" not in state:
            return
        device = "cpu" if self._by_gramian else self.anchor.device
        dtype = torch.float64 if self._by_gramian else torch.float32
        self._call(torch.eye(*state["shape"].tolist(), dtype=dtype, device=device))
        for name, holder, key, value in list(_state_of(self._aggregator)):
            saved = state.get(name)
            if saved is None or isinstance(value, Tensor) or value is None:
                holder[key] = saved if saved is None else saved.to(value.device if isinstance(value, Tensor) else "cpu")
            else:
                holder[key] = saved.numpy() if isinstance(value, np.ndarray) else type(value)(saved.item())

    def _take(self, aggregator: Any) -> None:
        # In a tuple, so that torch does not register its buffers as ours: they change shape between calls.
        self._hidden = (aggregator,)
        self._shape: list[int] = []  # of the last matrix it was called with
        self._by_gramian = hasattr(aggregator, "gramian_weighting")

    @property
    def _aggregator(self) -> Any:
        return self._hidden[0]

    def _seed(self) -> int:
        device = "cpu" if self.generator is None else self.generator.device
        return int(torch.randint(2**62, (), generator=self.generator, device=device).item())

    def _call(self, matrix: Tensor, seed: int = 0) -> Tensor:
        """The Gramian [T, T] → weights [T], or the Jacobian [T, n] → the update [n]."""
        aggregator = self._aggregator
        call: Callable[[Tensor], Tensor] = aggregator.gramian_weighting if self._by_gramian else aggregator
        for module in aggregator.modules():
            for key, value in vars(module).items():
                if isinstance(value, Tensor):  # a vector among the options
                    vars(module)[key] = value.to(matrix)
        try:
            with torch.random.fork_rng(devices=range(torch.cuda.device_count())), warnings.catch_warnings():
                torch.manual_seed(seed)
                warnings.simplefilter("ignore")  # solvers warn about how TorchJD calls them
                combined = call(matrix)
        except (ValueError, RuntimeError, TypeError) as error:
            raise TrainingError(f"TorchJD's {self.wanted} with {len(matrix)} tasks: {error}") from error
        if not combined.isfinite().all():
            raise TrainingError(f"TorchJD's {self.wanted} gave an update that is not finite")
        self._shape = list(matrix.shape)
        return combined


def make_aggregator(name: str, options: Mapping[str, Any], tasks: int) -> Any:
    """An aggregator by name; ``ValueError`` if TorchJD lacks it or does not take the options."""
    try:
        library = import_module("torchjd.aggregation")
    except ImportError:
        raise ValueError("combiner 'torchjd' needs the package torchjd: pip install 'taskloom[torchjd]'") from None
    known = [
        key for key in library.__all__ if key not in _BASES and issubclass(getattr(library, key), library.Aggregator)
    ]
    if name not in known:
        raise ValueError(unknown("aggregator", name, known, where="in TorchJD"))
    cls = getattr(library, name)
    counted = {"n_tasks": tasks} if "n_tasks" in inspect.signature(cls).parameters else {}
    try:
        return cls(**counted, **options)
    except (ImportError, TypeError, ValueError) as error:
        raise ValueError(f"TorchJD's {name} cannot be made: {error}") from None


def _jacobian(gradients_by_task: Sequence[Gradients], step: Step) -> Tensor:
    """The gradients as one matrix [tasks, parameters]; frees each gradient once it is copied."""
    sizes = [parameter.numel() for parameter in step.shared]
    jacobian = torch.zeros(len(gradients_by_task), sum(sizes), device=step.shared[0].device)
    for index, columns in enumerate(torch.split(jacobian, sizes, dim=1)):
        for row, gradients in zip(columns, gradients_by_task, strict=True):
            gradient, gradients[index] = gradients[index], None
            if gradient is not None:
                row.copy_(gradient.to_dense().reshape(-1) if gradient.is_sparse else gradient.reshape(-1))
    return jacobian


def _state_of(aggregator: Any) -> Iterator[tuple[str, dict[str, Any], str, Any]]:
    """Every number, array and buffer of an aggregator's modules: name, holder, key there, value."""
    for path, module in aggregator.named_modules():
        for key, value in list(vars(module).items()):
            if isinstance(value, int | float | np.ndarray) and not isinstance(value, bool):
                yield f"{path}.{key}", vars(module), key, value
        for key, value in list(module._buffers.items()):
            yield f"{path}.{key}", module._buffers, key, value
