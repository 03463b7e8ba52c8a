"""What laws require, and how they say with which input it did not hold."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.autograd.gradcheck import GradcheckError
from torch.autograd.graph import saved_tensors_hooks
from torch.testing import assert_close

from taskloom.core.testing.subjects import RAISED, Subject


def require(condition: bool, message: str) -> None:
    """An assertion that ``python -O`` keeps."""
    if not condition:
        raise AssertionError(message)


class BrokenLaw(AssertionError):  # noqa: N818 - the finding of a law, not an error of ours
    """What was raised (``cause``), and with which inputs, the widest first."""

    def __init__(self, inputs: tuple[str, ...], cause: BaseException) -> None:
        super().__init__(f"with {', '.join(inputs)}: {words_of(cause)}")
        self.inputs, self.cause = inputs, cause


@contextmanager
def given(text: str) -> Iterator[None]:
    """Say with which input a law was broken."""
    try:
        yield
    except RAISED as error:
        inputs, cause = (error.inputs, error.cause) if isinstance(error, BrokenLaw) else ((), error)
        raise BrokenLaw((text, *inputs), cause) from cause


def words_of(error: BaseException) -> str:
    """What was raised, in a line; our own assertions as they are."""
    text = " ".join(str(error).split())
    if isinstance(error, AssertionError):
        return text
    return f"{type(error).__name__}: {text if len(text) <= 400 else text[:399] + '…'}"


def require_same(found: Tensor, expected: Tensor, message: str, *, within: float = 0.0) -> None:
    """Equal to the last bit, or up to ``within`` times the largest expected value."""
    largest = float(expected.detach().abs().double().nan_to_num().max()) if expected.numel() else 0.0
    assert_close(
        found.detach(),
        expected.detach(),
        rtol=0.0,
        atol=within * largest + (1e-6 if within else 0.0),
        equal_nan=True,
        check_dtype=False,
        msg=lambda text: f"{message}: {text}",
    )


def require_finite(value: Tensor, what: str) -> None:
    """No NaN and no infinity."""
    wrong = value.detach()[~value.detach().isfinite()]
    require(not wrong.numel(), f"{what} is not finite: {wrong[:1].tolist()}")


#: Step, absolute and relative tolerance of finite differences: in float64, and where something on the way rounds to
#: float32 (as ``score.float()`` does), where a longer step is safe from rounding and a shorter one from kinks.
_FINE = ((1e-6, 1e-6, 1e-4),)
_COARSE = ((1e-2, 1e-3, 5e-3), (1e-3, 1e-3, 5e-3))


def require_gradient(value: Callable[[], Tensor], at: Mapping[str, Tensor], hint: str = "") -> None:
    """The gradient of ``value()`` with respect to each tensor in ``at``, by name, is that of finite differences.

    The tensors are float64, and ``value`` reads them. ``hint`` is what the message ends with.
    """
    dtypes: list[torch.dtype] = []

    def note(saved: Tensor) -> Tensor:
        dtypes.append(saved.dtype)
        return saved

    with saved_tensors_hooks(note, lambda saved: saved):
        value()
    rounds = torch.float32 in dtypes or torch.bfloat16 in dtypes
    for name, tensor in at.items():
        errors = []
        for step, absolute, relative in (*_FINE, *(_COARSE if rounds else ())):
            options: Any = {"eps": step, "atol": absolute, "rtol": relative, "check_undefined_grad": False}
            try:
                # Adding nothing makes a sparse gradient dense, as gradcheck wants it.
                gradcheck(lambda x: value().double() + 0 * x.sum(), (tensor,), fast_mode=True, **options)
                break
            except GradcheckError as error:
                errors.append(error)
        else:
            with given(f"{name} of shape {list(tensor.shape)}"):
                raise AssertionError(f"its gradient is not that of finite differences: {words_of(errors[0])}{hint}")


def through_checkpoint(module: nn.Module) -> dict[str, Tensor]:
    """A module's state after it went through the bytes of a checkpoint: tensors, and nothing to be unpickled."""
    state = module.state_dict()
    for name, value in state.items():
        found = type(value).__name__
        require(isinstance(value, Tensor), f"state {name!r} should be a tensor (use a buffer). Found {found}.")
    kept = [name for name, buffer in module.named_buffers() if buffer.requires_grad]
    require(not kept, f"buffer {', '.join(kept)} still holds the graph of a step; detach what goes into a buffer")
    return load(save({name: value.detach().clone().contiguous() for name, value in state.items()}))


def new_generator(seed: int = 0) -> torch.Generator:
    """A generator of this seed."""
    return torch.Generator().manual_seed(seed)


_HINT = "the order of a set and hash() of a string change from process to process: use sorted() or zlib.crc32()"

_SAME: set[type] = set()  # the classes that are the same in a new process


def require_same_in_new_process(describe: Callable[[Subject], list[str]], subject: Subject) -> None:
    """``describe`` gives the same lines in a new process, where sets and ``hash()`` of strings come out differently.

    That takes seconds, so it is asked once for each class. One that cannot be imported there (made by a function, or in
    a script), or whose options JSON cannot hold, is not looked at.
    """
    component = subject.component
    if component in _SAME:
        return
    names = [f"{one.__module__}:{one.__qualname__}" for one in (describe, component)]
    try:
        question = json.dumps([*names, dict(subject.options)])
        if component.__module__ == "__main__" or _import(names[1]) is not component:
            return
    except (TypeError, ValueError, AttributeError, ImportError):
        return
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import answer_in_new_process as answer; answer()"],
        input=question,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    require(done.returncode == 0, f"it fails in a new process: {done.stderr.strip().rpartition(chr(10))[2]}")
    there = json.loads(done.stdout.rpartition("\n")[2])
    here = describe(subject)
    if there is not None and here != there:
        pairs = (pair for pair in zip(here, there, strict=False) if pair[0] != pair[1])
        one, other = next(pairs, (f"{len(here)} lines", f"{len(there)} lines"))
        raise AssertionError(f"here it gives {one}, in a new process {other}; {_HINT}")
    _SAME.add(component)


def answer_in_new_process() -> None:
    """Print what was asked for; null where the class is not found, which is no fault of the class."""
    describe, component, options = json.load(sys.stdin)
    sys.path.append("")  # from where test runners find what they import
    try:
        subject = Subject(_import(component), options)
    except (ImportError, AttributeError):
        sys.stdout.write("\nnull")
    else:
        sys.stdout.write("\n" + json.dumps(_import(describe)(subject)))


def _import(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found
