"""Plugins as they are in the world: real distributions on the path of a real process, most of them broken."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

from taskloom.core import Head, hookimpl
from taskloom.registry.installed.entries import make_entry
from taskloom.registry.installed.failures import Plugin
from taskloom.registry.installed.manager import COMPONENTS, Plugins, installed, packaged_grids
from taskloom.registry.installed.manager import GRIDS as GRIDS_GROUP
from taskloom.registry.installed.quiet import quiet

#: Prints what a process finds installed, and what it makes of one component of each name asked for.
REPORT = """
import json, sys
from click.testing import CliRunner
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.cli import cli
catalogue = load_catalogue()
failed = {}
for one in catalogue.failed:
    failed.setdefault(one.plugin, [one.distribution, one.version, []])[2].append(one.reason)
def command(*arguments):
    done = CliRunner().invoke(cli, ["plugins", *arguments])
    return [done.exit_code, done.stdout, done.stderr]
print(json.dumps({
    "loaded": [[one.name, one.distribution, one.version, one.seconds] for one in catalogue.plugins.loaded],
    "failed": failed,
    "list": command(),
    "json": command("--json"),
    "named": {name: command(name) for name in ("focal", "taskloom-one", "twice", "noimport", "tracking")},
    "components": [entry.as_dict() for entry in catalogue.entries],
    "asked": {name: [str(problem) for problem in catalogue.resolve("loss", name, "tasks.sst.loss")[1]]
              for name in sys.argv[1:]},
    "grids": {name: [grid.distribution, grid.conflict] for name, grid in catalogue.plugins.grids.items()},
}))
"""

FOCAL = '''
from torch import Tensor
from torch.nn.functional import cross_entropy
from taskloom.core import Loss, Prediction, hookimpl

class Focal(Loss):
    """Cross-entropy that turns away from easy examples."""

    name = "focal"

    def __init__(self, *, gamma: float = 2.0) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        each = cross_entropy(prediction.score, target, reduction="none")
        return ((1 - (-each).exp()) ** self.gamma * each).mean()

@hookimpl
def taskloom_components() -> list[type[Loss]]:
    return [Focal]
'''

#: A plugin with one loss that does nothing: what stands in {} is changed by each test.
LOSS = '''
from taskloom.core import Loss, hookimpl
class {cls}(Loss):
    """A loss."""
    name = "{name}"
    def __init__(self, {options}) -> None:
        super().__init__()
    def forward(self, prediction, target):
        return prediction.score.mean()
@hookimpl
def taskloom_components():
    return [{cls}]
'''


HOOK = "from taskloom.core import hookimpl\n@hookimpl\n"
OTHER = LOSS.replace("Loss", "Metric").replace("def forward", "def __call__")
OTHER = OTHER.format(cls="Mine", name="accuracy", options="*, a: int = 1")

#: Writes to stdout in every way there is, and keeps hold of it.
NOISE = """
import ctypes, logging, os, sys
print('hello by print')
os.write(1, b'hello by descriptor\\n')
ctypes.CDLL(None).puts(b'hello by C')
sys.stdout.buffer.write(b'hello by buffer\\n')
logging.getLogger('focal').addHandler(logging.StreamHandler(sys.stdout))
logging.getLogger('focal').error('hello by handler')
"""


def install(site: Path, name: str, code: str, *, group: str = "taskloom", version: str = "1.2") -> None:
    """A distribution taskloom-<name> with one module and one entry point, laid out as an installer would."""
    (site / f"taskloom_{name}.py").write_text(dedent(code), encoding="utf-8")
    info = site / f"taskloom_{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: taskloom-{name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = taskloom_{name}\n")


def run_python(code: str, *arguments: str, site: Path, **environment: str) -> str:
    kept = {key: value for key, value in os.environ.items() if key != "TASKLOOM_PLUGINS"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**kept, "PYTHONPATH": str(site), **environment},
        cwd=site,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (site / "stderr").write_text(done.stderr, encoding="utf-8")
    return done.stdout


def report(site: Path, *asked: str, **environment: str) -> Any:
    """What the script prints – all of it JSON, whatever the plugins print – and what it says on stderr."""
    return json.loads(run_python(REPORT, *asked, site=site, **environment)) | {"stderr": (site / "stderr").read_text()}


BROKEN: Mapping[str, tuple[str, str]] = {
    "noimport": ("import module_that_is_not_there", "ModuleNotFoundError: No module named 'module_that_is_not_there'"),
    "raising": ("raise RuntimeError('first line\\n  second line')", "RuntimeError: first line second line"),
    "leaving": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "syntax": ("def broken(:", "SyntaxError: invalid syntax"),
    "misspelt": (
        "from taskloom.core import hookimpl\n@hookimpl\ndef taskloom_componets(): return []",
        "no hook 'taskloom_componets'; did you mean 'taskloom_components'?",
    ),
    "elsewhere": (
        "from taskloom.core import hookimpl\n@hookimpl\ndef focal_losses(): return []",
        "no hook 'focal_losses'",
    ),
    "unmarked": ("def taskloom_components(): return []", "taskloom_components() should be marked with @hookimpl"),
    "signature": (
        "from taskloom.core import hookimpl\n@hookimpl\ndef taskloom_components(config): return []",
        "wrong signature: Plugin 'taskloom-signature:taskloom:signature' for hook 'taskloom_components'",
    ),
    "heavygrid": (
        "from taskloom.core import hookimpl\n@hookimpl\ndef taskloom_grids(): return []",
        "taskloom_grids() belongs in a module of the entry-point group 'taskloom.grids'. Found it in 'taskloom'.",
    ),
    "hookleaves": (
        "import sys\nfrom taskloom.core import hookimpl\n@hookimpl\ndef taskloom_components(): sys.exit(4)",
        "taskloom_components(): SystemExit: 4",
    ),
    "badlist": (
        "from taskloom.core import hookimpl\nclass L(list):\n  def __iter__(self): raise SystemExit('no')\n"
        "@hookimpl\ndef taskloom_components(): return L()",
        "taskloom_components() should return a list of classes: SystemExit: no",
    ),
    "wordless": (
        "from taskloom.core import hookimpl\nclass E(Exception):\n  def __str__(self): raise ValueError\n"
        "@hookimpl\ndef taskloom_components(): raise E",
        "taskloom_components(): E",
    ),
    "unspeakable": (
        "from taskloom.core import hookimpl\nclass O:\n  def __repr__(self): raise SystemExit\n"
        "@hookimpl\ndef taskloom_components(): return [O()]",
        "SystemExit",
    ),
    "badrelies": (
        LOSS.format(cls="Needy", name="needy", options="*, a: int = 1").replace(
            "name =", "relies_on = 'scipy'; name ="
        ),
        "loss 'needy': relies_on should be names of distributions. Found 'scipy'.",
    ),
    "misspeltchoice": (
        LOSS.format(cls="Spelt", name="spelt", options="*, a: int = 1").replace("name =", "expects = 'class'; name ="),
        "loss 'spelt': expects: no value 'class'; did you mean 'classes'?",
    ),
    "nochoice": (
        OTHER.replace("accuracy", "nochoice").replace("name =", "reads = ['classes']; name ="),
        "metric 'nochoice': reads: no value ['classes']; did you mean 'classes'?",
    ),
    "hookraises": (
        "from taskloom.core import hookimpl\n@hookimpl\ndef taskloom_components(): return 1 / 0",
        "taskloom_components(): ZeroDivisionError: division by zero",
    ),
    "nolist": (
        "from taskloom.core import hookimpl\n@hookimpl\ndef taskloom_components(): return None",
        "taskloom_components() should return a list of classes. Found null.",
    ),
    "noclass": (
        "from taskloom.core import hookimpl\n@hookimpl\ndef taskloom_components(): return ['focal']",
        "taskloom_components() should return subclasses of Encoder, Head, Loss, ",
    ),
    "nokind": (
        "from taskloom.core import Component, hookimpl\nclass M(Component): name = 'm'\n"
        "@hookimpl\ndef taskloom_components(): return [M]",
        "Metric, Engine. Found M.",
    ),
    "abstract": (
        "from taskloom.core import Loss, hookimpl\nclass Half(Loss): name = 'half'\n"
        "@hookimpl\ndef taskloom_components(): return [Half]",
        "Half should define every method of Loss. Missing: forward.",
    ),
    "unnamed": (
        LOSS.format(cls="Nameless", name="", options="*, a: int = 1"),
        "Nameless.name should be what users type",
    ),
    "untyped": (
        LOSS.format(cls="Untyped", name="untyped", options="*, gamma=2.0"),
        "loss 'untyped': option 'gamma' should be annotated with its type",
    ),
    "positional": (
        LOSS.format(cls="Positional", name="positional", options="gamma: float = 2.0"),
        "loss 'positional': option 'gamma' should be keyword-only",
    ),
    "badplace": (
        LOSS.format(cls="Strange", name="strange", options="*, a: int = 1").replace(
            "name =", "location_options = {'b'}; name ="
        ),
        "loss 'strange': location_options should name options. Found b.",
    ),
    "baddefault": (
        LOSS.format(cls="Default", name="default", options="*, gamma: float = None"),
        "loss 'default': the default of option 'gamma' should be a number. Found null.",
    ),
}


@pytest.fixture(scope="module")
def broken_world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a process sees where every plugin but one is broken, each in its own way."""
    site = tmp_path_factory.mktemp("broken")
    for name, (code, _) in BROKEN.items():
        install(site, name, code)
    install(site, "focal", NOISE + FOCAL)
    install(site, "tracking", f'"""Listens."""\n{HOOK}def taskloom_run_failed(reason): pass')
    install(site, "several", f"{HOOK}def taskloom_component(): return []\n@hookimpl\ndef taskloom_grid(): return []")
    install(site, "other", OTHER)
    install(site, "one", LOSS.format(cls="One", name="twice", options="*, a: int = 1"), version="3.0")
    install(site, "two", LOSS.format(cls="Two", name="twice", options="*, b: int = 1"), version="4.0")
    install(site, "three", LOSS.format(cls="Three", name="twice", options="*, c: int = 1"), version="5.0")
    install(site, "mse", LOSS.format(cls="Mse", name="mse", options="broken"))
    return report(site, "focal", "twice", "untyped", "spelt", "fokal", "mse", "os:system")


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_reported_by_name(broken_world: Any, name: str) -> None:
    distribution, version, (reason,) = broken_world["failed"][name]
    assert (distribution, version) == (f"taskloom-{name}", "1.2")
    assert BROKEN[name][1] in reason
    assert "\n" not in reason


