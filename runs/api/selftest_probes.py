"""Checks of the self-test that need a process of their own: they hold or limit a device's memory, or may crash.

    python -m taskloom.runs.api.selftest_probes NAME DEVICE FOLDER

The last line on stdout is a JSON object: what was ``measured``, why it ``failed``, or why it was ``not tried``.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from taskloom.core import DataSet, Encoder, TaskloomError, Tokens, arrange, densify_gradients
from taskloom.core.work import reason_of
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.wording import memory as readable
from taskloom.runs.api.grid import Grid
from taskloom.runs.api.selftest import GRID, SCORES, CheckError, NotTriedError, first_rows, run_rows, without_dropout
from taskloom.runs.training.machine import peak_memory, release_memory, reset_peak_memory

#: The engine that runs cells in this process, whose memory is limited.
ENGINE = "inline"
#: The pretrained encoder that is tried first, and the sizes of a random one of its shape.
WEIGHTS = "minilm"
SHAPE = {"layers": 6, "width": 384, "heads": 12, "feed_forward": 1536, "vocabulary": 30522, "max_length": 512}
#: The most that vectors may differ, relative to the largest number in them.
VECTORS = 1e-3
BATCH, WARM_UP, STEPS = 8, 1, 3
#: A run whose activations need several times the memory of its weights.
LARGE = {
    "tasks.*.data.size": 512,
    "tasks.*.data.dev_size": 64,
    "stages.*.epochs": 1,
    "stages.*.sampler.batch_size": 256,
    "encoder.layers": 4,
    "encoder.width": 256,
    "encoder.feed_forward": 1024,
}
SMALL_PARTS = 16


def memory(device: torch.device, folder: Path) -> str:
    """Train with enough memory, then with less than a whole batch needs."""
    gpu: Any = torch.get_device_module(device)
    if not hasattr(gpu, "mem_get_info"):
        raise NotTriedError(f"torch does not say how much memory {device.type} has")

    def run(name: str, **settings: int) -> tuple[dict[str, float], int, list[Any]]:
        parts = {f"stages.*.{key}": value for key, value in settings.items()}
        (row,) = run_rows(
            folder / name, {**without_dropout(), **LARGE, **parts}, first_rows(1), {"name": ENGINE}
        ).values()
        with Ledger.open(folder / name, create=False) as ledger:
            attempts = ledger.attempts(row.record.id)
        release_memory()
        return row.record.scores, row.record.peak_memory or 0, list(attempts)

    expected, peak, _ = run("enough")
    _, least, _ = run("parts", micro_batch=SMALL_PARTS)
    limit = (peak + least) // 2
    gpu.set_per_process_memory_fraction(limit / gpu.mem_get_info()[1])
    scores, _, attempts = run("limited")
    short = [attempt for attempt in attempts if attempt.how == "oom"]
    if not short:
        raise CheckError(
            f"{readable(limit)} were allowed, and memory did not run out ({readable(peak)} without a limit)"
        )
    apart = max(abs(scores[task] - expected[task]) for task in expected)
    if not apart <= SCORES:
        raise CheckError(f"after memory had run out, scores differ by {apart:.2g} ({SCORES} allowed)")
    sizes = f"with {short[0].micro_batch} examples at a time, finished with {attempts[-1].micro_batch}"
    return f"{readable(limit)} of {readable(peak)} allowed: out of memory {sizes}; scores differ by {apart:.2g}"


def step(device: torch.device, folder: Path) -> str:
    """A training step of ours against one of ``transformers``, with the same weights and texts."""
    try:
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging
    except ImportError:
        raise NotTriedError("transformers is not installed: pip install 'taskloom[hf]'") from None
    quiet: Any = logging
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    encoder, name = _encoder()
    texts = _texts()
    encoder.build(generator=torch.Generator().manual_seed(0))
    (folder / "exported").mkdir()
    encoder.export(folder / "exported", texts)
    tokens = arrange([encoder.tokenize(texts)], "single", encoder.special_tokens, encoder.max_length).to(device)
    encoder.to(device)
    reset_peak_memory()
    ours = Stepping(encoder, lambda: encoder(tokens))
    vectors = ours.vectors()
    ours()
    peak = peak_memory()

    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = AutoModel.from_pretrained(folder / "exported", **no_dropout).to(device)
    batch = AutoTokenizer.from_pretrained(folder / "exported")(texts, padding=True, return_tensors="pt").to(device)
    mask = batch["attention_mask"][..., None]

    def pooled() -> Tensor:
        states: Tensor = model(**batch).last_hidden_state  # [S, L, d]
        means: Tensor = (states * mask).sum(1) / mask.sum(1)
        return means

    theirs = Stepping(model, pooled)
    expected = theirs.vectors()
    apart = float((vectors - expected).abs().max() / expected.abs().max())
    if not apart <= VECTORS:
        raise CheckError(f"the vectors of {name} differ by {apart:.1e} of the largest number ({VECTORS:g} allowed)")
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for turn in range(WARM_UP + STEPS):
        for side, stepping in (("ours", ours), ("theirs", theirs)):
            spent = _seconds(stepping, device)
            if turn >= WARM_UP:
                seconds[side].append(spent)
    our_time, their_time = (median(seconds[side]) * 1e3 for side in ("ours", "theirs"))
    return (
        f"{name}, {len(texts)} texts of {_sizes(tokens)} tokens: vectors differ by {apart:.1e} ({VECTORS:g} allowed); "
        f"{our_time:.1f} ms a step, transformers {their_time:.1f} ms ({their_time / our_time:.2f} times as long); "
        f"{readable(peak)} at most; {_launched(ours, device)}, transformers {_launched(theirs, device)}"
    )


class Stepping:
    """Training steps of a model whose vectors are pulled towards zero."""

    def __init__(self, model: torch.nn.Module, forward: Callable[[], Tensor]) -> None:
        self.model, self.forward = model, forward
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-5, fused=True)

    def vectors(self) -> Tensor:
        """One vector per text, [S, d], on the host."""
        self.model.eval()
        with torch.no_grad():
            vectors = self.forward().cpu()
        self.model.train()
        return vectors

    def __call__(self) -> None:
        torch.autograd.backward(self.forward().square().mean())
        densify_gradients(self.parameters)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def _encoder() -> tuple[Encoder, str]:
    """MiniLM if its package is installed, else a random encoder of its shape; of the kind that the grid names."""
    options = {
        "name": Grid(GRID).file.raw["base"]["encoder"]["name"],
        "pooling": "mean",
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }
    try:
        encoder = load_catalogue().make(Encoder, {**options, "weights": WEIGHTS})
        encoder.check()
    except TaskloomError:
        return load_catalogue().make(Encoder, {**options, **SHAPE}), "a random encoder of MiniLM's shape"
    return encoder, "MiniLM"


def _texts() -> list[str]:
    """Texts of different lengths, as real ones are: 1 to ``BATCH`` // 2 sentences of the grid's first task."""
    task = next(iter(Grid(GRID).file.raw["base"]["tasks"].values()))
    sentences = load_catalogue().make(DataSet, task["data"]).load("train").columns[0]
    return [" ".join(sentences[index : index + 1 + index // 2]) for index in range(BATCH)]


def _sizes(tokens: Tokens) -> str:
    return f"{int(tokens.lengths.min())} to {int(tokens.lengths.max())}"


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def _seconds(stepping: Stepping, device: torch.device) -> float:
    _synchronize(device)
    began = time.perf_counter()
    stepping()
    _synchronize(device)
    return time.perf_counter() - began


def _launched(stepping: Stepping, device: torch.device) -> str:
    """How many kernels a step launches, by torch's profiler; where it sees no kernels, how many operators."""
    from torch.profiler import ProfilerActivity, profile

    kinds = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}
    with profile(activities=[ProfilerActivity.CPU, *([kinds[device.type]] if device.type in kinds else [])]) as seen:
        stepping()
        _synchronize(device)
    events = seen.events() or []
    kernels = sum(event.device_type.name != "CPU" for event in events)
    if kernels:
        return f"{kernels} kernels and copies"
    return f"{sum(event.name.startswith('aten::') for event in events)} operators"


def main() -> None:
    name, device, folder = sys.argv[1:]
    where = torch.device(device)
    if where.index:
        torch.get_device_module(where).set_device(where.index)
    try:
        answer = {"measured": {"memory": memory, "step": step}[name](where, Path(folder))}
    except NotTriedError as reason:
        answer = {"not tried": str(reason)}
    except Exception as error:
        answer = {"failed": reason_of(error)}
    print(f"\n{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main()
