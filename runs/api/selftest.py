"""Does training work on this device? The quickstart, small, under everything that can go wrong on a new GPU.

Each check is a function of a :class:`Trial` that returns what it measured, raises ``CheckError`` if the device did not
pass, and ``NotTriedError`` if it could not be tried here. Whatever else it raises is a failure too.
"""

import hashlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from textwrap import indent, wrap
from typing import Any, Literal

from taskloom.core import Event
from taskloom.core.errors import TaskloomError, count
from taskloom.core.work import reason_of
from taskloom.registry.results.artifacts import Artifacts
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import CellRecord
from taskloom.registry.results.wording import duration, format_scores
from taskloom.runs.api.answer import Answer
from taskloom.runs.api.grid import Grid
from taskloom.runs.show.parts import Aligned, Part
from taskloom.runs.show.visible import visible

#: The engine of every check, whatever ``TASKLOOM_ENGINE`` says: its workers see one device and may be killed.
ENGINE = "local"
GRID, ROWS = "quickstart", 2
#: Epochs of each run, and the one after which a worker is killed: there is a checkpoint, and enough is left to do.
EPOCHS, KILLED_AFTER = 4, 2
SIZES = {"tasks.*.data.size": 480, "tasks.*.data.dev_size": 150, "stages.*.epochs": EPOCHS}
#: With dropout, whose random numbers have to be the same on the same device.
RANDOM = {"encoder.dropout": 0.1, "encoder.attention_dropout": 0.1}
#: The most that scores may differ between devices, and the losses of the first epoch (relative): rounding differs.
SCORES, LOSSES = 0.05, 0.002
#: The same for bfloat16 against float32, which has 16 more bits, and the sizes of an encoder that fills matrix units.
HALF_SCORES, HALF_LOSSES = 0.1, 0.05
WIDE = {"tasks.*.data.size": 160, "encoder.width": 256, "encoder.feed_forward": 1024, "stages.*.epochs": 1}
#: Seconds without an event after which a run has failed, and those of a check in a process of its own.
TIMEOUT, PROBE_TIMEOUT = 180.0, 400.0
#: The variable that makes oneDNN leave out what some virtual machines announce and refuse.
ISA_ADVICE = (
    "this CPU, or its virtual machine, announces instructions that it refuses; try it with "
    "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in the environment"
)


class CheckError(TaskloomError):
    """The device did not pass a check."""


class NotTriedError(TaskloomError):
    """A check could not be tried here; the message says why."""


@dataclass(frozen=True)
class Finding:
    """What a check came to: its name, the device, ``passed``, ``failed`` or ``not tried``, and what was measured."""

    name: str
    device: str
    status: Literal["passed", "failed", "not tried"]
    measured: str
    seconds: float


@dataclass(frozen=True)
class SelfTest:
    """The findings of all checks, and the versions of what was tested."""

    findings: tuple[Finding, ...]
    versions: dict[str, str]

    @property
    def failed(self) -> list[str]:
        """The names of the checks that failed."""
        return [finding.name for finding in self.findings if finding.status == "failed"]


@dataclass(frozen=True)
class RowResult:
    """What training one row came to: its record, its losses and scores by epoch, and a digest of its files."""

    record: CellRecord
    epochs: list[tuple[Mapping[str, float], Mapping[str, float]]]
    files: str


RowResults = dict[str, RowResult]


@dataclass
class Watch:
    """Watches the events of a run; with ``kill`` it kills the first worker after :data:`KILLED_AFTER` epochs."""

    kill: bool = False
    killed: int = 0  # the process that was killed
    resumed: int = 0  # how often a cell went on from a checkpoint
    workers: set[int] = field(default_factory=set)
    _worker: int = 0

    def __call__(self, event: Event) -> None:
        if event.what in ("started", "resumed"):
            self._worker = event.facts.get("pid", 0)
            self.workers.add(self._worker)
            self.resumed += event.what == "resumed"
        kills = self.kill and self._worker and not self.killed
        if kills and event.what == "epoch" and event.facts["epoch"] == KILLED_AFTER:
            self.killed = self._worker
            os.kill(self.killed, signal.SIGKILL)


