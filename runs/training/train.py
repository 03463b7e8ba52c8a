"""One run, from its resolved specification to its scores. Read from top to bottom."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taskloom.core import DataError, Emit, Event, Job, OutOfMemory, Overall, TrainingError
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.artifacts import Artifacts
from taskloom.registry.results.binding import bind
from taskloom.registry.results.locks import sole_worker
from taskloom.registry.results.tensors import Tensors, load_folder, save_folder
from taskloom.runs.training import checkpoint as saved
from taskloom.runs.training import machine
from taskloom.runs.training.cell import Paused, Pulse, Run, Stopped
from taskloom.runs.training.evaluate import Predicted, predictions, score_of
from taskloom.runs.training.feed import Feed
from taskloom.runs.training.model import device_for_this_process
from taskloom.runs.training.optimize import GroupStep
from taskloom.runs.training.stage import StageState

Checkpoint = tuple[Tensors, dict[str, Any]]


def train(job: Job, emit: Emit) -> None:
    """Run a cell: resume from its last checkpoint if there is one, train every stage, report.

    Asked to stop, it writes a checkpoint and ends as ``interrupted``; a batch that does not fit into memory ends it as
    ``oom``. Any other error is raised; the engine turns it into the cell's failure.
    """
    try:
        alone = sole_worker(Artifacts(Path(job.folder)).cell(job.cell), Pulse(job, emit).raise_if_stopped)
        with machine.set_up(job.spec), alone:
            end = Event("finished", job.cell, run_cell(job, emit))
    except Stopped:
        end = Event("interrupted", job.cell)
    except Paused:
        end = Event("interrupted", job.cell, {"paused": True})
    except OutOfMemory as error:
        facts = {"task": error.task, "micro_batch": error.micro_batch, "batch": error.batch, "reason": str(error)}
        end = Event("oom", job.cell, facts)
    if end.what == "oom":
        machine.release_memory()  # of the run's tensors, which are freed by now, for the next attempt
    emit(end)


def run_cell(job: Job, emit: Emit) -> dict[str, Any]:
    """Train the remaining stages; returns the facts of the ``finished`` event.

    The driver removes the checkpoints once it has recorded the event.
    """
    resumed = find_checkpoint(job, emit)
    run = Run.build(job, emit, load_catalogue(), resumed[1] if resumed else None)
    first = resumed[1]["stage"] if resumed else 0
    for index in range(first, len(job.spec["stages"])):
        run_stage(run, index, resumed if index == first else None)
    facts = {"scores": run.best.scores, "best_epoch": run.best.epoch, "test": run.test, "costs": dict(run.costs)}
    digests = bind(run.folder, "dev", run.best.scores) | bind(run.folder, "test", run.test)
    return {**facts, "digests": digests, "seconds": run.seconds, "peak_memory": machine.peak_memory()}


def find_checkpoint(job: Job, emit: Emit) -> Checkpoint | None:
    """Load the newest intact checkpoint; reports damaged ones, and whether the cell is started or resumed.

    A resumed cell repeats, with the fact ``retold``, the events before the checkpoint: its driver may have been dead or
    unable to write. The ledger adds those that it lacks.
    """
    checkpoint, damaged = saved.newest_checkpoint(Artifacts(Path(job.folder)).cell(job.cell))
    for message in damaged:
        emit(Event("log", job.cell, {"message": f"checkpoint passed over: {message}"}))
    hardware = machine.trained_on(device_for_this_process(job.device), checkpoint[1] if checkpoint else None)
    facts = {"versions": {**machine.machine_versions(), "threads": hardware["threads"]}, "device": hardware["device"]}
    emit(Event("resumed" if checkpoint else "started", job.cell, facts))
    for event, reported in checkpoint[1]["history"] if checkpoint else ():
        emit(Event(event, job.cell, {**reported, "retold": True}))
    return checkpoint


def run_stage(run: Run, index: int, resumed: Checkpoint | None) -> None:
    """Train one stage, from its beginning or from a checkpoint, or load its result from another cell."""
    stage, last = run.job.spec["stages"][index], index == len(run.job.spec["stages"]) - 1
    began, key = time.monotonic(), "" if last else run.job.stage_keys[index]
    shared = run.artifacts.stage(key) / "result" if key else None
    if shared is not None and resumed is None and take_over(run, shared):
        run.report("stage", index=index, key=key, shared=True, seconds=0.0)
        return

    run.model.freeze_encoder(stage["frozen"])
    state = StageState.build(run, index)
    done = 0
    if resumed is not None:
        state.load(run, *resumed)
        done = resumed[1]["epoch"]
    elif stage["epochs"] == 0 and last:
        score_epoch(run, state, 0)  # an untrained baseline still has scores

    while done < stage["epochs"] and not run.out_of_patience(index):
        if last and run.job.pause is not None and done >= run.job.pause:
            raise Paused
        epoch = done + 1
        try:
            train_epoch(run, state, epoch)
            score_epoch(run, state, epoch)
        except Stopped:
            if state.place:
                state.save(run, epoch - 1)
            raise
        state.end_epoch()
        state.save(run, epoch)
        done = epoch
        if epoch < stage["epochs"] or not last:
            run.pulse.raise_if_stopped()
    if shared is not None:
        facts = {"stage": index, "costs": dict(run.costs)}
        save_folder(shared, saved.unique(run.model.trained_state(run.trained_by(index))), facts)
    if last and run.job.spec["score"]["test"]:
        run.test = score_test(run)
    run.report("stage", index=index, key=key, shared=False, seconds=time.monotonic() - began)


def take_over(run: Run, shared: Path) -> bool:
    """Load the shared result of another cell's stage, if it exists and is intact, and add its costs."""
    if not shared.is_dir():
        return False
    try:
        tensors, facts = load_folder(shared)
    except ValueError as error:
        run.emit(Event("log", run.job.cell, {"message": f"shared stage trained again: {error}"}))
        return False
    # The other cell's encoder may have a part that only its later tasks ask for, and that the stage has left as it was.
    known = {f"encoder.{name}" for name in run.model.encoder.state_dict()}
    fitting = {name: tensor for name, tensor in tensors.items() if name in known or not name.startswith("encoder.")}
    saved.load_module_state(run.model, fitting, "")
    run.costs = Counter(facts["costs"])
    return True


