"""The model card: how to use the folder, the model's scores, its data and training. No texts, no paths."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from tabulate import tabulate

from taskloom.core import DataError, Examples, Split
from taskloom.core.errors import count
from taskloom.registry.installed.catalogue import Catalogue
from taskloom.registry.results.records import CellRecord, GridCell, GridRecord
from taskloom.runs.analysis.results import Results
from taskloom.runs.export.heads import CARD, encode_lines, head_lines
from taskloom.runs.export.vectors import own_pooling
from taskloom.runs.predict.trained import TrainedModel

ExportFormat = Literal["sentence-transformers", "transformers", "onnx"]
#: Task → split → its examples, or why they cannot be read.
Data = Mapping[str, Mapping[Split, Examples | DataError]]

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_EXAMPLE = 'print(encode(["a fine film", "a dull one"]).shape)'


@dataclass(frozen=True)
class Source:
    """The subject of a card: the export's name, the model and its origin, and notes for its users."""

    name: str
    model: TrainedModel
    cell: CellRecord
    catalogue: Catalogue
    registry: Path
    form: ExportFormat
    data: Data
    notes: Sequence[str]


@dataclass(frozen=True)
class DevScore:
    """A task's dev score, its 95 % interval in words, and the number of examples scored."""

    task: str
    metric: str
    value: float
    interval: str
    examples: int


def write_card(folder: Path, source: Source) -> None:
    """Write ``README.md``, with the hub's metadata at its beginning."""
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    model, tasks, form = source.model, source.cell.spec["tasks"], source.form
    scores = list(_scores(source.cell, source.registry))
    eval_results = [
        EvalResult(
            task_type="text-classification" if model.tasks[score.task].labels.classes else "sentence-similarity",
            task_name=score.task,
            dataset_type=tasks[score.task]["data"]["name"],
            dataset_name=f"{score.task} ({tasks[score.task]['data']['name']})",
            dataset_config=score.task,  # tells apart two tasks of one data set
            dataset_split="dev",
            metric_type=score.metric,
            metric_value=score.value,
        )
        for score in scores
    ]
    weights = source.cell.spec["encoder"].get("weights") or ""
    metadata = ModelCardData(
        model_name=source.name,
        eval_results=eval_results or None,
        library_name=form,
        pipeline_tag="sentence-similarity" if form == "sentence-transformers" else "feature-extraction",
        tags=["taskloom", "multi-task", "sentence-embeddings"],
        base_model=weights if _HUB_ID.fullmatch(weights) and not os.path.exists(weights) else None,  # noqa: PTH110
    )
    sections = [
        f"# {source.name}",
        _opening(model),
        *source.notes,
        _use(model, form),
        _score_section(source.cell, scores),
        _data_section(source),
        _training_section(source.cell),
        _references(source),
        _license(begun=bool(weights)),
    ]
    ModelCard(f"---\n{metadata.to_yaml()}\n---\n\n" + "\n\n".join(sections) + "\n").save(folder / CARD)


def _opening(model: TrainedModel) -> str:
    tasks = ", ".join(f"`{name}`" for name in model.tasks)
    return (
        f"A sentence encoder with {count(len(model.tasks), 'head')}, trained on {tasks} with taskloom. A text becomes "
        f"a vector of {model.encoder.width} numbers, pooled by {own_pooling(model)}; at most "
        f"{model.encoder.max_length} tokens of it count, special ones among them."
    )


def _use(model: TrainedModel, form: ExportFormat) -> str:
    parts = ["## Use", "Sentence vectors, in this folder:", _code([*encode_lines(model, form), "", _EXAMPLE])]
    parts.append(
        "The heads are in `heads.safetensors`; `heads.json` says what each is and what its labels mean. A task reads "
        "`texts`, or columns of them: `first`, `second` and, where it compares three, `third`; `predicted` is a class "
        "number, or a value in the units of the labels."
    )
    for task in model.tasks:
        lines = head_lines(model, task, form)
        parts += [f"### {task}", lines if isinstance(lines, str) else _code(lines)]
    return "\n\n".join(parts)


