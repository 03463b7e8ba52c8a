"""Plugins as they are in the world: real distributions on the path of a real process, most of them broken."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from taskloom.plugins.heads import Linear
from taskloom.registry.installed.entries import make_entry
from taskloom.registry.installed.manager import Plugin, guard, load_plugins

#: Writes to a file what the command `plugins` prints, and what the catalogue says of losses by name.
REPORT = """
import json, sys
from click.testing import CliRunner
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.cli import cli
def command(*arguments):
    done = CliRunner().invoke(cli, ["plugins", *arguments])
    assert done.exit_code == 0, done.stderr
    return done.stdout
path, *asked = sys.argv[1:]
resolve = load_catalogue().resolve
with open(path, "w") as file:
    json.dump({
        "list": command(),
        "named": {name: command(name) for name in ("focal", "taskloom-one", "twice", "noimport", "tracking")},
        "asked": {name: [str(problem) for problem in resolve("loss", name, "tasks.sst.loss")[1]] for name in asked},
    }, file)
"""

HOOK = "from taskloom.core import hookimpl\n@hookimpl\n"
LOSS = '''
from taskloom.core import Component, Loss, hookimpl
class {cls}(Loss):
    """A loss.

    Options:
        a: what it does
    """
    expects = "score"
    name = "{name}"
    def __init__(self, {options}) -> None:
        super().__init__()
    def forward(self, prediction, target):
        return prediction.score.mean()
@hookimpl
def taskloom_components() -> list[type[Component]]:
    return [{cls}]
'''
METRIC = LOSS.replace("Loss", "Metric").replace("def forward", "def __call__")
#: Writes to stdout in every way there is, and keeps hold of it.
NOISE = """
import atexit, ctypes, logging, os, sys, threading
def late():
    threading.main_thread().join()
    print('hello by thread')