@dataclass
class Trial:
    """A device under test, and a folder for the registries of its runs."""

    device: str
    folder: Path

    @property
    def on_cpu(self) -> bool:
        """Whether the device is the CPU."""
        return self.device == "cpu"

    @cached_property
    def reference(self) -> RowResults:
        """Two rows on the device, one after the other, in one worker."""
        return self.run("reference", rows=first_rows(ROWS))

    @cached_property
    def without_dropout_on_cpu(self) -> RowResults:
        """Two rows on the CPU without dropout: other devices should have the same results, but for rounding."""
        return self.run("cpu", rows=first_rows(ROWS), device="cpu", settings=without_dropout())

    def run(
        self,
        name: str,
        *,
        rows: Sequence[Mapping[str, Any]] = (),
        at_once: int = 1,
        device: str = "",
        attempts: int = 1,
        watch: Watch | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> RowResults:
        """Train rows, by default the grid's first one, in a registry of that name; ``CheckError`` if one fails."""
        device = device or self.device
        engine: dict[str, Any] = {"name": ENGINE, "devices": f"cpu:{at_once}" if device == "cpu" else device}
        if device != "cpu" and at_once > 1:
            engine["cells_per_gpu"] = at_once
        return run_rows(
            self.folder / name,
            {**SIZES, **(settings or RANDOM)},
            rows or first_rows(1),
            engine,
            attempts,
            watch or Watch(),
        )

    def probe(self, name: str) -> str:
        """Run a check of :mod:`taskloom.runs.api.selftest_probes` in a process of its own; returns what it measured."""
        command = [sys.executable, "-m", "taskloom.runs.api.selftest_probes", name, self.device, str(self.folder)]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT, errors="replace")
        except subprocess.TimeoutExpired:
            raise CheckError(f"its process did not end within {PROBE_TIMEOUT:.0f} s") from None
        if ended.returncode < 0:
            raise CheckError(f"its process was ended by {signal.Signals(-ended.returncode).name}")
        try:
            answer: dict[str, str] = json.loads(ended.stdout.splitlines()[-1])
        except (ValueError, IndexError):
            last = " ".join(ended.stderr.split())[-300:]
            raise CheckError(f"its process ended with exit code {ended.returncode}: {last}") from None
        if "measured" not in answer:
            raise (NotTriedError if "not tried" in answer else CheckError)(next(iter(answer.values())))
        return answer["measured"]


def first_rows(number: int) -> list[dict[str, Any]]:
    """The first rows of the packaged grid."""
    rows: list[dict[str, Any]] = Grid(GRID).file.raw["cells"][:number]
    return rows


def without_dropout() -> dict[str, Any]:
    """Settings that leave dropout out of the packaged grid, whose encoder has none by itself."""
    tasks = Grid(GRID).file.raw["base"]["tasks"]
    heads = {name: task["head"] for name, task in tasks.items()}
    options = {name: {"name": head} if isinstance(head, str) else head for name, head in heads.items()}
    return {f"tasks.{name}.head": {**head, "dropout": 0.0} for name, head in options.items()}


def run_rows(
    registry: Path,
    settings: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    engine: Mapping[str, Any],
    attempts: int = 1,
    watch: Watch | None = None,
) -> RowResults:
    """Train rows of the grid, with one seed, in a registry; raises ``CheckError`` if one fails."""
    from taskloom.runs.api.run import run_grid
    from taskloom.runs.grid.overrides import Overrides

    grid = Grid(GRID, name="selftest").replace(cells=list(rows), seeds=[0], claims=[], baseline=rows[0]["label"])
    for path, value in settings.items():
        grid = grid.set(path, value)
    outcome = run_grid(
        grid.file,
        registry,
        Overrides(),
        allow_large=False,
        engine=engine,
        workers=None,
        progress=False,
        stop=None,
        trackers=(),
        retry_failed=True,
        attempts=attempts,
        timeout=TIMEOUT,
        keep="best",
        listen=watch or Watch(),
    ).outcome
    if outcome.reasons or outcome.halted:
        raise CheckError("; ".join(sorted({*outcome.reasons.values(), outcome.halted} - {""})))
    with Ledger.open(registry, create=False) as ledger:
        return {
            cell.label: RowResult(
                cell.cell,
                [(epoch.losses, epoch.scores) for epoch in ledger.epochs(cell.cell.id)],
                _digest(Artifacts(registry).cell(cell.cell.id)),
            )
            for cell in ledger.grid(grid.name).cells
        }


