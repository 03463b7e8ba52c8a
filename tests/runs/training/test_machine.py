"""The process that trains."""

import subprocess
import sys


def test_a_process_that_trains_is_spared_the_compiler() -> None:
    script = (
        "import sys, torch; from taskloom.runs.training.machine import skip_compiler; skip_compiler()\n"
        "weight = torch.nn.Parameter(torch.ones(3)); optimizer = torch.optim.AdamW([weight], lr=0.1)\n"
        "(weight * torch.tensor([1.0, 0.0, -1.0])).sum().backward()\n"
        "optimizer.step(); optimizer.zero_grad(); optimizer.load_state_dict(optimizer.state_dict())\n"
        "print('torch._dynamo' in sys.modules, torch.is_grad_enabled(), weight.grad_fn, end=' ')\n"
        "print((weight * 1000).round().tolist())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    # By hand: each weight decays by lr · 0.01, then moves by lr against the sign of its gradient.
    assert done.stdout == "False True None [899.0, 999.0, 1099.0]\n", done.stderr
