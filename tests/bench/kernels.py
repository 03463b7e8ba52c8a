"""What a training step and a batch of scoring cost on a GPU: kernels launched and host waits, on a pretend device.

    python tests/bench/kernels.py --data ../shared/data/cs224n [--lines]

MiniLM with SST, Quora and STS, batch 8 each, dropout on, AdamW: medians over whole steps, from the sampler to the
pulse, and over batches of 4,096 tokens for scoring. The peer is ``transformers.BertModel`` with linear heads, one
padded batch per task, losses and optimizer alike. ``--lines`` lists where the last step's come from.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.append(str(Path(__file__).parents[1] / "runs" / "training"))

import numpy as np
import torch
from counted import WARM, Counts, count_scoring, count_steps
from encoder_step import BATCH, loss_of, read_batches
from smart_gse_memory import smart
from steps import build, course_run
from torch import nn
from torch.nn.functional import dropout
from torch.nn.utils.rnn import pad_sequence

from taskloom.core import derive_generator
from taskloom.core.testing.device import PretendGPU
from taskloom.plugins.encoders.folders import find_folder
from taskloom.plugins.encoders.minbert import MinBert

#: Label → what the run has beside the course's tasks and ``sum``.
CELLS: dict[str, dict[str, Any]] = {
    "sum": {},
    "pcgrad": {"combiner": "pcgrad"},
    "sum, bfloat16": {"precision": "bfloat16"},
    "gse": {"combiner": "gse"},
    "sum, SMART": {"smart": True},
}


def count_cell(gpu: PretendGPU, data: str, label: str, steps: int) -> dict[str, Counts]:
    """A cell's training steps; for the plain one also its scoring."""
    changes = dict(CELLS[label])
    combiners = [changes.pop("combiner", "sum")]
    spec = course_run(data, combiners, smart) if changes.pop("smart", False) else course_run(data, combiners)
    with tempfile.TemporaryDirectory() as folder:
        run, (state,) = build({**spec, **changes}, folder)
        found = {label: count_steps(gpu, run, state, steps)}
        if label == "sum":
            found["scoring"] = count_scoring(gpu, run, "sst", np.arange(min(len(run.dev["sst"]), 800)))
    return found


def count_peer(gpu: PretendGPU, data: Path, steps: int) -> Counts:
    """``BertModel`` on padded batches that are copied as they come, with every loss read."""
    from transformers import BertModel

    ours = MinBert(weights="minilm")
    ours.build(generator=derive_generator(0))
    batches = read_batches(data, ours, WARM + steps)
    heads = {"sst": nn.Linear(384, 5), "quora": nn.Linear(768, 1), "sts": nn.Linear(768, 1)}
    model = nn.ModuleDict({**heads, "bert": BertModel.from_pretrained(find_folder("minilm"))}).train().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    found = Counts()
    gpu.reset()
    for batch in batches:
        for task, (tokens, target) in batch.items():
            ids = pad_sequence(list(tokens.ids.split(tokens.lengths.tolist())), batch_first=True)
            mask = torch.arange(ids.shape[1]) < tokens.lengths[:, None]
            vectors = model["bert"](ids.to("cuda"), attention_mask=mask.long().to("cuda")).pooler_output
            score = model[task](torch.cat(dropout(vectors, 0.3).split(BATCH), 1))
            loss = loss_of(task, score, target.to("cuda"))
            loss.backward()
            loss.item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        found.take(gpu)
    return found.warm()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with the course's files")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--lines", action="store_true", help="list where the last step's kernels and waits come from")
    parser.add_argument("--only", nargs="+", choices=[*CELLS, "BertModel"], help="some of the cells")
    given = parser.parse_args()
    torch.set_num_threads(1)  # nothing is timed
    for label in given.only or [*CELLS, "BertModel"]:
        with PretendGPU() as gpu:
            if label == "BertModel":
                every = {label: count_peer(gpu, Path(given.data), given.steps)}
            else:
                every = count_cell(gpu, given.data, label, given.steps)
        for name, counts in every.items():
            kernels, waits = counts.median
            print(json.dumps({"cell": name, "kernels": kernels, "waits": waits}), flush=True)
            for what, where, count in counts.lines if given.lines else ():
                print(f"  {count:5} {what:6} {where}")


if __name__ == "__main__":
    main()