def train_epoch(run: Run, state: StageState, epoch: int) -> None:
    """Train the remaining steps of an epoch; counts and losses are in the state."""
    steps, began, before, state.epoch = state.sampler.steps, time.monotonic(), state.place, epoch
    run.model.train()
    for group in () if state.through else state.sampler.epoch():
        for parameters in state.optimizer.param_groups:
            parameters["lr"] = state.learning_rate
        state.diagnostics.begin_step(state.place, steps, state.learning_rate)
        step = GroupStep(group, run, state)
        run.pulse.announce(state.index, step.micro_batch)
        try:
            with state.annotate_place(epoch, state.place + 1), step.annotate_oom():
                losses = state.combiner.update(step)
        except TrainingError:
            state.settle()  # an earlier error that has not been read yet is the true reason
            raise
        state.add_losses(losses)
        run.costs.update(examples=step.examples, backwards=step.backwards)
        if run.pulse.due:
            state.settle()
            rate = (state.place - before) / (time.monotonic() - began)
            facts = {"stage": state.index, "epoch": epoch, "step": state.place, "steps": steps, "rate": rate}
            run.pulse.facts |= {**facts, "losses": state.losses}
        run.pulse()
    state.settle()
    state.through = True


def score_epoch(run: Run, state: StageState, epoch: int) -> None:
    """Score the dev sets, let losses and combiner react, report, and keep the epoch if it is the best."""
    spec, index, losses = run.job.spec, state.index, state.losses
    with state.annotate_place(epoch, state.place):
        predicted = {name: predictions(run.model, name, run.dev[name], run.pulse) for name in run.scored_by(index)}
        scores = score_tasks(run, predicted, {name: run.dev[name].examples.labels for name in predicted})
        train = score_train(run, list(predicted)) if spec["score"]["train"] else {}
    if epoch > 0:
        for name in spec["stages"][index]["tasks"]:
            score, total = scores.get(name, 0.0), scores.get("overall", 0.0)
            run.model.loss(name).epoch_ended(epoch=epoch, score=score, overall=total)
        state.combiner.epoch_ended(epoch=epoch, losses=losses)
    metrics = {name: run.model.loss(name).metrics() for name in spec["stages"][index]["tasks"]}
    metrics["combiner"] = state.combiner.metrics()
    if index == len(spec["stages"]) - 1:
        run.keep_best(epoch, scores, predicted)
    run.report(
        "epoch",
        stage=index,
        epoch=epoch,
        step=state.step,
        losses=losses,
        scores=scores,
        train=train,
        diagnostics=state.diagnostics.report() if epoch > 0 else {},
        metrics={name: values for name, values in metrics.items() if values},
        seconds=run.seconds,
        memory=machine.peak_memory(),
    )


def score_tasks(run: Run, predicted: Mapping[str, Predicted], labels: Mapping[str, Any]) -> dict[str, float]:
    """The score of each task, and the overall score if a task has one that counts."""
    scores = {name: score_of(run.tasks[name], output, labels[name]) for name, output in predicted.items()}
    correlations = {name for name in scores if run.tasks[name].metric.correlation}
    overall = Overall.of(run.job.spec).score(scores, correlations)
    return scores if overall is None else {**scores, "overall": overall}


def score_train(run: Run, tasks: Sequence[str]) -> dict[str, float]:
    """The scores of a fixed sample of the training data."""
    predicted, labels = {}, {}
    for name in tasks:
        feed, rows = run.train[name], run.train_sample(name)
        assert feed.examples.labels is not None
        predicted[name] = predictions(run.model, name, feed, run.pulse, chosen=rows)
        labels[name] = feed.examples.labels[rows]
    return score_tasks(run, predicted, labels)


def score_test(run: Run) -> dict[str, float]:
    """The scores of the test split with the weights of the best epoch, for tasks with a labelled test split."""
    tensors, _ = load_folder(run.folder / "best")
    saved.load_module_state(run.model, tensors, "")
    predicted, examples = {}, {}
    for name in run.scored_by(len(run.job.spec["stages"]) - 1):
        try:
            test_split = run.tasks[name].data.load("test")
            if test_split.labels is None or not len(test_split):
                raise DataError("its test split has no labels")
        except DataError as error:
            run.emit(Event("log", run.job.cell, {"message": f"task {name!r} has no test score: {error}"}))
            continue
        feed = Feed.open(run.tasks[name], test_split, run.model.encoder, run.artifacts.cache(), run.device, run.pulse)
        predicted[name], examples[name] = predictions(run.model, name, feed, run.pulse), test_split
    if predicted:
        run.store("test", predicted, examples)
    return score_tasks(run, predicted, {name: split.labels for name, split in examples.items()})
