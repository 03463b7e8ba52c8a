"""What a training step and a batch of scoring cost on a GPU: kernels launched and host waits, on a pretend device.

    python tests/bench/kernels.py --data DIR [--lines]

MiniLM with SST, Quora and STS, batch 8 each, dropout on, AdamW: medians over whole steps, from the sampler to the
pulse, and over batches of 4,096 tokens for scoring. The peer is ``transformers.BertModel`` with linear heads, one
padded batch per task, losses and optimizer alike. ``--lines`` lists where the last step's come from.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "helpers"))

import numpy as np
import torch
from combiner_step import smart
from counted import WARM, Counts, count_scoring, count_steps
from peers import Padded, Tasks, batches_of, padded
from steps import build, course_run, groups, parse, parser

from taskloom.core.testing.device import PretendGPU

#: Label → what the run has beside the course's tasks and ``sum``.
CELLS: dict[str, dict[str, Any]] = {
    "sum": {},
    "pcgrad": {"combiner": "pcgrad"},
    "sum, bfloat16": {"precision": "bfloat16"},
    "gse": {"combiner": "gse"},
    "sum, SMART": {"smart": True},
}


def count_cell(gpu: PretendGPU, data: Path, label: str, steps: int) -> dict[str, Counts]:
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
    with tempfile.TemporaryDirectory() as folder:
        run, (state,) = build(course_run(data, ["sum"]), folder)
    batches, found = batches_of(run, groups(state, WARM + steps)), Counts()
    run.model.cpu()  # a parameter of the pretended device cannot be copied
    model = Tasks(run, Padded("minilm", "pooler")).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    gpu.reset()
    for batch in batches:
        for task, (tokens, target) in batch.items():
            ids, types, mask = (one.to("cuda") for one in padded(tokens))
            output = model.encoder.bert(input_ids=ids, attention_mask=mask, token_type_ids=types)
            loss = model.loss(task, output.pooler_output, target.to("cuda"))
            loss.backward()
            loss.item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        found.take(gpu)
    return found.warm()


def main() -> None:
    made = parser(__doc__, steps=5)
    made.add_argument("--lines", action="store_true", help="list where the last step's kernels and waits come from")
    made.add_argument("--only", nargs="+", choices=[*CELLS, "BertModel"], help="some of the cells")
    given = parse(made)
    torch.set_num_threads(1)  # nothing is timed
    for label in given.only or [*CELLS, "BertModel"]:
        with PretendGPU() as gpu:
            if label == "BertModel":
                every = {label: count_peer(gpu, given.data, given.steps)}
            else:
                every = count_cell(gpu, given.data, label, given.steps)
        for name, counts in every.items():
            kernels, waits = counts.median
            print(json.dumps({"cell": name, "kernels": kernels, "waits": waits}), flush=True)
            for what, where, count in counts.lines if given.lines else ():
                print(f"  {count:5} {what:6} {where}")


if __name__ == "__main__":
    main()