threading.Thread(target=late).start()
print('hello by print')
os.write(1, b'hello by descriptor\\n')
ctypes.CDLL(None).puts(b'hello by C')
sys.stdout.buffer.write(b'hello by buffer\\n')
logging.getLogger('focal').addHandler(logging.StreamHandler(sys.stdout))
logging.getLogger('focal').error('hello by handler')
atexit.register(print, 'hello at exit')
"""


def loss(name: str, options: str = "*, a: int = 1", more: str = "") -> str:
    code = LOSS.format(cls=name.capitalize() or "Nameless", name=name, options=options)
    return code.replace("    name =", f"    {more}\n    name =") if more else code


def lists(found: str, before: str = "") -> str:
    return (
        f"from taskloom.core import Component, Loss, Tracker\n{before}\n{HOOK}def taskloom_components(): return {found}"
    )


def add_distribution(site: Path, name: str, code: str, *, group: str = "taskloom", version: str = "1.2") -> None:
    """A distribution taskloom-<name> with one module and one entry point, laid out as an installer would."""
    (site / f"taskloom_{name}.py").write_text(dedent(code), encoding="utf-8")
    info = site / f"taskloom_{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: taskloom-{name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = taskloom_{name}\n")


def run_python(*arguments: object, site: Path) -> "subprocess.CompletedProcess[str]":
    kept = {key: value for key, value in os.environ.items() if key != "TASKLOOM_PLUGINS"}
    command = [sys.executable, *map(str, arguments)]
    environment = {**kept, "PYTHONPATH": str(site)}
    done = subprocess.run(command, env=environment, cwd=site, capture_output=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0, done.stderr
    return done


#: What is wrong → the code of the plugin, and what its failure says.
BROKEN: Mapping[str, tuple[str, str]] = {
    "noimport": ("import module_that_is_not_there", "ModuleNotFoundError: No module named 'module_that_is_not_there'"),
    "raising": ("raise RuntimeError('first line\\n  second line')", "RuntimeError: first line second line"),
    "leaving": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "syntax": ("def broken(:", "SyntaxError: invalid syntax"),
    "misspelt": (
        f"{HOOK}def taskloom_component(): return []\n@hookimpl\ndef focal_losses(): return []",
        "no hook 'taskloom_component'; did you mean 'taskloom_components'?",
    ),
    "unmarked": ("def taskloom_components(): return []", "taskloom_components() should be marked with @hookimpl"),
    "signature": (f"{HOOK}def taskloom_components(config): return []", "taskloom_components(config)"),
    "heavygrid": (f"{HOOK}def taskloom_grids(): return []", "hooks of the entry-point group 'taskloom'"),
    "hookleaves": (f"import sys\n{HOOK}def taskloom_components(): sys.exit(4)", "taskloom_components(): SystemExit: 4"),
    "hookraises": (lists("1 / 0"), "taskloom_components(): ZeroDivisionError: division by zero"),
    "nolist": (lists("None"), "taskloom_components(): TypeError: 'NoneType' object"),
    "coroutine": (f"{HOOK}async def taskloom_components(): return []", "'coroutine' object is not iterable"),
    "noclass": (lists("['focal']"), "Found 'focal', which is not a class."),
    "unspeakable": (lists("[O()]", "class O:\n  def __repr__(self): raise SystemExit"), "SystemExit"),
    "nokind": (lists("[M]", "class M(Component): name = 'm'"), "Found M."),
    "abstract": (lists("[Half]", "class Half(Loss): name = 'half'"), "every method of Loss. Missing: forward."),
    "unnamed": (loss(""), "Nameless.name should be what users type"),
    "untyped": (loss("untyped", "*, gamma=2.0"), "loss 'untyped': option 'gamma' should be annotated with its type"),
    "badchoice": (loss("spelt", more="expects = 'class'"), "expects: no value 'class'; did you mean 'classes'?"),
    "unstated": (
        loss("silent").replace('    expects = "score"\n', ""),
        "loss 'silent': expects should be stated in the class: one of 'classes', 'score', 'vectors'",
    ),
}


@pytest.fixture(scope="module")
def broken_world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a process sees where most plugins are broken, each in its own way, and one is noisy."""
    site = tmp_path_factory.mktemp("broken")
    for name, (code, _) in BROKEN.items():
        add_distribution(site, name, code)
    add_distribution(site, "focal", NOISE + loss("focal", "*, gamma: float = 2.0"))
    add_distribution(site, "tracking", lists("[Ear]", "class Ear(Tracker):\n  'Listens.'\n  name = 'ear'"))
    add_distribution(site, "other", METRIC.format(cls="Mine", name="accuracy", options="*, a: int = 1"))
    for name, version in (("one", "3.0"), ("two", "4.0"), ("three", "5.0")):
        add_distribution(site, name, LOSS.format(cls="Same", name="twice", options="*, a: int = 1"), version=version)
    add_distribution(site, "mse", LOSS.format(cls="Mse", name="mse", options="broken"))
    asked = ("focal", "twice", "untyped", "spelt", "fokal", "mse")
    run_python("-c", REPORT, site / "report.json", *asked, site=site)
    listing = run_python("-m", "taskloom.runs.cli", "plugins", "--json", site=site)
    listed = json.loads(listing.stdout)  # and nothing else, whatever the plugins print
    reasons: dict[str, list[str]] = {}
    for failure in listed["failed"]:
        reasons.setdefault(failure["plugin"], []).append(failure["reason"])
    return {**listed, "reasons": reasons, "stderr": listing.stderr, **json.loads((site / "report.json").read_text())}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_reported_by_name(broken_world: Any, name: str) -> None:
    (failure,) = (entry for entry in broken_world["failed"] if entry["plugin"] == name)
    assert (failure["distribution"], failure["version"]) == (f"taskloom-{name}", "1.2")
    assert BROKEN[name][1] in failure["reason"]
    assert "\n" not in failure["reason"]
    assert failure["removal"] == f"pip uninstall taskloom-{name}"


