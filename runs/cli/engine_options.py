"""The options of ``taskloom run`` that say where cells run, and how often they are tried."""

import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from taskloom.core.errors import Problem, RequestError

if TYPE_CHECKING:
    from taskloom.core import Engine
    from taskloom.registry.installed.catalogue import Catalogue

#: Options of engines that have a flag of their own.
FLAGS = ("workers", "devices", "cells_per_gpu", "threads", "address")


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--engine``, a flag for each of ``FLAGS``, ``--timeout`` and ``--attempts``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def checked_engine(catalogue: "Catalogue", engine: str, flags: Mapping[str, Any]) -> "Engine":
    """The engine, if it is installed, has these options and can work here; otherwise ``RequestError`` says why not."""
    from taskloom.runs.driver.drive import make_engine

    given = {flag: value for flag, value in flags.items() if value is not None}
    spec = {**_read(engine), **given}
    entry = catalogue.get("engine", spec["name"])
    for flag in given:
        if flag not in entry.options:
            has = [_flag(one) for one in FLAGS if one in entry.options]
            others = [name for name in catalogue.names("engine") if flag in catalogue.get("engine", name).options]
            text = f"engine {entry.name!r} has no such option (it has {', '.join(has) or 'none'}"
            where = f"; {_flag(flag)} is for --engine {' or '.join(others)})" if others else ")"
            raise RequestError("taskloom run", [Problem(_flag(flag), text + where)])
    resolved, problems = catalogue.resolve("engine", spec)
    if problems:
        raise RequestError(f"engine {entry.name!r}", problems)
    runner = make_engine(catalogue, resolved)
    runner.check()
    return runner


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _read(text: str) -> dict[str, Any]:
    """A name, or a JSON object with the name and options."""
    if not text.startswith("{"):
        return {"name": text}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a JSON object: {error}", param_hint="--engine") from None
    if not isinstance(value.get("name"), str):
        raise click.BadParameter(f'an object should have a "name". Found {text!r}.', param_hint="--engine")
    return dict(value)


def _check_seconds(context: click.Context, option: click.Parameter, seconds: float | None) -> float | None:
    if seconds is not None and math.isnan(seconds):
        raise click.BadParameter("should be a number of seconds. Found 'nan'.")
    return seconds


_OPTIONS = (
    click.option(
        "--engine",
        default="local",
        show_default=True,
        envvar="TASKLOOM_ENGINE",
        show_envvar=True,
        metavar="NAME",
        help="Where cells are run: worker processes on this machine (local), a Ray cluster (ray), this process "
        '(inline), or a plugin\'s engine; {"name": …, options} for what has no flag.',
    ),
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        metavar="N",
        help="Cells at once. [default: one per GPU; without one, one per core, 8 at most]",
    ),
    click.option(
        "--devices", metavar="LIST", help="cuda:0,cuda:1 or cpu:2 (two cells at once) or auto. [default: auto]"
    ),
    click.option(
        "--cells-per-gpu", type=click.IntRange(min=1), metavar="N", help="Cells that share a GPU. [default: 1]"
    ),
    click.option(
        "--threads",
        type=click.IntRange(min=1),
        metavar="N",
        help="CPU threads of a cell. [default: the cores divided by the workers, OMP_NUM_THREADS at most]",
    ),
    click.option("--address", metavar="WHERE", help="The cluster, for engines that have one: auto, or host:port."),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        callback=_check_seconds,
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