def test_broken_plugins_stop_nobody_else(broken_world: Any) -> None:
    focal = next(one for one in broken_world["components"] if one["name"] == "focal")
    assert focal == {
        "kind": "loss",
        "name": "focal",
        "plugin": "focal",
        "distribution": "taskloom-focal",
        "version": "1.2",
        "summary": "Cross-entropy that turns away from easy examples.",
        "options": [{"name": "gamma", "takes": "a number", "required": False, "default": 2.0, "text": ""}],
    }
    assert broken_world["asked"]["focal"] == []
    assert "loss 'mse': option 'broken' should be keyword-only" in broken_world["failed"]["mse"][2][0]
    assert broken_world["asked"]["mse"] == []  # the built-in of the name of a broken class
    builtin = [name for name, distribution, _, _ in broken_world["loaded"] if distribution == "taskloom"]
    assert {"encoders", "heads", "losses", "samplers", "combiners", "datasets", "metrics", "engines"} <= set(builtin)
    assert all(seconds >= 0 for *_, seconds in broken_world["loaded"])


def test_a_signature_error_names_hook_and_argument(broken_world: Any) -> None:
    (reason,) = broken_world["failed"]["signature"][2]
    assert "taskloom_components(config)" in reason
    assert "can not be found in the hookspec" in reason