def test_broken_plugins_stop_nobody_else(broken_world: Any) -> None:
    (focal,) = (entry for entry in broken_world["components"] if entry["name"] == "focal")
    assert (focal["kind"], focal["distribution"], focal["summary"]) == ("loss", "taskloom-focal", "A loss.")
    assert [(option["name"], option["default"]) for option in focal["options"]] == [("gamma", 2.0)]
    assert broken_world["asked"]["focal"] == []
    assert "loss 'mse': option 'broken'" in broken_world["reasons"]["mse"][0]
    assert broken_world["asked"]["mse"] == []  # the built-in with the name of a broken class
    builtin = {plugin["name"] for plugin in broken_world["plugins"] if plugin["distribution"] == "taskloom"}
    ours = {"encoders", "heads", "losses", "samplers", "combiners", "datasets", "metrics", "engines", "trackers"}
    assert ours <= builtin
    assert all(plugin["import_seconds"] >= 0 for plugin in broken_world["plugins"])


def test_all_that_is_wrong_with_hooks_is_reported(broken_world: Any) -> None:
    assert "no hook 'focal_losses'" in broken_world["reasons"]["misspelt"][0]
    (reason,) = broken_world["reasons"]["signature"]
    assert "Argument(s) {'config'} are declared in the hookimpl" in reason


def test_two_components_of_one_name_are_an_error_that_names_both(broken_world: Any) -> None:
    (problem,) = broken_world["asked"]["twice"]
    assert problem.startswith("tasks.sst.loss: loss 'twice' is claimed by ")
    for name, version in (("one", "3.0"), ("two", "4.0"), ("three", "5.0")):
        assert f"plugin {name!r} of taskloom-{name} {version}" in problem
        assert "loss 'twice' is claimed by" in broken_world["reasons"][name][0]


def test_a_component_whose_plugin_failed_says_so(broken_world: Any) -> None:
    assert "option 'gamma' should be annotated" in broken_world["asked"]["untyped"][0]
    assert "did you mean 'classes'?" in broken_world["asked"]["spelt"][0]
    message = broken_world["asked"]["fokal"][0]
    assert "no loss 'fokal'; did you mean 'focal'?" in message
    assert "not loaded: plugin 'noimport' of taskloom-noimport 1.2: ModuleNotFoundError" in message


def test_a_third_party_cannot_replace_a_builtin(broken_world: Any) -> None:
    assert broken_world["reasons"]["other"][0].startswith("metric 'accuracy' is that of plugin 'metrics' of taskloom ")
    (accuracy,) = (entry for entry in broken_world["components"] if entry["name"] == "accuracy")
    assert accuracy["distribution"] == "taskloom"


def test_what_plugins_print_goes_to_stderr(broken_world: Any) -> None:
    for way in ("by print", "by descriptor", "by C", "by buffer", "by handler", "by thread", "at exit"):
        assert broken_world["stderr"].count(f"hello {way}") == 1  # stdout was JSON alone


def test_plugins_lists_other_packages_and_what_cannot_be_used(broken_world: Any) -> None:
    ours, _, rest = broken_world["list"].partition("From other packages:")
    others, _, broken = rest.partition("Cannot be used:")
    assert "pcgrad" in ours
    assert "focal" not in ours
    assert re.search(r"^loss +focal +1\.2 +taskloom-focal +\d+ +A loss\.", others, re.MULTILINE)
    assert re.search(r"^tracker +ear +1\.2 +taskloom-tracking +\d+ +Listens\.", others, re.MULTILINE)
    assert "plugin 'noimport' of taskloom-noimport 1.2: ModuleNotFoundError" in broken
    assert "to leave it out: TASKLOOM_PLUGINS=taskloom-focal,taskloom-tracking\n" in broken
    claimants = {"one", "two", "three"}
    for left in claimants:  # the others keep the name
        kept = ",".join(sorted(f"taskloom-{name}" for name in {"focal", "tracking"} | claimants - {left}))
        assert f"pip uninstall taskloom-{left}\n    to leave it out: TASKLOOM_PLUGINS={kept}\n" in broken


