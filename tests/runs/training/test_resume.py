"""A run that was stopped or killed goes on from its checkpoint and ends, bit for bit, where it would have ended."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from faults import Driver, Hold
from resumed import SST, VARIANTS, Ear, cell_of, same_result, write_grid
from small_runs import Bench, flip

from taskloom.core import Job
from taskloom.core.testing.device import PretendGPU
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.artifacts import Artifacts
from taskloom.registry.results.locks import sole_worker
from taskloom.registry.results.tensors import load_folder, save_folder
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.plan import make_plan
from taskloom.runs.training.checkpoint import newest_checkpoint
from taskloom.runs.training.train import train


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_grid(tmp_path_factory.mktemp("grid"))


@pytest.fixture(scope="module")
def jobs(grid: Path) -> dict[str, Job]:
    plan = make_plan(load_grid(str(grid)), load_catalogue(), None)
    return {cell.label: Job(cell.id, cell.label, 3, cell.spec, "", cell.stage_keys) for cell in plan.cells}


@pytest.fixture(scope="module")
def undisturbed(jobs: dict[str, Job], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Ear]]:
    found = {}
    for label, job in jobs.items():
        folder, ear = tmp_path_factory.mktemp("undisturbed"), Ear()
        train(replace(job, folder=str(folder)), ear)
        found[label] = (folder, ear)
    return found


@pytest.mark.parametrize("label", VARIANTS)
@pytest.mark.parametrize("patience", [12, 13])
def test_a_run_stopped_again_and_again_ends_where_it_would_have_ended(
    undisturbed: dict[str, tuple[Path, Ear]], jobs: dict[str, Job], tmp_path: Path, label: str, patience: int
) -> None:
    # Four looks while the data are read, then one after every step, four while dev and train are scored and one after
    # every epoch: each attempt gets through a few of them, and just through the data and scores of the test split.
    whole, heard = undisturbed[label]
    ends, events, within = list[str](), Ear(), set[str]()
    while not ends or ends[-1] == "interrupted":
        assert len(ends) < 100, "it makes no headway"
        ear = Ear(patience)
        train(replace(jobs[label], folder=str(tmp_path)), ear)
        ends.append(ear.events[-1].what)
        events.events += ear.events
        within |= {path.name for path in cell_of(tmp_path).glob("checkpoint-*-*-*")}
    assert ends[-1] == "finished"
    assert len(within) > 3
    same_result(whole, tmp_path)
    assert events.told("epoch", "stage", "finished") == heard.told("epoch", "stage", "finished")
    # The last two are kept, and nothing is left half written.
    best, before, last = sorted(path.name for path in cell_of(tmp_path).iterdir() if path.is_dir())
    assert (best, before[:20], last) == ("best", "checkpoint-001-00002", "checkpoint-001-00003")


@pytest.mark.parametrize("label", ["surgery", "state in losses"])
def test_so_does_a_run_on_a_gpu(jobs: dict[str, Job], tmp_path: Path, label: str) -> None:
    """An emulated one, where dropout draws from the device's generator: that of a stage that is taken over, too."""
    with PretendGPU():
        heard = Ear()
        train(replace(jobs[label], folder=str(tmp_path / "whole")), heard)
        ends, events = list[str](), Ear()
        while not ends or ends[-1] == "interrupted":
            assert len(ends) < 100, "it makes no headway"
            ear = Ear(16)
            torch.cuda.manual_seed_all(len(ends))  # where another cell has left it
            train(replace(jobs[label], folder=str(tmp_path / "stopped")), ear)
            ends.append(ear.events[-1].what)
            events.events += ear.events
        (tmp_path / "next" / "stages").parent.mkdir()
        shutil.copytree(tmp_path / "whole" / "stages", tmp_path / "next" / "stages")
        train(replace(jobs[label], folder=str(tmp_path / "next")), Ear())  # takes the first stage over
    assert ends[-1] == "finished"
    assert len(ends) > 2
    for other in ("stopped", "next"):
        same_result(tmp_path / "whole", tmp_path / other)
    assert events.told("epoch", "stage", "finished") == heard.told("epoch", "stage", "finished")


def change_step(path: Path) -> None:
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "step": state["step"] + 1}))


@pytest.mark.parametrize(  # how many of the two; tests of the token cache, which consists of the same folders, do more
    ("name", "harm", "count"),
    [("tensors.safetensors", flip, 1), ("state.json", change_step, 1), ("state.json", Path.unlink, 2)],
)
def test_a_damaged_checkpoint_is_passed_over(
    undisturbed: dict[str, tuple[Path, Ear]],
    jobs: dict[str, Job],
    tmp_path: Path,
    name: str,
    harm: Callable[[Path], None],
    count: int,
) -> None:
    whole, heard = undisturbed["surgery"]
    job, late, ear = replace(jobs["surgery"], folder=str(tmp_path)), Ear(heard.looks - 4), Ear()
    train(job, late)
    assert late.events[-1].what == "interrupted"
    checkpoints = sorted(cell_of(tmp_path).glob("checkpoint-*"))
    assert len(checkpoints) == 2
    for checkpoint in checkpoints[-count:]:
        harm(checkpoint / name)
    train(job, ear)
    told = [facts["message"] for facts in ear.told("log")]
    assert [message.startswith("checkpoint passed over: checkpoint-001-") for message in told] == [True] * count
    assert len(ear.told("started")) == (count == 2)
    same_result(whole, tmp_path)