def test_two_components_of_one_name_are_an_error_that_names_both(broken_world: Any) -> None:
    (problem,) = broken_world["asked"]["twice"]
    assert problem.startswith("tasks.sst.loss: loss 'twice' is claimed by ")
    assert "plugin 'one' of taskloom-one 3.0" in problem
    assert "plugin 'two' of taskloom-two 4.0" in problem
    assert "plugin 'three' of taskloom-three 5.0" in problem
    assert "loss 'twice' is claimed by" in broken_world["failed"]["two"][2][0]


def test_a_component_whose_plugin_failed_says_so(broken_world: Any) -> None:
    assert "option 'gamma' should be annotated" in broken_world["asked"]["untyped"][0]
    assert "no value 'class'; did you mean 'classes'?" in broken_world["asked"]["spelt"][0]
    message = broken_world["asked"]["fokal"][0]
    assert "no loss 'fokal'; did you mean 'focal'?" in message
    assert "not loaded: plugin 'noimport' of taskloom-noimport 1.2: ModuleNotFoundError" in message


def test_a_third_party_cannot_replace_a_builtin(broken_world: Any) -> None:
    (reason,) = broken_world["failed"]["other"][2]
    assert reason.startswith("metric 'accuracy' is taskloom's own, which keeps the name")
    (accuracy,) = (one for one in broken_world["components"] if one["name"] == "accuracy")
    assert accuracy["distribution"] == "taskloom"


