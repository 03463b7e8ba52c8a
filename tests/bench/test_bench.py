"""The benchmarks measure what they say: both sides do the same work, and every figure has its line."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).parent))

from peers import Padded, Tasks, batches_of, forward_flops
from steps import build, course_run, groups

from taskloom.runs.training.optimize import GroupStep

FOLDER = Path(__file__).parent
#: How the line of each figure begins; two spaces end a name.
FIGURES = (
    *(f"training step against BertModel, {name}  " for name in ("batch 8", "batch 32", "mean pooling", "joined pairs")),
    *(f"share of the matrix rate, {name}  " for name in ("batch 8", "batch 32", "mean pooling", "joined pairs")),
    *(f"{name} over sum, time  " for name in ("pcgrad", "gse", "SMART")),
    "pcgrad over sum, memory  ",
    "scoring questions against sentence-transformers  ",
    "the same, its best batch size  ",
    "SimCSE step against sentence-transformers, batch 8  ",
    "pcgrad against TorchJD's mtl_backward  ",
    "pcgrad against TorchJD's aggregator  ",
    "pcgrad against TorchJD's aggregator on our encoder  ",
    "sum over the limit of time: 4 tasks, ",
)


@pytest.mark.parametrize(
    ("pooling", "reads"), [("pooler", "pair"), ("mean", "pair"), ("pooler", "joint")], ids=lambda value: value
)
def test_both_sides_have_the_same_losses(course_data: Path, tmp_path: Path, pooling: str, reads: str) -> None:
    run, (state,) = build(course_run(course_data.parent, ["sum"], pooling=pooling, reads=reads), str(tmp_path))
    theirs = Tasks(run, Padded("minilm", pooling)).eval()
    run.model.eval()
    (group,) = groups(state, 1)
    (batch,) = batches_of(run, [group])
    step = GroupStep(group, run, state)
    ours = torch.stack([step.evaluate(task) for task in batch])
    torch.testing.assert_close(ours, torch.stack(theirs.losses(batch)).detach(), rtol=2e-5, atol=1e-6)


def test_operations_are_those_that_torch_counts() -> None:
    from transformers import BertConfig, BertModel

    sizes = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24,
        attn_implementation="eager",
    )  # fmt: skip
    model = BertModel(sizes, add_pooling_layer=False)
    with FlopCounterMode(display=False) as counted:
        model(input_ids=torch.zeros(4, 7, dtype=torch.long)).last_hidden_state.sum().backward()
    formula = forward_flops([7] * 4, layers=3, width=8, feed_forward=24, first=False, pooler=False)
    assert 3 * formula == counted.get_total_flops()


def test_the_last_layer_counts_for_first_tokens_alone() -> None:
    # One sequence of 3 tokens, width 2: keys and values 3·2·(2·2·2) = 48; query and output 2·8 = 16; feed-forward part
    # 2·(2·2·5) = 40; scores and their sum 2·(2·3·2) = 24; pooler 8.
    assert forward_flops([3], layers=1, width=2, feed_forward=5, first=True, pooler=True) == 48 + 16 + 40 + 24 + 8


@pytest.mark.slow
def test_every_figure_has_its_line(course_data: Path) -> None:
    command = [sys.executable, str(FOLDER / "run.py"), "--data", str(course_data.parent), "--quick", "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for figure in FIGURES:
        (line,) = [line for line in lines if line.startswith(figure)]
        value = float(line[66:].split()[0])
        assert math.isfinite(value)
        assert value > 0
    for peer in ("LibMTL", "Pytorch-PCGrad"):
        assert any(
            line.startswith((f"pcgrad against {peer} ", f"pcgrad against {peer}: not installed")) for line in lines
        )


def test_a_folder_without_the_data_is_named(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "run.py"), "--data", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"--data should be a folder that holds cs224n/. Found {tmp_path}." in done.stderr


@pytest.mark.slow
def test_the_simulation_of_tuning_prints_a_line_for_each_case() -> None:
    command = [sys.executable, str(FOLDER / "tuning.py"), "--tables", "2", "--trials", "4", "--seeds", "2", "3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [line[:3] for line in lines] == [[name, "4", seeds] for name in ("flat", "peaked") for seeds in "23"]
    assert all(0 <= float(share) <= 1 for line in lines for share in line[3:7])
