"""What real shells offer after the line of the README; nothing is imported that takes long."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from recorded import Row, record

from taskloom.runs.cli import cli
from taskloom.runs.cli.completion import Named

OFFER = {
    "bash": """
eval "$(_TASKLOOM_COMPLETE=bash_source taskloom)"
COMP_WORDS=("${@}"); COMP_CWORD=$(($# - 1)); COMP_TYPE=9
_taskloom_completion taskloom 2>/dev/null; printf '%s\\n' "${COMPREPLY[@]}"
""",
    "zsh": """
compdef() { }
_describe() { print -l -- "${(@)completions_with_descriptions%%:*}" }
compadd() { print -l -- "${(@)completions}" }
eval "$(_TASKLOOM_COMPLETE=zsh_source taskloom)"
words=("$@"); CURRENT=$#; _taskloom_completion
""",
    "fish": "_TASKLOOM_COMPLETE=fish_source taskloom | source; complete -C (string join ' ' -- $argv)",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    record(home / "taskloom-runs", [Row("sum"), Row("surgery, lr=0.1"), Row("other")], name="mine", seeds=(0,))
    (home / "own.json").write_text(json.dumps({"base": "quickstart", "axes": {"stages.0.epochs": [1, 2]}}))
    script = home / "bin" / "taskloom"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nfrom taskloom.runs.cli import main\nmain()\n")
    script.chmod(0o755)
    return home


def offered(shell: str, home: Path, *words: str) -> set[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    command = [shell, "-c", OFFER[shell], *([] if shell == "fish" else [shell]), "taskloom", *words]
    path = f"{home / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, env={**os.environ, "PATH": path})
    return {line.partition("\t")[0].strip("'\"") for line in done.stdout.splitlines()} - {""}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_offers_what_is_there(shell: str, home: Path) -> None:
    assert offered(shell, home, "tab") == {"table"}
    assert {"mine", "margin-for-error"} == offered(shell, home, "table", "m")
    assert offered(shell, home, "predict", "mine", "--row", "sur") == {"surgery, lr=0.1"}


def test_bash_quotes_what_it_would_split_and_adds_no_quote_to_an_open_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words, words_of_bash in (("run own.json --only ep", "'epochs=1'"), ('run own.json --only "ep', "epochs=1")):
        monkeypatch.chdir(home)
        environment = {"COMP_WORDS": f"taskloom {words}", "COMP_CWORD": "4", "_TASKLOOM_COMPLETE": "bash_complete"}
        done = CliRunner().invoke(cli, env=environment, prog_name="taskloom")
        assert f"plain,{words_of_bash}" in done.output.splitlines(), words


def test_fish_does_not_cut_a_label_at_its_comma() -> None:
    script = CliRunner().invoke(cli, env={"_TASKLOOM_COMPLETE": "fish_source"}, prog_name="taskloom").output
    assert 'string split --max 1 "," $completion' in script


def values(home: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> set[str]:
    monkeypatch.chdir(home)
    environment = {"COMP_WORDS": " ".join(["taskloom", *words]), "COMP_CWORD": str(len(words))}
    done = CliRunner().invoke(cli, env={"_TASKLOOM_COMPLETE": "bash_complete", **environment}, prog_name="taskloom")
    return {line.partition(",")[2].strip("'") for line in done.output.splitlines()} - {""}


def test_grids_rows_cells_and_components_are_known(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert values(home, monkeypatch, "run", "o") == {"own.json"}
    assert values(home, monkeypatch, "run", "./o") == {"./own.json"}
    assert values(home, monkeypatch, "run", "own.json", "--only", "ep") == {"epochs=1", "epochs=2"}
    assert values(home, monkeypatch, "compare", "s") == {"sum", "surgery, lr=0.1"}
    assert values(home, monkeypatch, "plugins", "pc") == {"pcgrad"}
    cell = min(path.name for path in (home / "taskloom-runs" / "cells").iterdir())[:12]
    assert values(home, monkeypatch, "cells", cell[:6]) == {cell}
    assert values(home, monkeypatch, "run", "gone.json", "--only", "x") == set()
    assert values(home, monkeypatch, "table", "mine", "--metric", "m") == {"macro_f1", "mae", "mcc"}
    assert values(home, monkeypatch, "run", "mine", "--engine", "") == {"inline", "local", "ray"}
    assert values(home, monkeypatch, "run", "mine", "--tracker", "t") == {"tensorboard", "trackio"}


def test_every_argument_that_names_a_grid_a_row_or_a_cell_is_completed() -> None:
    for name, command in cli.commands.items():
        for parameter in command.params:
            if parameter.name in ("grid", "grids", "only", "row", "cells", "source", "a", "b"):
                assert isinstance(parameter.type, Named), f"{name} {parameter.name}"


def test_components_are_all_that_are_installed_and_torch_is_not_imported(home: Path) -> None:
    code = (
        "import sys, click\n"
        "from taskloom.runs.cli.completion import _components\n"
        "names = {name for name, _ in _components(None)}\n"
        "assert not {'torch', 'numpy', 'pydantic'} & sys.modules.keys()\n"
        "from taskloom.registry.installed.catalogue import load_catalogue\n"
        "assert {entry.name for entry in load_catalogue().entries if entry.plugin.builtin} <= names, names\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=home)


def test_every_command_has_examples() -> None:
    for name, command in cli.commands.items():
        assert f"    taskloom {name}" in (command.help or ""), name
