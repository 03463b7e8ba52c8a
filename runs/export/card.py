"""The model card: how the folder is used, what the model scores, and what it was made of. No texts, no paths."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from taskloom.core import DataError, Examples
from taskloom.core.errors import count
from taskloom.registry.installed.catalogue import Catalogue
from taskloom.registry.results.records import CellRecord, GridCell, GridRecord
from taskloom.runs.analysis.results import Results
from taskloom.runs.export.heads import encode_lines, head_lines
from taskloom.runs.training.trained import TrainedModel

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def write_card(
    folder: Path,
    name: str,
    model: TrainedModel,
    cell: CellRecord,
    catalogue: Catalogue,
    registry: Path,
    form: str,
    examples: Mapping[str, Mapping[Any, Examples | DataError]],
) -> None:
    """Write ``README.md``, with the metadata that the hub reads at its beginning."""
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    scores = dict(_scores(cell, registry))
    results = [
        EvalResult(
            task_type=_hub_task(model, task),
            task_name=task,
            dataset_type=cell.spec["tasks"][task]["data"]["name"],
            dataset_name=f"{task} ({cell.spec['tasks'][task]['data']['name']})",
            dataset_split="dev",
            metric_type=metric,
            metric_value=score,
        )
        for task, (metric, score, _, _) in scores.items()
    ]
    weights = cell.spec["encoder"].get("weights")
    data = ModelCardData(
        model_name=name,
        eval_results=results or None,
        library_name=form,
        pipeline_tag="sentence-similarity" if form == "sentence-transformers" else "feature-extraction",
        tags=["taskloom", "multi-task", "sentence-embeddings"],
        base_model=weights if weights and _HUB_ID.fullmatch(weights) and not os.path.exists(weights) else None,  # noqa: PTH110
    )
    sections = [
        f"# {name}",
        _opening(model, cell),
        _use(model, form),
        _score_section(cell, scores),
        _data_section(model, cell, examples),
        _training_section(cell, catalogue),
        _license(weights),
    ]
    ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(sections) + "\n").save(folder / "README.md")


def _opening(model: TrainedModel, cell: CellRecord) -> str:
    tasks = ", ".join(f"`{name}`" for name in model.tasks)
    return (
        f"A sentence encoder with {count(len(model.tasks), 'head')} that was trained on {tasks} by "
        f"taskloom. A text becomes a vector of {model.encoder.width} numbers, pooled by `{model.pooling}`; of a longer "
        f"text the first {model.encoder.max_length} tokens count, special ones among them."
    )


def _use(model: TrainedModel, form: str) -> str:
    parts = ["## Use", "Sentence vectors, in this folder:", _code([*encode_lines(model, form), "", _EXAMPLE])]
    parts.append(
        "The heads are in `heads.safetensors`, and `heads.json` says what they are. Where a task reads two texts, "
        "`first` and `second` are columns of them; `predicted` is a class number, or a value in the units of the labels."
    )
    for task in model.tasks:
        lines = head_lines(model, task, form)
        parts += [f"### {task}", lines if isinstance(lines, str) else _code(lines)]
    return "\n\n".join(parts)


_EXAMPLE = 'print(encode(["a fine film", "a dull one"]).shape)'


def _scores(cell: CellRecord, registry: Path) -> Iterator[tuple[str, tuple[str, float, str, int]]]:
    """Of every task with stored dev scores: its metric, its score, the score's interval, and how many examples."""
    alone = GridCell("", cell.spec["seed"], {}, cell)
    results = Results(GridRecord("", {}, "", "", (alone,)), registry)
    stored = results.stored(cell.id)
    for task, facts in stored.tasks.items() if stored else ():
        found = results.scores(task).contrast(np.ones(1)).interval()
        size = len(results.examples(facts.examples).expected)
        interval = f"{found[0]:.3f} to {found[1]:.3f}" if found else ""
        yield task, (facts.metric, round(cell.scores[task], 4), interval, size)


def _score_section(cell: CellRecord, scores: Mapping[str, tuple[str, float, str, int]]) -> str:
    rows = [(task, metric, f"{score:.3f}", interval, size) for task, (metric, score, interval, size) in scores.items()]
    head = ("task", "metric", "dev score", "95 % interval", "examples")
    best = "" if cell.best_epoch is None else f" (epoch {cell.best_epoch})"
    return (
        f"## Scores\n\n{_table(rows, head)}\n\nThe intervals are about the choice of dev examples alone: this is one "
        f"model, and another seed gives another. Its weights are those of the epoch that was best on these "
        f"examples{best}, so the scores flatter it a little."
    )


def _data_section(
    model: TrainedModel, cell: CellRecord, examples: Mapping[str, Mapping[Any, Examples | DataError]]
) -> str:
    rows = []
    for name, task in model.tasks.items():
        sizes = [len(found) if isinstance(found, Examples) else "" for found in examples[name].values()]
        content = cell.facts.get("content", {}).get(f"tasks.{name}.data", "")
        labels = task.data.labels
        kind = "none" if labels is None else f"{labels.classes} classes"
        if labels is not None and not labels.classes:
            kind = f"{labels.low:g} to {labels.high:g}"
        rows.append((name, cell.spec["tasks"][name]["data"]["name"], kind, *sizes, f"`{content[:16]}`"))
    return f"## Data\n\n{_table(rows, ('task', 'data set', 'labels', 'train', 'dev', 'fingerprint'))}"


def _training_section(cell: CellRecord, catalogue: Catalogue) -> str:
    """The run without where its files were, the papers behind its parts, and the versions."""
    spec = cell.facts.get("spec", {})
    parts = {"encoder": spec.get("encoder"), **{f"task {name}": task for name, task in spec.get("tasks", {}).items()}}
    parts |= {f"stage {place}": stage for place, stage in enumerate(spec.get("stages", ()), 1)}
    parts |= {key: spec[key] for key in ("seed", "selection", "overall", "precision") if key in spec}
    lines = [f"{name}: {json.dumps(part, ensure_ascii=False)}" for name, part in parts.items()]
    entries = catalogue.used(cell.spec)
    cited = {entry.docstring.parts.get("Reference", ""): None for entry in entries}
    references = [" ".join(text.split()) for text in cited if text]
    versions = ", ".join(f"{key} {value}" for key, value in sorted(cell.versions.items()))
    return "\n\n".join(
        [
            "## Training",
            "```text\n" + "\n".join(lines) + "\n```",
            f"Cell `{cell.id}`; {versions}.",
            "## References",
            "\n".join(f"- {text}" for text in references),
        ]
    )


def _license(weights: str | None) -> str:
    begun = (
        " The weights that training began with have a license of their own, which applies here too." if weights else ""
    )
    return f"## License\n\nNone is stated here.{begun} Data may have terms as well. Add `license:` above before you publish."


def _hub_task(model: TrainedModel, task: str) -> str:
    labels = model.tasks[task].labels
    return "text-classification" if labels.classes else "sentence-similarity"


def _code(lines: Sequence[str]) -> str:
    return "```python\n" + "\n".join(lines) + "\n```"


def _table(rows: Sequence[Sequence[object]], head: Sequence[str]) -> str:
    return tabulate([[str(value) for value in row] for row in rows], head, "github", disable_numparse=True)
