"""Time of one training step: minbert on packed tokens against transformers.BertModel on padded batches.

    python tests/bench/encoder_step.py --data DIR [--steps N]

SST, Quora and STS in one step, batch 8 each, both texts of a pair encoded by themselves; MiniLM weights, dropout
on, linear heads, cross-entropy, binary cross-entropy and MSE, one AdamW step. Everybody gets the same batches; the
sides take turns step by step, so that other work on the machine meets all of them, and a ratio is the median over
the batches of (its time / ours). DIR holds the folder ``cs224n``.
"""

import argparse
import csv
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.nn.utils.rnn import pad_sequence

from taskloom.core import Dropout, Tokens, arrange, bind_generator, densify_gradients, derive_generator
from taskloom.plugins.encoders.folders import find_folder
from taskloom.plugins.encoders.minbert import MinBert

BATCH = 8
WARM = 3  # steps that are not counted
TASKS = {  # file, columns of the texts, column of the label
    "sst": ("ids-sst-train.csv", (2,), 3),
    "quora": ("quora-train.csv", (2, 3), 4),
    "sts": ("sts-train.csv", (2, 3), 4),
}
Batch = tuple[Tokens, Tensor]
Step = Callable[[dict[str, Batch]], None]


def read_batches(folder: Path, encoder: MinBert, steps: int) -> list[dict[str, Batch]]:
    """The batches of all steps, from shuffled rows."""
    batches: list[dict[str, Batch]] = [{} for _ in range(steps)]
    for task, (file, texts, label) in TASKS.items():
        with (folder / file).open(encoding="utf-8", newline="") as stream:
            rows = [row for row in csv.reader(stream, delimiter="\t") if len(row) > label][1:]
        random.Random(0).shuffle(rows)
        rows = [row for row in rows if row[label] and all(row[text].strip() for text in texts)][: steps * BATCH]
        columns = [encoder.tokenize([row[text] for row in rows]) for text in texts]
        for number, batch in enumerate(batches):
            part = slice(number * BATCH, (number + 1) * BATCH)
            reads = "pair" if len(texts) == 2 else "single"
            tokens = arrange([column[part] for column in columns], reads, encoder.special_tokens, encoder.max_length)
            target = torch.tensor([float(row[label]) for row in rows[part]])
            batch[task] = (tokens, target)
    return batches


def loss_of(task: str, score: Tensor, target: Tensor) -> Tensor:
    if task == "sst":
        return cross_entropy(score, target.long())
    loss = binary_cross_entropy_with_logits if task == "quora" else mse_loss
    return loss(score[:, 0], target)


def make_step(encoder: nn.Module, encode: Callable[[Tokens], Tensor], dropout: nn.Module) -> Step:
    """One training step: task by task forward and backward, then AdamW."""
    width = 384
    heads = {"sst": nn.Linear(width, 5), "quora": nn.Linear(2 * width, 1), "sts": nn.Linear(2 * width, 1)}
    parameters = [*encoder.parameters(), *(p for head in heads.values() for p in head.parameters())]
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, eps=1e-6, weight_decay=0.0, fused=True)

    def step(batches: dict[str, Batch]) -> None:
        for task, (tokens, target) in batches.items():
            vectors = dropout(encode(tokens))  # [S·B, d]
            score = heads[task](torch.cat(vectors.split(BATCH), 1))
            loss_of(task, score, target).backward()
        densify_gradients(parameters)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def padded(encoder: nn.Module, ids: Sequence[Tensor]) -> Tensor:
    """transformers' pooler output of sequences padded to the longest."""
    block = pad_sequence(list(ids), batch_first=True)
    mask = pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
    vectors: Tensor = encoder(input_ids=block, attention_mask=mask).pooler_output
    return vectors


def sides(weights: str) -> tuple[MinBert, dict[str, Step]]:
    from transformers import BertModel

    ours = MinBert(weights=weights, pooling="pooler")
    ours.build(generator=derive_generator(0))
    drop = Dropout(0.3)
    for module in (ours.train(), drop.train()):
        bind_generator(module, derive_generator(0, "dropout"))
    theirs = BertModel.from_pretrained(find_folder(weights)).train()

    def one_call(tokens: Tokens) -> Tensor:
        return padded(theirs, tokens.ids.split(tokens.lengths.tolist()))

    def call_per_side(tokens: Tokens) -> Tensor:
        ids = tokens.ids.split(tokens.lengths.tolist())
        return torch.cat([padded(theirs, ids[start : start + BATCH]) for start in range(0, len(ids), BATCH)])

    kind = theirs.config._attn_implementation
    return ours, {
        "minbert, packed": make_step(ours, ours, drop),
        f"BertModel ({kind}), one padded batch per task": make_step(theirs, one_call, nn.Dropout(0.3)),
        f"BertModel ({kind}), one padded batch per side of a pair": make_step(theirs, call_per_side, nn.Dropout(0.3)),
    }


def measure(steps: dict[str, Step], batches: list[dict[str, Batch]]) -> dict[str, list[float]]:
    """Seconds of every step of every side, without the first ones, which only warm up."""
    times: dict[str, list[float]] = {side: [] for side in steps}
    for batch in batches:
        for side, step in steps.items():
            began = time.perf_counter()
            step(batch)
            times[side].append(time.perf_counter() - began)
    return {side: seconds[WARM:] for side, seconds in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds cs224n/")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weights", default="minilm")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ours, steps = sides(options.weights)
    batches = read_batches(options.data / "cs224n", ours, options.steps + WARM)
    held = sum(int(tokens.lengths.sum()) for batch in batches for tokens, _ in batch.values())
    room = sum(len(tokens) * tokens.longest for batch in batches for tokens, _ in batch.values())
    times = measure(steps, batches)
    print(
        f"{options.steps} steps, {options.threads} threads, AdamW fused on all sides; {held / len(batches):.0f} tokens"
    )
    print(f"per step, {room / len(batches):.0f} with padding per task ({1 - held / room:.0%} padding)")
    ours_times = times["minbert, packed"]
    print(f"{'':58} {'median':>8} {'ratio':>6}")
    for side, seconds in times.items():
        ratio = statistics.median(theirs / mine for theirs, mine in zip(seconds, ours_times, strict=True))
        print(f"{side:58} {statistics.median(seconds) * 1e3:5.0f} ms {ratio:6.2f}")


if __name__ == "__main__":
    main()
