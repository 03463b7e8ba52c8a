"""Options that several commands share, and those of ``taskloom run`` that choose where cells run."""

import functools
import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from taskloom.core.errors import shortened
from taskloom.runs.api.grid import STALE, Grid
from taskloom.runs.cli.common import COLOR, STRICT, nearby
from taskloom.runs.cli.completion import ENGINE, GRID, ROW, TRACKER
from taskloom.runs.show.render import FORMATS

Command = Callable[..., Any]
MOST_SEEDS = 9999


def read_path(context: click.Context, option: click.Parameter, text: str | None) -> Path | None:
    return None if text is None else Path(os.path.expanduser(text))  # noqa: PTH111 - the other raises


def path_option(*flags: str, help: str, metavar: str = "FOLDER", **more: Any) -> Callable[[Command], Command]:
    """Declare an option that names a folder or a file; ``~`` in it is the user's home."""
    more |= {"type": click.Path(), "callback": read_path, "show_default": True, "show_envvar": True}
    return click.option(*flags, metavar=metavar, help=help, **more)


registry_option = path_option(
    "--registry", help="Where results are kept.", envvar="TASKLOOM_REGISTRY", default="taskloom-runs"
)
split_option = click.option(
    "--split",
    type=click.Choice(["dev", "test", "train"]),
    callback=lambda context, option, split: split or "",
    help="Scores on which split, of all rows.  [default: dev, or what the grid states for a row]",
)
force_option = click.option("--force", is_flag=True, help="Replace a file of another kind.")
stale_option = click.option(
    "--stale",
    type=click.Choice(STALE),
    default="show",
    show_default=True,
    help="Rows that would be other runs now, since data, a plugin or the grid's file changed.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
moved_data_option = path_option(
    "--data", help="Where the data are now: in FOLDER, or in a folder of the data set's name in it."
)
keep_option = click.option(
    "--keep",
    type=click.Choice(["best", "heads", "none"]),
    default="best",
    show_default=True,
    help="What stays of a finished cell's weights: those of its best epoch, of them all but the encoder's, or none.",
)
strict_option = click.option(  # `checked_catalogue` does the checking
    "--strict-plugins",
    is_flag=True,
    envvar=STRICT,
    show_envvar=True,
    expose_value=False,
    callback=lambda context, parameter, value: context.meta.__setitem__(STRICT, value),
    help="Refuse to work while any plugin is broken.",
)


def combined(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Combine several options into one decorator, in the order of the help."""
    return lambda command: functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def _set_color(context: click.Context, option: click.Parameter, color: str) -> None:
    context.meta[COLOR] = color
    context.color = {"always": True, "never": False}.get(color)  # else click takes colours out of a pipe


format_option = combined(
    click.option(
        "--format", "form", type=click.Choice(FORMATS), default="plain", show_default=True, help="The table's format."
    ),
    click.option(  # `say_answer` does the colouring
        "--color",
        type=click.Choice(("auto", "always", "never")),
        default="auto",
        show_default=True,
        expose_value=False,
        callback=_set_color,
        help="Bold type and coloured verdicts: on a terminal without NO_COLOR, or as this says.",
    ),
)


def _read_setting(setting: str) -> tuple[str, Any]:
    """Parse ``path=value``, the value as JSON; a bare word is a string.

    >>> _read_setting("stages.*.epochs=1"), _read_setting("stages.0.combiner=pcgrad")
    (('stages.*.epochs', 1), ('stages.0.combiner', 'pcgrad'))
    """
    path, equals, text = (part.strip() for part in setting.partition("="))
    if not path or not equals:
        raise click.BadParameter(f"should be PATH=JSON, such as stages.*.clip=1. Found {setting!r}.")
    try:
        return path, json.loads(text)
    except ValueError as error:
        if not text or re.match(r'[{["]|[-+]?\.?\d', text):
            raise click.BadParameter(f"{shortened(text)!r} is not a JSON value: {error}") from None
        return path, text


def _read_settings(context: click.Context, option: click.Parameter, texts: Iterable[str]) -> dict[str, Any]:
    """Parse several ``path=value``; of a path that is given twice the last counts, in its position."""
    settings: dict[str, Any] = {}
    for path, value in map(_read_setting, texts):
        settings.pop(path, None)
        settings[path] = value
    return settings


def _read_seeds(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...] | int:
    """Parse a list of seeds, or a number of new ones.

    >>> _read_seeds(None, None, "0-2,7"), _read_seeds(None, None, "+3")
    ((0, 1, 2, 7), 3)
    """
    if text is None:
        return ()
    if re.fullmatch(r"\+[0-9]{1,4}", text) and int(text) > 0:
        return int(text)
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,10})(?:-([0-9]{1,10}))?\s*", part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not low <= high < 2**32 or high - low >= MOST_SEEDS:
            words = f"0-4 or 0,2,5 ({MOST_SEEDS:,} at most), or +3 for three new ones"
            raise click.BadParameter(f"should be seeds such as {words}. Found {text!r}.")
        seeds += range(low, high + 1)
    return tuple(dict.fromkeys(seeds))


def _run_options(weights: str, epochs: str, settings: str) -> Callable[[Command], Command]:
    """The options that change runs, and so make another table than the grid's own, with the help of each."""
    return combined(
        click.option("--weights", metavar="NAME_OR_FOLDER", help=weights),
        click.option("--epochs", type=click.IntRange(min=0), metavar="N", help=epochs),
        click.option(
            "--set",
            "settings",
            callback=_read_settings,
            multiple=True,
            metavar="PATH=JSON",
            help=f"{settings}; may be repeated.",
        ),
    )


tuned_option = click.option(
    "--tuned/--untuned", default=True, help="Rows with the settings of the grid's search, or as they are written."
)
#: The options of every command that plans a grid; their names are those of arguments of ``Grid.plan``.
plan_options = combined(
    path_option(
        "--data",
        help="Where data sets are: their files are in FOLDER or in a folder of their name in it (cs224n, sick, snli); "
        "those of a table too, if they are there.",
    ),
    _run_options(
        "Other weights for the encoder, such as minilm or a folder.",
        "At most N epochs in every stage.",
        "Set a value in every cell that has the place, such as stages.*.optimizer.lr=3e-5",
    ),
    tuned_option,
    click.option("--name", metavar="NAME", help="Keep what is run in a table of its own, under this name."),
    click.option(
        "--only",
        type=ROW,
        multiple=True,
        metavar="LABEL",
        help="Only rows with this label; * matches anything; may be repeated.",
    ),
    click.option(
        "--seeds",
        callback=_read_seeds,
        metavar="LIST|+N",
        help="Add seeds to the grid's own: 0-4, or 0,2,5, or +3 for three new ones. They stay with the grid.",
    ),
    click.option("--smoke", is_flag=True, help="Every cell for a few steps on generated text with a tiny encoder."),
    click.option("--yes", "allow_large", is_flag=True, help="Accept a grid of more than 10,000 cells."),
    strict_option,
)


def table_options(command: Command) -> Command:
    """Add GRID, --registry, --weights, --epochs, --set and --untuned to a command on results, which gets a ``Grid``.

    With --weights, --epochs, --set or --untuned it is the table that a run with these has made.
    """

    @functools.wraps(command)
    def of_table(
        *,
        grid: str,
        registry: Path,
        weights: str | None,
        epochs: int | None,
        settings: dict[str, Any],
        tuned: bool,
        **arguments: Any,
    ) -> Any:
        table_grid = Grid(grid, registry=nearby(registry, grid))
        if weights is not None or epochs is not None or settings or not tuned:
            table_grid = table_grid.under(weights=weights, epochs=epochs, settings=settings, tuned=tuned)
        return command(grid=table_grid, **arguments)

    return combined(
        click.argument("grid", type=GRID),
        registry_option,
        _run_options(
            "The table of the runs with these weights.",
            "The table of the runs with at most N epochs in every stage.",
            "The table of the runs with this setting",
        ),
        tuned_option,
    )(of_table)


def _read_component(text: str) -> dict[str, Any]:
    """Parse a component: a name, or a JSON object with the name and options."""
    if not text.lstrip().startswith("{"):
        return {"name": text.strip()}
    try:
        return dict(json.loads(text))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a JSON object: {error}") from None


def _read_components(texts: Iterable[str]) -> tuple[dict[str, Any], ...]:
    """Parse several components; names may also be separated by commas within a text."""
    groups = ([text] if text.lstrip().startswith("{") else filter(str.strip, text.split(",")) for text in texts)
    return tuple(_read_component(component) for group in groups for component in group)


#: Options of engines that are also flags.
_ENGINE_FLAGS = (
    ("--workers", "N", "Cells at once. [default: one per GPU; without one, one per core, 8 at most]"),
    (
        "--devices",
        "LIST",
        "cuda:0,cuda:1 or cpu:2 (two cells at once) or auto; mps and xpu are experimental. [default: auto]",
    ),
    ("--cells-per-gpu", "N", "Cells that share a GPU. [default: 1]"),
    (
        "--threads",
        "N",
        "Most CPU threads of a cell. [default: the cores divided by the workers, OMP_NUM_THREADS at most]",
    ),
    ("--address", "WHERE", "The cluster, for engines that have one: auto, or host:port."),
)
engine_options = combined(
    click.option(
        "--engine",
        type=ENGINE,
        default="local",
        show_default=True,
        envvar="TASKLOOM_ENGINE",
        show_envvar=True,
        callback=lambda context, option, text: _read_component(text),
        metavar="NAME",
        help="Where cells are run: worker processes on this machine (local), a Ray cluster (ray), this process "
        '(inline), or a plugin\'s engine; {"name": …, options} for what has no flag.',
    ),
    *(
        click.option(flag, type=click.IntRange(min=1) if metavar == "N" else str, metavar=metavar, help=help)
        for flag, metavar, help in _ENGINE_FLAGS
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="Stop a cell that reports nothing for this long; it counts as lost. [default: never]",
    ),
    click.option(
        "--attempts",
        type=click.IntRange(min=1),
        default=3,
        show_default=True,
        metavar="N",
        help="How often a cell is tried if its worker is lost; it continues from its checkpoint.",
    ),
)

tracker_option = click.option(
    "--tracker",
    "trackers",
    type=TRACKER,
    multiple=True,
    envvar="TASKLOOM_TRACKERS",
    show_envvar=True,
    callback=lambda context, option, texts: _read_components(texts),
    metavar="NAME",
    help="Who else is told of every run: tensorboard, mlflow, wandb, trackio, jsonl, or a plugin's tracker; "
    '{"name": …, options} for more; may be repeated. `taskloom plugins --kind tracker` lists them.',
)