def _digest(folder: Path) -> str:
    """A digest of the weights and the predictions in a cell's folder."""
    digest = hashlib.sha256()
    for path in (folder / "best" / "tensors.safetensors", *sorted(folder.glob("scores-*.safetensors"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


# The checks


def agrees_with_cpu(trial: Trial) -> str:
    """The quickstart on the device against the CPU."""
    if trial.on_cpu:
        raise NotTriedError("no GPU: there is nothing to compare the CPU with")
    results = trial.run("exact", rows=first_rows(ROWS), settings=without_dropout())
    apart = _compare(results, trial.without_dropout_on_cpu)
    return f"scores differ from the CPU's by at most {apart:.2g} ({SCORES} allowed; {_scores(results)})"


def repeats(trial: Trial) -> str:
    """The same run twice."""
    return _same_bits(trial.run("again"), trial.reference)


def resumes(trial: Trial) -> str:
    """A run whose worker is killed, against one that was left alone."""
    watch = Watch(kill=True)
    results = trial.run("killed", attempts=2, watch=watch)
    _check_resumed(watch)
    return f"worker killed after epoch {KILLED_AFTER} of {EPOCHS}, then resumed: {_same_bits(results, trial.reference)}"


def moves_to_cpu(trial: Trial) -> str:
    """A checkpoint of the device, from which the CPU goes on."""
    if trial.on_cpu:
        raise NotTriedError("no GPU: a checkpoint has no other device to go to")
    watch = Watch(kill=True)
    try:
        trial.run("moved", watch=watch, settings=without_dropout())
    except CheckError:
        if not watch.killed:
            raise
    results = trial.run("moved", device="cpu", watch=watch, settings=without_dropout())
    _check_resumed(watch)
    (row,) = results.values()
    apart = _compare(results, trial.without_dropout_on_cpu)
    return f"trained on {row.record.device}: scores differ from the CPU's by at most {apart:.2g} ({SCORES} allowed)"


def recovers_from_oom(trial: Trial) -> str:
    """A batch that does not fit into memory."""
    if trial.on_cpu:
        raise NotTriedError("no GPU: the CPU's memory is not limited here")
    return trial.probe("memory")


def trains_in_bfloat16(trial: Trial) -> str:
    """The forward pass in bfloat16 against float32; a crash ends a worker and not this process."""
    rows = [{"label": precision, "set": {"precision": precision}} for precision in ("float32", "bfloat16")]
    try:
        results = trial.run("bfloat16", rows=rows, settings={**without_dropout(), **WIDE})
    except CheckError as error:
        advice = f"; {ISA_ADVICE}" if "SIGILL" in str(error) and trial.on_cpu else ""
        raise CheckError(f"{error}{advice}") from None
    whole, half = results.values()
    if half.epochs == whole.epochs:
        raise CheckError("it made no difference: nothing was computed in bfloat16")
    apart = _compare({"bfloat16": half}, {"bfloat16": whole}, scores=HALF_SCORES, losses=HALF_LOSSES)
    return f"scores differ from those of float32 by at most {apart:.2g} ({HALF_SCORES} allowed)"


def shares_the_device(trial: Trial) -> str:
    """Two cells at once, against one at a time."""
    watch = Watch()
    results = trial.run("together", rows=first_rows(ROWS), at_once=ROWS, watch=watch)
    if len(watch.workers) < ROWS:
        raise CheckError(f"{ROWS} cells should run in {ROWS} processes. Found {len(watch.workers)}.")
    return f"{ROWS} cells in {ROWS} processes: {_same_bits(results, trial.reference)}"


def steps_like_transformers(trial: Trial) -> str:
    """A training step of MiniLM, or of a random encoder of its shape, against transformers."""
    return trial.probe("step")


CHECKS: tuple[tuple[str, Callable[[Trial], str]], ...] = (
    ("the same scores as on the CPU", agrees_with_cpu),
    ("twice the same bits", repeats),
    ("killed and resumed: the same bits", resumes),
    ("a checkpoint goes on elsewhere", moves_to_cpu),
    ("out of memory and recovered", recovers_from_oom),
    ("bfloat16", trains_in_bfloat16),
    ("several cells on one device", shares_the_device),
    ("a step of MiniLM against transformers", steps_like_transformers),
)


def _check_resumed(watch: Watch) -> None:
    if not watch.killed or not watch.resumed:
        done = "was killed and did not go on from its checkpoint" if watch.killed else "ended before it was killed"
        raise CheckError(f"the run {done}")


def _same_bits(results: RowResults, others: RowResults) -> str:
    """Raise ``CheckError`` unless rows of both have the same losses, scores, weights and predictions."""
    for label, row in results.items():
        other = others[label]
        for epoch, (ours, theirs) in enumerate(zip(row.epochs, other.epochs, strict=True), start=1):
            if ours != theirs:
                apart = max(abs(ours[part][task] - theirs[part][task]) for part in (0, 1) for task in ours[part])
                raise CheckError(f"row {label!r} differs from epoch {epoch} on, there by up to {apart:.2g}")
        if row.files != other.files:
            raise CheckError(f"the weights or predictions of row {label!r} differ, though its scores are the same")
    return f"losses, scores, weights and predictions of {count(len(results), 'row')} are equal"


def _compare(results: RowResults, others: RowResults, scores: float = SCORES, losses: float = LOSSES) -> float:
    """The largest difference of final scores; ``CheckError`` if it, or one of the first losses, is over the limit."""
    largest = 0.0
    for label, row in results.items():
        other = others[label]
        for task, loss in row.epochs[0][0].items():
            expected = other.epochs[0][0][task]
            if not abs(loss - expected) <= losses * abs(expected):
                words = f"{loss:.5f} instead of {expected:.5f} (row {label!r}, task {task!r})"
                raise CheckError(f"the loss of the first epoch is {words}; {losses:.0%} allowed")
        for task, score in row.record.scores.items():
            apart = abs(score - other.record.scores[task])
            largest = max(largest, apart)
            if not apart <= scores:
                words = f"{score:.4f} instead of {other.record.scores[task]:.4f} (row {label!r})"
                raise CheckError(f"the score of {task} is {words}; {scores} allowed")
    return largest


def _scores(results: RowResults) -> str:
    return "; ".join(f"{label}: {format_scores(row.record.scores)}" for label, row in results.items())


# The whole


def selftest(devices: str = "auto", *, progress: bool = True) -> Answer[SelfTest]:
    """Check in about three minutes whether training works on a device; the answer is a page to paste into an issue.

    ``devices`` is ``auto`` (the first GPU, or the CPU where there is none) or a list such as ``cuda:0,cuda:1``, whose
    devices are tested one after another; ``mps`` and ``xpu`` are experimental. ``found.failed`` names the checks that
    failed. ``progress`` goes to stderr. ``RequestError`` if the machine does not have a device.
    """
    from taskloom.registry.installed.catalogue import load_catalogue
    from taskloom.runs.driver.drive import make_engine

    names = _device_names(devices)
    for name in names:
        make_engine(load_catalogue(), {"name": ENGINE, "devices": name}).check()
    findings: list[Finding] = []
    used: dict[str, str] = {}
    for name in names:
        with tempfile.TemporaryDirectory(prefix="taskloom-selftest-") as folder:
            trial = Trial(name, Path(folder))
            for number, (title, check) in enumerate(CHECKS, start=1):
                finding = run_check(title, check, trial)
                findings.append(finding)
                if progress:
                    line = f"{name}  {number}/{len(CHECKS)}  {title}: {finding.status} ({duration(finding.seconds)})"
                    print(visible(line), file=sys.stderr, flush=True)
            if "reference" in vars(trial):
                used[name] = next(iter(trial.reference.values())).record.device or ""
    result = SelfTest(tuple(findings), _versions(used))
    return Answer(
        result,
        _page(result),
        {"failed": result.failed, **asdict(result)},
        [asdict(finding) for finding in result.findings],
    )


def run_check(title: str, check: Callable[[Trial], str], trial: Trial) -> Finding:
    """Run a check; whatever it raises becomes its finding."""
    began = time.monotonic()
    status: Literal["passed", "failed", "not tried"]
    try:
        status, measured = "passed", check(trial)
    except NotTriedError as reason:
        status, measured = "not tried", str(reason)
    except Exception as error:
        status, measured = "failed", reason_of(error)
    return Finding(title, trial.device, status, measured, time.monotonic() - began)


def _device_names(devices: str) -> list[str]:
    """The devices one by one: ``cuda`` stands for every GPU, and ``cpu:2`` is no other device than ``cpu``."""
    import torch

    if devices == "auto":
        return ["cuda:0" if torch.cuda.is_available() else "cpu"]
    if devices == "cuda" and torch.cuda.is_available():
        return [f"cuda:{gpu}" for gpu in range(torch.cuda.device_count())]
    names = [name.strip() for name in devices.split(",")]
    return ["cpu" if re.fullmatch(r"cpu:[1-9]\d*", name) else name for name in names]


def _versions(used: Mapping[str, str]) -> dict[str, str]:
    """What a reader of the page has to know of this machine; ``used`` are the devices as their runs named them."""
    import torch

    from taskloom.runs.training.machine import machine_versions

    versions = {**machine_versions(), "cuda": str(torch.version.cuda or ""), "rocm": str(torch.version.hip or "")}
    with suppress(PackageNotFoundError):
        versions["transformers"] = version("transformers")
    return {**versions, "system": platform.platform(), "processor": _processor(), **used}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model}, {os.cpu_count()} cores"


def _page(result: SelfTest) -> list[Part]:
    statuses = [finding.status for finding in result.findings]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in ("passed", "failed", "not tried"))
    seconds = duration(sum(finding.seconds for finding in result.findings))
    versions = "\n".join(f"{name:<12}  {value}" for name, value in result.versions.items() if value)
    parts: list[Part] = [f"taskloom selftest: {counts}, in {seconds}", Aligned(versions)]
    for device in dict.fromkeys(finding.device for finding in result.findings):
        lines = [device]
        for finding in (finding for finding in result.findings if finding.device == device):
            lines.append(f"  {finding.status:<9}  {finding.name} ({duration(finding.seconds)})")
            lines.append(indent("\n".join(wrap(finding.measured, 90)), " " * 13))
        parts.append(Aligned("\n".join(lines)))
    return parts
