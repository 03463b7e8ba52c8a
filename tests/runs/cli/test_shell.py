"""What a shell does to a command: closed and full outputs, folders that are not there, plugins that talk."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

RUN = "taskloom run quickstart --smoke --only sum --format json"
NOISY = '''
from torch.nn.functional import cross_entropy
from taskloom.core import Loss, hookimpl

class Noisy(Loss):
    """Talks."""
    name, expects = "noisy", "classes"
    def __init__(self) -> None:
        super().__init__()
        print("constructing")
    def forward(self, prediction, target):
        print("forward")
        return cross_entropy(prediction.score, target)

@hookimpl
def taskloom_components():
    return [Noisy]
'''


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    text = command.replace("taskloom", f"{sys.executable} -m taskloom.runs.cli", 1)
    return subprocess.run(["bash", "-c", text], cwd=folder, capture_output=True, encoding="utf-8", timeout=300)


def test_output_that_goes_nowhere_is_not_a_failure(tmp_path: Path) -> None:
    assert shell(f"{RUN} >&- 2>&-", tmp_path).returncode == 0
    table = shell("taskloom table quickstart-smoke >&-", tmp_path)
    assert (table.returncode, table.stderr) == (0, "")
    full = shell("taskloom table quickstart-smoke > /dev/full", tmp_path)
    assert full.returncode == 2
    assert "cannot be written: No space left on device" in full.stderr
    assert "Traceback" not in full.stderr


def test_what_a_plugin_prints_is_not_part_of_the_answer(tmp_path: Path, install: Callable[..., None]) -> None:
    install("noisy", NOISY)
    run = shell(f"{RUN} --set tasks.sst.loss=noisy", tmp_path)
    assert json.loads(run.stdout)["rows"][0]["n"] == 1
    assert {"constructing", "forward"} <= set(run.stderr.split())


def test_hints_are_to_be_typed_as_the_program_was_started(tmp_path: Path) -> None:
    script = tmp_path / "env" / "bin" / "taskloom"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!{sys.executable}\nfrom taskloom.runs.cli import main\nmain()\n")
    script.chmod(0o755)

    def started(command: str, path: str = os.defpath) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            capture_output=True,
            encoding="utf-8",
            env={**os.environ, "PATH": path},
        )
        return done.stdout + done.stderr

    assert "`env/bin/taskloom run GRID` makes one" in started("env/bin/taskloom table quickstart")
    assert "`taskloom run GRID` makes one" in started("taskloom table quickstart", f"{script.parent}:{os.defpath}")
    where = "--registry 'my runs'"
    assert f"`env/bin/taskloom run GRID {where}` makes one" in started(f"env/bin/taskloom table quickstart {where}")
    steps = [line for line in started("env/bin/taskloom new-plugin first --kind metric").splitlines() if "  " in line]
    assert steps == [
        "  env/bin/pip install -e 'taskloom-first[test]'",
        "  env/bin/python -m pytest taskloom-first",
        "  env/bin/taskloom run taskloom-first/first.json",
    ]