def _scores(cell: CellRecord, registry: Path) -> Iterator[DevScore]:
    """Yield the stored dev scores of a cell, with intervals as in every table."""
    results = Results(GridRecord("", {}, "", "", (GridCell("", cell.spec["seed"], {}, cell),)), registry)
    stored = results.stored(cell.id)
    for task, facts in stored.tasks.items() if stored else ():
        ends = results.scores(task).contrast(np.ones(1)).interval()
        interval = f"{ends[0]:.3f} to {ends[1]:.3f}" if ends else ""
        size = len(results.examples(facts.examples).expected)
        yield DevScore(task, facts.metric, round(cell.scores[task], 4), interval, size)


def _score_section(cell: CellRecord, scores: Sequence[DevScore]) -> str:
    rows = [(score.task, score.metric, f"{score.value:.3f}", score.interval, score.examples) for score in scores]
    text = "The intervals are about the choice of dev examples alone: another seed gives another model."
    if cell.spec.get("selection") != "last":
        text += " The weights are those of the epoch that was best on these examples, which flatters the scores."
    return f"## Scores\n\n{_table(rows, ('task', 'metric', 'dev score', '95 % interval', 'examples'))}\n\n{text}"


def _data_section(source: Source) -> str:
    rows, cell = [], source.cell
    for name, task in source.model.tasks.items():
        splits = source.data[name].values()
        sizes = [len(examples) if isinstance(examples, Examples) else "" for examples in splits]
        content = cell.facts.get("content", {}).get(f"tasks.{name}.data", "")
        labels = task.data.labels
        kind = "none" if labels is None else f"{labels.low:g} to {labels.high:g}"
        if labels is not None and labels.classes:
            kind = f"{labels.classes} classes"
        rows.append((name, cell.spec["tasks"][name]["data"]["name"], kind, *sizes, f"`{content[:16]}`"))
    return f"## Data\n\n{_table(rows, ('task', 'data set', 'labels', 'train', 'dev', 'fingerprint'))}"


def _training_section(cell: CellRecord) -> str:
    """Show the run's specification without the paths of its files, as in its identity, and the versions."""
    spec = cell.facts.get("spec", {})
    parts = {"encoder": spec.get("encoder"), **{f"task {name}": task for name, task in spec.get("tasks", {}).items()}}
    parts |= {f"stage {number}": stage for number, stage in enumerate(spec.get("stages", ()), 1)}
    parts |= {key: spec[key] for key in ("selection", "overall", "precision", "seed") if key in spec}
    lines = [f"{name}: {json.dumps(part, ensure_ascii=False)}" for name, part in parts.items()]
    versions = ", ".join(f"{package} {version}" for package, version in sorted(cell.versions.items()))
    text = "\n".join(lines)
    return f"## Training\n\n```text\n{text}\n```\n\nCell `{cell.id}`; {versions}."


def _references(source: Source) -> str:
    """List the references in the docstrings of the run's components."""
    references = [entry.docstring.parts.get("Reference", "") for entry in source.catalogue.used(source.cell.spec)]
    return "## References\n\n" + "\n".join(f"- {' '.join(text.split())}" for text in dict.fromkeys(references) if text)


def _license(*, begun: bool) -> str:
    sources = "the weights that training began with and of the data" if begun else "the data"
    return f"## License\n\nNone is stated here. Look at the terms of {sources}, then add `license:` above."


def _code(lines: Sequence[str]) -> str:
    return "```python\n" + "\n".join(lines) + "\n```"


def _table(rows: Sequence[Sequence[object]], head: Sequence[str]) -> str:
    return tabulate([[str(value) for value in row] for row in rows], head, "github", disable_numparse=True)