def test_torchs_own_generator_goes_on_where_it_stood(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"sst": SST})
    bench.state.save(bench.run, 0)
    expected = torch.rand(3)
    checkpoint, _ = newest_checkpoint(bench.run.folder)
    assert checkpoint is not None
    bench.state.load(bench.run, *checkpoint)
    assert torch.rand(3).equal(expected)


STATES = {"cpu": 5056, "cuda": 16}  # bytes of a generator's state


def as_if_written_on(device: str, checkpoint: Path) -> None:
    """Change a checkpoint to what it would be if its cell had been trained on another device."""
    tensors, state = load_folder(checkpoint)
    tensors["random.model"] = torch.arange(STATES[device], dtype=torch.int64).to(torch.uint8)
    tensors["random.cuda"] = tensors["random.model"].clone()
    where = {"device": f"{device} (another one)", "threads": state["trained_on"]["threads"]}
    save_folder(checkpoint, tensors, {**state, "device": device, "trained_on": where})


@pytest.mark.parametrize("patience", [35, 40])  # in its last stage, in the middle of an epoch
def test_a_checkpoint_of_another_device_is_gone_on_from(jobs: dict[str, Job], tmp_path: Path, patience: int) -> None:
    """With its weights, optimizer and sampler; what was drawn on the device is drawn anew, each time the same."""
    job = replace(jobs["surgery"], folder=str(tmp_path / "one"), device="cpu")
    train(job, Ear(patience))
    *_, checkpoint = sorted(cell_of(tmp_path / "one").glob("checkpoint-001-*"))
    as_if_written_on("cuda", checkpoint)
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    heard = []
    for folder in ("one", "other"):
        ear = Ear()
        train(replace(job, folder=str(tmp_path / folder)), ear)
        assert ear.events[-1].what == "finished"
        heard.append(ear.told("log", "resumed", "epoch", "stage", "finished"))
    same_result(tmp_path / "one", tmp_path / "other")
    assert heard[0] == heard[1]
    (resumed, *_), (log,) = ear.told("resumed"), ear.told("log")
    assert resumed["device"] == "cuda (another one), then cpu"
    assert log["message"] == (
        "the checkpoint was written on cuda; the cell goes on from it on cpu, with other random numbers there"
    )


def test_what_a_moved_cell_keeps_and_draws_anew(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"sst": SST})
    bench.state.combiner.update(bench.step(None))
    bench.state.save(bench.run, 0)
    host = torch.rand(3)
    weights = {name: tensor.clone() for name, tensor in bench.run.model.state_dict().items()}
    drawn = []
    for place in (0, 0, 1):
        (checkpoint,) = bench.run.folder.glob("checkpoint-*")
        as_if_written_on("cuda", checkpoint)
        tensors, state = load_folder(checkpoint)
        bench.state.combiner.update(bench.step(None))
        bench.state.load(bench.run, tensors, {**state, "place": place})
        assert torch.rand(3).equal(host), "torch's own generator draws on the host"
        assert all(tensor.equal(weights[name]) for name, tensor in bench.run.model.state_dict().items())
        assert len(bench.state.optimizer.state) == len(bench.state.trained)
        drawn.append(torch.rand(3, generator=bench.state.generators["model"]))
    assert drawn[0].equal(drawn[1])
    assert not drawn[0].equal(drawn[2]), "another place in the epoch draws other numbers"


def test_a_cell_writes_nothing_while_an_earlier_worker_of_it_lives(jobs: dict[str, Job], tmp_path: Path) -> None:
    job = replace(jobs["surgery"], folder=str(tmp_path))
    folder, ear = Artifacts(tmp_path).cell(job.cell), Ear(patience=3)
    with sole_worker(folder, lambda: None):
        before = sorted(folder.rglob("*"))
        train(job, ear)
    assert [event.what for event in ear.events] == ["interrupted"]
    assert sorted(folder.rglob("*")) == before


def test_a_run_killed_in_its_second_stage_ends_where_it_would_have_ended(faulty: None, tmp_path: Path) -> None:
    grid = write_grid(tmp_path, {"killed": {"tasks.sst.loss": "faulty"}})
    (cell,) = make_plan(load_grid(str(grid)), load_catalogue(), None).cells
    whole, registry = tmp_path / "whole", tmp_path / "registry"
    train(Job(cell.id, cell.label, 3, cell.spec, str(whole), cell.stage_keys), Ear())
    hold = Hold(tmp_path / "hold", 4 + 4 + 2)  # four batches of sst an epoch
    with Driver(grid, registry, hold=hold) as driver:
        driver.wait_until_held()
        assert list(registry.glob("cells/*/checkpoint-001-*")), "not yet in its second epoch there"
        driver.kill()
    with Driver(grid, registry) as driver:
        code, _, text = driver.finish()
    assert code == 0, text
    assert "resumed" in text
    same_result(whole, registry)
    assert not list(cell_of(registry).glob("checkpoint-*"))
