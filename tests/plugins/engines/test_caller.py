"""A run in the caller's process leaves that process as it was, however its cells end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: In a new process: torch's optimizers have not been used, so what a run does to them is seen.
SCRIPT = """
import gc, logging, os, random, signal, sys, warnings
import numpy as np
import scipy.sparse  # whose import adds a filter of warnings
import torch
from taskloom.runs import Grid

def optimizers():
    kinds = (torch.optim.Optimizer, torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
    marks = [getattr(value, "__wrapped__", None) for value in vars(torch.optim.Optimizer).values()]
    return [dict(vars(kind)) for kind in kinds], [set(getattr(method, "__dict__", ())) for method in marks]

def state():
    name, words, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, words.tolist(), rest),
        "torch": (torch.get_rng_state().tolist(), torch.initial_seed()),
        "threads": torch.get_num_threads(),
        "precision": (torch.get_default_dtype(), torch.get_float32_matmul_precision()),
        "deterministic": (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic),
        "optimizers": optimizers(),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        "python's own": (list(warnings.filters), logging.root.level, gc.get_threshold(), sys.stdout, sys.stderr),
    }

grid = Grid("grid.json", registry="registry")
grid.plan()  # the first use of a library may set variables; that is not the run's doing
random.seed(11), np.random.seed(12), torch.manual_seed(13), torch.set_num_threads(2)
random.random(), np.random.rand(), torch.rand(3)
before = state()
grid.run(engine="inline", progress=False)
after = state()
print({cell.label: cell.status for cell in grid.plan().found.cells})
print([name for name in before if before[name] != after[name]])
"""


@pytest.mark.parametrize(("rate", "status"), [(0.001, "finished"), (1e30, "failed")])
def test_a_run_in_this_process_leaves_it_as_it_was(tmp_path: Path, rate: float, status: str) -> None:
    data = {"name": "generated", "task": "sentiment", "size": 16, "dev_size": 8}
    base = {
        "encoder": {"name": "minbert", "layers": 1, "width": 8, "heads": 2, "vocabulary": 64},
        "tasks": {"sst": {"data": data}},
        "stages": [{"epochs": 1, "optimizer": {"lr": rate}}],
    }
    (tmp_path / "grid.json").write_text(json.dumps({"base": base, "cells": [{"label": "row"}]}))
    environment = {key: value for key, value in os.environ.items() if key not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{{'row': '{status}'}}\n[]\n"