def test_a_plugin_a_distribution_or_what_is_broken_can_be_asked_for(broken_world: Any) -> None:
    named = broken_world["named"]
    assert "gamma" in named["focal"]
    assert "Hooks: taskloom_components\nComponents: loss focal" in named["focal"]
    assert "loss 'twice' is claimed by" in named["taskloom-one"]
    assert "loss 'twice' is claimed by" in named["twice"]
    assert "pip uninstall taskloom-noimport" in named["noimport"]
    assert "Hooks: taskloom_components\nComponents: tracker ear" in named["tracking"]


#: TASKLOOM_PLUGINS → the third parties that are loaded, and the names that nothing has.
LIMITS: Mapping[str, tuple[set[str], set[str]]] = {
    "": (set(), set()),
    "focal": ({"taskloom-focal"}, set()),
    "Taskloom_Focal": ({"taskloom-focal"}, set()),  # a distribution's name, written as people write them
    "focal, second": ({"taskloom-focal", "taskloom-second"}, set()),
    "fokal": (set(), {"fokal"}),
}


def test_the_environment_limits_third_parties(install: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    install("focal", "")
    install("second", "")
    for limit, (expected, unknown) in LIMITS.items():
        monkeypatch.setenv("TASKLOOM_PLUGINS", limit)
        plugins = load_plugins()
        reasons = {failure.plugin.name: failure.reason for failure in plugins.failed}
        assert {plugin.distribution for plugin in plugins.loaded} == expected | {"taskloom"}, limit
        assert reasons.keys() == unknown, limit
    assert "did you mean 'focal'?" in reasons["fokal"]


GRIDS = """
from pathlib import Path
from taskloom.core import hookimpl
@hookimpl
def taskloom_grids():
    return [Path(__file__).with_name(name) for name in {names}]
"""


def test_grids_come_from_light_modules_and_import_no_torch(tmp_path: Path) -> None:
    (tmp_path / "ours.json").write_text("{}")
    (tmp_path / "quickstart.json").write_text("{}")
    add_distribution(tmp_path, "grids1", GRIDS.format(names=["ours.json", "quickstart.json"]), group="taskloom.grids")
    add_distribution(
        tmp_path, "grids2", GRIDS.format(names=["gone.json", "ours.json"]), group="taskloom.grids", version="9"
    )
    add_distribution(tmp_path, "lost", f"{HOOK}def taskloom_components(): return []", group="taskloom.grids")
    add_distribution(tmp_path, "heavy", "import torch")
    script = """
import json, sys
from taskloom.registry.installed.manager import load_plugins, packaged_grids
grids = packaged_grids()
assert not {"torch", "numpy", "pydantic"} & sys.modules.keys()
print(json.dumps([{name: one.plugin.name for name, one in grids.items()}, [str(one) for one in load_plugins().failed]]))
"""
    owners, failed = json.loads(run_python("-c", script, site=tmp_path).stdout)
    assert (owners["ours"], owners["quickstart"]) == ("grids1", "grids")
    assert any(
        "'grids1'" in line and "grid 'quickstart' is that of plugin 'grids' of taskloom" in line for line in failed
    )
    assert any("'grids2'" in line and "grid 'ours' is that of plugin 'grids1'" in line for line in failed)
    assert any("path of a JSON file. Found" in line and "gone.json" in line for line in failed)
    assert any("no hook 'taskloom_components'" in line and "group 'taskloom.grids'" in line for line in failed)


def test_a_choice_that_each_object_makes_is_not_judged_by_its_class() -> None:
    class Chooses(Linear):
        name = "chooses"
        reads = property(lambda self: "single")  # type: ignore[assignment]

    assert make_entry(Chooses, Plugin("mine", "taskloom", "mine", "1")).name == "chooses"


def test_ctrl_c_is_not_a_plugins_error() -> None:
    with pytest.raises(KeyboardInterrupt), guard("doing"):
        raise KeyboardInterrupt