def test_every_misspelt_hook_is_reported_and_the_list_of_hooks_once(broken_world: Any) -> None:
    (reason,) = broken_world["failed"]["several"][2]
    assert "no hook 'taskloom_grid'" in reason
    assert "no hook 'taskloom_component'; did you mean 'taskloom_components'?" in reason


def test_entry_points_that_cannot_be_read_stop_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "focal", FOCAL)
    install(tmp_path, "garbage", "")
    (tmp_path / "taskloom_garbage-1.2.dist-info" / "entry_points.txt").write_text("[taskloom]\nno equals sign\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found, (failure,) = installed(["taskloom"])
    assert {"focal", "losses"} <= {plugin.name for plugin, _ in found}
    assert str(failure).startswith("plugin 'taskloom-garbage' of taskloom-garbage 1.2: its entry_points.txt cannot be")


def test_what_plugins_print_is_told_under_their_name(broken_world: Any) -> None:
    # That nothing of it is in stdout is shown by stdout being JSON.
    assert broken_world["stderr"].count("plugin 'focal' printed: hello by ") == 3
    assert "plugin 'focal' printed 2 lines more" in broken_world["stderr"]


def test_plugins_lists_other_packages_and_what_cannot_be_used(broken_world: Any) -> None:
    code, text, _ = broken_world["list"]
    assert code == 0
    ours, _, rest = text.partition("From other packages:")
    others, _, broken = rest.partition("Cannot be used:")
    assert "pcgrad" in ours
    assert "focal" not in ours
    assert re.search(r"^loss +focal +1\.2 +taskloom-focal +\d+ +Cross-entropy that", others, re.MULTILINE)
    assert re.search(r"^tracker +tracking +1\.2 +taskloom-tracking +\d+ +Listens\.", others, re.MULTILINE)
    assert "plugin 'noimport' of taskloom-noimport 1.2: ModuleNotFoundError" in broken
    assert broken.count("to remove it: pip uninstall taskloom-several") == 1
    assert "to leave it out: TASKLOOM_PLUGINS=taskloom-focal,taskloom-tracking\n" in broken
    claimants = {"one", "two", "three"}
    for left in claimants:  # the others keep the name
        kept = ",".join(sorted(f"taskloom-{name}" for name in {"focal", "tracking"} | claimants - {left}))
        assert f"pip uninstall taskloom-{left}\n    to leave it out: TASKLOOM_PLUGINS={kept}\n" in broken


def test_a_choice_that_each_object_makes_is_not_judged_by_its_class() -> None:
    class Chooses(Head):
        name = "chooses"
        reads = property(lambda self: "single")  # type: ignore[assignment]

    assert make_entry("head", "chooses", Chooses, Plugin("mine", "taskloom", "mine", "1")).name == "chooses"


def test_plugins_in_json_has_import_times_and_removal(broken_world: Any) -> None:
    found = json.loads(broken_world["json"][1])
    (tracking,) = (one for one in found["plugins"] if one["name"] == "tracking")
    assert tracking["hooks"] == ["taskloom_run_failed"]
    assert tracking["import_seconds"] > 0
    assert {one["removal"] for one in found["failed"] if one["plugin"] == "noimport"} == {
        "pip uninstall taskloom-noimport"
    }


def test_a_plugin_a_distribution_or_what_is_broken_can_be_asked_for(broken_world: Any) -> None:
    named = {name: text for name, (code, text, _) in broken_world["named"].items() if code == 0}
    assert "gamma" in named["focal"]
    assert "Hooks: taskloom_components\nComponents: loss focal" in named["focal"]
    assert "loss 'twice' is claimed by" in named["taskloom-one"]
    assert "loss 'twice' is claimed by" in named["twice"]
    assert "pip uninstall taskloom-noimport" in named["noimport"]
    assert "Components: none" in named["tracking"]


LIMITS: Mapping[str, tuple[set[str], set[str]]] = {
    "": (set(), set()),
    "focal": ({"taskloom-focal"}, set()),
    "Taskloom_Focal": ({"taskloom-focal"}, set()),  # a distribution's name, written as people write them
    "focal, second": ({"taskloom-focal", "taskloom-second"}, set()),
    "fokal": (set(), {"fokal"}),
}


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What is loaded under each limit, of two plugins."""
    site = tmp_path_factory.mktemp("limited")
    install(site, "focal", BROKEN["nolist"][0])
    install(site, "second", BROKEN["nolist"][0])
    script = """
import json, os, sys
from taskloom.registry.installed.manager import load_plugins
found = {}
for limit in sys.argv[1:]:
    os.environ["TASKLOOM_PLUGINS"] = limit
    plugins = load_plugins()
    failed = {one.plugin: one.reason for one in plugins.failed}
    found[limit] = [[one.distribution for one in plugins.loaded], failed]
print(json.dumps(found))
"""
    return json.loads(run_python(script, *LIMITS, site=site))


@pytest.mark.parametrize("limit", LIMITS)
def test_the_environment_limits_third_parties(limited: Any, limit: str) -> None:
    loaded, reasons = limited[limit]
    expected, failed = LIMITS[limit]
    assert set(loaded) == expected | {"taskloom"}
    assert set(reasons) == failed
    if failed:
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
    install(tmp_path, "grids1", GRIDS.format(names=["ours.json", "quickstart.json"]), group="taskloom.grids")
    install(tmp_path, "grids2", GRIDS.format(names=["gone.json", "ours.json"]), group="taskloom.grids", version="9")
    install(tmp_path, "heavy", "import torch")
    script = """
import json, sys
from taskloom.registry.installed.manager import load_plugins, packaged_grids
grids = packaged_grids()
assert not {"torch", "numpy", "pydantic"} & sys.modules.keys()
print(json.dumps([{name: one.conflict for name, one in grids.items()}, [str(one) for one in load_plugins().failed]]))
"""
    conflicts, failed = json.loads(run_python(script, site=tmp_path))
    assert "'grids1' of taskloom-grids1 1.2 and by plugin 'grids2' of taskloom-grids2 9" in conflicts["ours"]
    assert conflicts["quickstart"] == ""
    assert any("'grids1'" in line and "grid 'quickstart' is taskloom's own" in line for line in failed)
    assert any("should be a JSON file. Found" in line and "gone.json" in line for line in failed)
    assert sum("is claimed by" in line for line in failed) == 1


def test_a_component_hook_in_the_light_group_is_refused() -> None:
    plugins = Plugins()
    module = SimpleNamespace(taskloom_components=hookimpl(lambda: []))
    plugins.add(module, Plugin("focal", GRIDS_GROUP, "taskloom-focal", "1"))
    (failure,) = plugins.failed
    assert "taskloom_components() belongs in a module of the entry-point group 'taskloom'" in failure.reason


def test_stdout_is_left_as_it_was(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    before = sys.stdout
    with quiet("plugin 'x'", said.append):
        kept = sys.stdout
        os.write(1, b"inside\n")
        sys.stdout = StringIO()  # a plugin may do that
    assert sys.stdout is before
    assert not before.closed
    kept.write("later\n")
    os.write(1, b"outside\n")
    assert capfd.readouterr() == ("outside\n", "later\n")
    assert said == ["plugin 'x' printed: inside"]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        with quiet("plugin 'x'", said.append):
            os.write(1, b"again\n")
    assert said[1:] == ["plugin 'x' printed: again"]


def test_our_own_grids_are_found_without_conflict() -> None:
    grids = packaged_grids()
    assert grids["quickstart"].distribution == "taskloom"
    assert not any(grid.conflict for grid in grids.values())
    assert all(grid.path.is_file() for grid in grids.values())


def test_a_tracker_that_raises_does_not_stop_the_next_and_is_noted_once() -> None:
    @hookimpl
    def raising(reason: list[str], cell: str) -> None:
        reason.append("changed")
        raise ValueError(cell)

    @hookimpl
    def answering(cell: str, reason: list[str]) -> list[Any]:
        return [cell, reason]

    plugins = Plugins()
    for name, function in (("a", raising), ("b", answering)):
        plugins.add(SimpleNamespace(taskloom_run_failed=function), Plugin(name, COMPONENTS, f"taskloom-{name}", "1.2"))
    for _ in range(3):
        answers = plugins.results("taskloom_run_failed", cell="c", label="l", reason=["r"])
        assert [answer for _, answer in answers] == [["c", ["r"]]]
    message = "plugin 'a' of taskloom-a 1.2: taskloom_run_failed(): ValueError: c"
    assert [str(one) for one in plugins.failed] == [message]
    assert [str(one) for one in plugins.raised(["taskloom_run_failed"])] == [message]
