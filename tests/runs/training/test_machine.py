"""The process that trains."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from small_runs import ENCODER, generated, run_grid

from taskloom.plugins.encoders.minbert import NARROW
from taskloom.plugins.engines.local import Local
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.analysis.checks import checks_of
from taskloom.runs.analysis.results import Results
from taskloom.runs.training.machine import fitting_threads


def test_a_process_that_trains_is_spared_the_compiler() -> None:
    script = (
        "import sys, torch; from taskloom.runs.training.machine import skipped_compiler\n"
        "weight = torch.nn.Parameter(torch.ones(3))\n"
        "(weight * torch.tensor([1.0, 0.0, -1.0])).sum().backward()\n"
        "with skipped_compiler():\n"
        "    optimizer = torch.optim.AdamW([weight], lr=0.1)\n"
        "    optimizer.step(); optimizer.zero_grad(); optimizer.load_state_dict(optimizer.state_dict())\n"
        "print('torch._dynamo' in sys.modules, torch.is_grad_enabled(), weight.grad_fn, end=' ')\n"
        "print((weight * 1000).round().tolist())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    # By hand: each weight decays by lr · 0.01, then moves by lr against the sign of its gradient.
    assert done.stdout == "False True None [899.0, 999.0, 1099.0]\n", done.stderr


#: An encoder of somebody else's that is small whatever its options are.
TINY = """
from taskloom.core import hookimpl
from taskloom.plugins.encoders.minbert import MinBert
class Tiny(MinBert):
    '''A small encoder.'''
    name = "tiny"
    small = property(lambda self: True, lambda self, value: None)
@hookimpl
def taskloom_components(): return [Tiny]
"""


def test_small_encoders_have_one_thread_and_others_what_was_given(install: Callable[..., None]) -> None:
    install("tiny", TINY)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        encoders = [("minbert", 8, 1), ("minbert", NARROW, 1), ("minbert", NARROW + 1, 2), ("minbert", None, 2)]
        for name, width, threads in [*encoders, ("tiny", None, 1), ("gone", 8, 2)]:
            with fitting_threads({"encoder": {"name": name, "width": width}}):
                assert torch.get_num_threads() == threads
            assert torch.get_num_threads() == 2, "the next cell of this process is another one"
    finally:
        torch.set_num_threads(before)


def test_the_ledger_knows_the_threads_of_a_cell_and_a_table_that_mixes_them_says_so(tmp_path: Path) -> None:
    grid = {
        "base": {"encoder": ENCODER, "tasks": {"sst": generated("sentiment")}, "stages": [{"epochs": 1}]},
        "cells": [{"label": "narrow"}, {"label": "wide", "set": {"encoder.width": 2 * NARROW}}],
        "seeds": [0],
    }
    threads = {}
    for cells, labels in ((1, ["wide"]), (2, ["narrow", "wide"])):  # whatever else there is to run
        some = {**grid, "cells": [cell for cell in grid["cells"] if cell["label"] in labels]}  # type: ignore[index]
        registry = tmp_path / str(cells) / "registry"
        _, outcome, _ = run_grid(registry, some, engine=Local(workers=1, devices="cpu", threads=2))
        assert outcome.finished == cells
        with Ledger.open(registry, create=False) as ledger:
            record = ledger.grid("grid")
            found = {place.label: place.cell for place in record.cells}
            threads[cells] = {label: (cell.device, cell.versions["threads"]) for label, cell in found.items()}
            said = checks_of(Results(record, registry, epochs=ledger.epochs))
    assert threads == {1: {"wide": ("cpu", "2")}, 2: {"narrow": ("cpu", "1"), "wide": ("cpu", "2")}}
    words = "Rows were trained on different devices or numbers of threads: "
    assert f"{words}'narrow' on cpu with 1 thread; 'wide' on cpu with 2 threads." in said
