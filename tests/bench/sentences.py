"""Scoring short questions and a SimCSE step, against sentence-transformers on the same weights.

    python tests/bench/sentences.py --data DIR

Scoring: pairs of Quora's questions, from texts to cosines, tokenizing included on both sides; ours as a run scores a
split, theirs by ``encode`` with its default batch size and with others, the best of which counts. The cosines are
compared as well. SimCSE: SST's sentences twice under different dropout, batch 64, mean pooling, fused AdamW; theirs is
``MultipleNegativesRankingLoss`` on (text, text), tokenized beforehand as ours is.

The limit of a ratio is what it would be if ours did nothing but the matrix products of the real tokens, at the largest
rate at which this machine multiplied float32 matrices between the turns.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from peers import best_rate, forward_flops, products
from steps import build, groups, over, parse, parser, show, stepping, take_turns
from torch.nn.functional import cosine_similarity

from taskloom.core import Examples
from taskloom.plugins.encoders.folders import find_folder
from taskloom.runs.training.cell import Run
from taskloom.runs.training.evaluate import predictions
from taskloom.runs.training.feed import Feed

SIZES = (32, 64, 128)  # the first is encode's default
BATCH = 64
PAIRS = 200  # in a turn
ENCODER = {"name": "minbert", "weights": "minilm", "pooling": "mean"}


def sentence_transformer() -> Any:
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()
    return SentenceTransformer(str(find_folder("minilm")), device="cpu")


def compare_scoring(data: Path, steps: int, pairs: int) -> None:
    head = {"name": "cosine", "scale": 1.0}
    source = {"name": "cs224n", "task": "para", "dir": str(data / "cs224n")}
    task = {"data": source, "head": head, "loss": {"name": "cosine_embedding", "positive_from": 1}}
    theirs = sentence_transformer()

    with tempfile.TemporaryDirectory() as folder:
        run, _ = build({"encoder": ENCODER, "tasks": {"para": task}}, folder)
    examples = run.tasks["para"].data.load("train")
    turns = [_part(examples, turn * pairs, pairs) for turn in range(steps)]

    def ours(some: Examples) -> torch.Tensor:
        feed = Feed.open(run.tasks["para"], some, run.model.encoder, None, run.device)
        return torch.from_numpy(predictions(run.model, "para", feed).score)

    def by(size: int) -> Callable[[Examples], torch.Tensor]:
        def encode(some: Examples) -> torch.Tensor:
            texts = [text for column in some.columns for text in column]
            vectors = theirs.encode(texts, batch_size=size, convert_to_tensor=True, show_progress_bar=False)
            return cosine_similarity(*vectors.chunk(2))

        return encode

    torch.testing.assert_close(ours(turns[0]), by(SIZES[0])(turns[0]), rtol=0, atol=1e-4)
    times = take_turns({"ours": ours, **{str(size): by(size) for size in SIZES}, **products()}, turns)
    best = min(SIZES, key=lambda size: median(times[str(size)]))
    rate = 2 * pairs / median(times["ours"])
    show("scoring questions against sentence-transformers", over(times[str(SIZES[0])], times["ours"]), at_least=2.0)
    note = f"batch_size {best}; ours {rate:.0f} texts a second"
    show("the same, its best batch size", over(times[str(best)], times["ours"]), at_least=2.0, note=note)
    texts = [[text for column in turn.columns for text in column] for turn in turns]
    show("its limit", _limits(run, texts, times[str(best)], best_rate(times)))


def _part(examples: Examples, start: int, count: int) -> Examples:
    part = slice(start, start + count)
    return Examples(tuple(column[part] for column in examples.columns), None, examples.ids[part])


def _limits(
    run: Run, turns: Sequence[Sequence[str]], theirs: Sequence[float], rates: Sequence[float], passes: int = 1
) -> list[float]:
    """What the ratio of each turn could be at most; ``passes``: 3 where a backward pass takes twice as much again."""
    encoder = cast(Any, run.model.encoder)
    feed_forward = encoder.layers[0].up.out_features
    limits = []
    for texts, taken, rate in zip(turns[-len(theirs) :], theirs, rates, strict=True):
        lengths = [min(len(ids) + 2, encoder.max_length) for ids in encoder.tokenize(texts)]  # [CLS], [SEP]
        sizes = {"layers": len(encoder.layers), "width": encoder.width, "feed_forward": feed_forward}
        limits.append(taken * rate / (passes * forward_flops(lengths, **sizes, first=False, pooler=False)))
    return limits


def compare_simcse(data: Path, steps: int, batch: int) -> None:
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    source = {"name": "cs224n", "task": "sst", "dir": str(data / "cs224n")}
    task = {"data": source, "head": {"name": "embedding", "reads": "single"}, "loss": "simcse"}
    stage = {"sampler": {"name": "round_robin", "batch_size": batch}}
    model = sentence_transformer().train()
    loss, optimizer = MultipleNegativesRankingLoss(model), torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def theirs(features: dict[str, torch.Tensor]) -> None:
        loss([dict(features), dict(features)], None).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    with tempfile.TemporaryDirectory() as folder:
        run, (state,) = build({"encoder": ENCODER, "tasks": {"sst": task}, "stages": [stage]}, folder)
        step, drawn = stepping(run, state), groups(state, steps)
        (texts,) = run.tasks["sst"].data.load("train").columns
        turns = [(group, model.preprocess([texts[row] for row in group[0].rows])) for group in drawn]
        sides = {"ours": lambda turn: step(turn[0]), "theirs": lambda turn: theirs(turn[1])}
        times = take_turns({**sides, **products()}, turns)
    note = f"{median(times['ours']) * 1e3:.0f} against {median(times['theirs']) * 1e3:.0f} ms"
    ratios = over(times["theirs"], times["ours"])
    show(f"SimCSE step against sentence-transformers, batch {batch}", ratios, at_least=4.0, note=note)
    views = [[texts[row] for row in group[0].rows] * 2 for group in drawn]
    show("its limit", _limits(run, views, times["theirs"], best_rate(times), passes=3))


def main() -> None:
    given = parse(parser(__doc__, steps=10))
    compare_scoring(given.data, given.steps, 32 if given.quick else PAIRS)
    compare_simcse(given.data, given.steps, 8 if given.quick else BATCH)


if __name__ == "__main__":
    main()
