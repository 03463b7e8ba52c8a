"""PCGrad by us and by others, on the same model and batches.

    python tests/bench/surgery.py --data DIR

MiniLM with SST, Quora and STS, batch 8 each, dropout on, fused AdamW. A peer runs as its users run it: on
``transformers.BertModel``, padded per task, with the same heads and losses; and once more on our encoder, which tells
what the encoder gains from what the combination does. TorchJD runs by ``mtl_backward``, one task at a time (not on our
encoder: it takes no sparse gradients), and by its aggregator alone on gradients stacked by hand. A peer that is not
installed has a line that says how to get it.
"""

import importlib.util
import sys
import tempfile
import types
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from peers import Batch, Padded, Tasks, batches_of
from steps import build, course_run, groups, over, parse, parser, show, stepping, take_turns
from torch import Tensor, nn

from taskloom.core import bind_generator, densify_gradients, derive_generator
from taskloom.plugins.encoders.minbert import MinBert

BAR = 2.0
Peer = Callable[[Tasks], Callable[[Batch], None]]


def mtl_backward(model: Tasks) -> Callable[[Batch], None]:
    from torchjd.aggregation import PCGrad
    from torchjd.autojac import jac_to_grad, mtl_backward

    shared, aggregator = list(model.encoder.parameters()), PCGrad()

    def step(batch: Batch) -> None:
        features = model.features(batch)
        losses = [model.loss(task, vectors, batch[task][1]) for task, vectors in features.items()]
        mtl_backward(losses, features=list(features.values()), parallel_chunk_size=1)
        jac_to_grad(shared, aggregator)
        model.update()

    return step


def aggregator(model: Tasks) -> Callable[[Batch], None]:
    from torchjd.aggregation import PCGrad

    shared, aggregate = list(model.encoder.parameters()), PCGrad()

    def step(batch: Batch) -> None:
        rows = []
        for task, (tokens, target) in batch.items():
            model.loss(task, model.encoder(tokens), target).backward()
            rows.append(torch.cat([_taken(parameter) for parameter in shared]))
        parts = aggregate(torch.stack(rows)).split([parameter.numel() for parameter in shared])
        for parameter, part in zip(shared, parts, strict=True):
            parameter.grad = part.view_as(parameter)
        model.update()

    return step


def _taken(parameter: nn.Parameter) -> Tensor:
    gradient, parameter.grad = parameter.grad, None
    return parameter.new_zeros(parameter.numel()) if gradient is None else gradient.flatten()


def libmtl(model: Tasks) -> Callable[[Batch], None]:
    # Its own __init__ needs a torchvision older than any that works with today's torch: only its weightings are loaded.
    if "LibMTL" not in sys.modules:
        package = types.ModuleType("LibMTL")
        package.__path__ = list(importlib.util.find_spec("LibMTL").submodule_search_locations)  # type: ignore
        sys.modules["LibMTL"] = package
    from LibMTL.weighting.PCGrad import PCGrad

    weighting: Any = PCGrad()
    weighting.task_num, weighting.rep_grad, weighting.device = len(model.heads), False, torch.device("cpu")
    weighting.get_share_params = model.encoder.parameters
    # It writes into gradients, which have to be there.
    weighting.zero_grad_share_params = lambda: model.encoder.zero_grad(set_to_none=False)
    for parameter in model.encoder.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def step(batch: Batch) -> None:
        weighting.backward(model.losses(batch))
        model.optimizer.step()
        model.optimizer.zero_grad(set_to_none=False)

    return step


def pytorch_pcgrad(model: Tasks) -> Callable[[Batch], None]:
    from pcgrad import PCGrad

    surgery = PCGrad(model.optimizer)

    def step(batch: Batch) -> None:
        surgery.zero_grad()
        surgery.pc_backward(model.losses(batch))
        surgery.step()

    return step


def our_encoder() -> nn.Module:
    """One of its own for a peer, with dense gradients: peers know no sparse ones."""
    encoder = MinBert(weights="minilm", pooling="pooler")
    encoder.build(generator=derive_generator(0))
    bind_generator(encoder, derive_generator(0, "dropout"))
    for parameter in encoder.parameters():
        parameter.register_post_accumulate_grad_hook(_densify)
    return encoder


def _densify(parameter: Tensor) -> None:
    densify_gradients([parameter])


#: Name → module, how to get it, how it makes a step of a model.
PEERS: dict[str, tuple[str, str, Peer]] = {
    "TorchJD's mtl_backward": ("torchjd", "pip install torchjd", mtl_backward),
    "TorchJD's aggregator": ("torchjd", "pip install torchjd", aggregator),
    "LibMTL": ("LibMTL", "pip install --no-deps LibMTL", libmtl),
    "Pytorch-PCGrad": ("pcgrad", "pcgrad.py of WeiChengTseng/Pytorch-PCGrad on PYTHONPATH", pytorch_pcgrad),
}


def main() -> None:
    given = parse(parser(__doc__, steps=8))
    sides: dict[str, Callable[[Any], object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        run, (state,) = build(course_run(given.data, ["pcgrad"]), folder)
        ours = stepping(run, state)
        sides["ours"] = lambda turn: ours(turn[0])
        missing = {name: how for name, (module, how, _) in PEERS.items() if not importlib.util.find_spec(module)}
        for name, (_, _, peer) in PEERS.items():
            if name not in missing:
                encoders = {name: Padded("minilm", "pooler"), f"{name} on our encoder": our_encoder()}
                if peer is mtl_backward:  # takes gradients before they can be made dense
                    encoders.popitem()
                for side, encoder in encoders.items():
                    step = peer(Tasks(run, encoder))
                    sides[side] = lambda turn, step=step: step(turn[1])
        drawn = groups(state, given.steps)
        times = take_turns(sides, list(zip(drawn, batches_of(run, drawn), strict=True)))
    best = min((name for name in PEERS if name in times), key=lambda name: median(times[name]), default=None)
    for name, taken in times.items():
        if name != "ours":
            note = f"{median(times['ours']) * 1e3:.0f} against {median(taken) * 1e3:.0f} ms"
            bar = BAR if name == best else 0.0
            show(f"pcgrad against {name}", over(taken, times["ours"]), at_least=bar, note=note)
    for name, how in missing.items():
        print(f"pcgrad against {name}: not installed; {how}")


if __name__ == "__main__":
    main()
