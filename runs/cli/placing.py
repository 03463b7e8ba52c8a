"""The options that say where cells are run, and how often they are tried."""

import functools
import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from taskloom.core.errors import Problem, RequestError

if TYPE_CHECKING:
    from taskloom.core import Engine
    from taskloom.registry.installed.catalogue import Catalogue

#: Options of engines that have a flag of their own.
FLAGS = ("workers", "devices", "cells_per_gpu", "threads", "address")


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--engine`` and what it takes; the command gets it as one argument ``engine``, a name with options."""

    @functools.wraps(command)
    def with_engine(*args: Any, engine: str, **kwargs: Any) -> Any:
        given = {flag: kwargs.pop(flag) for flag in FLAGS}
        spec = {**_read(engine), **{flag: value for flag, value in given.items() if value is not None}}
        return command(*args, engine=spec, **kwargs)

    wrapped: Callable[..., Any] = with_engine
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def checked_engine(catalogue: "Catalogue", spec: dict[str, Any]) -> "Engine":
    """The engine, if it is installed, has these options and can work here; otherwise ``RequestError`` says why not."""
    from taskloom.runs.driver.drive import make_engine

    entry = catalogue.get("engine", spec["name"])
    for flag in FLAGS:
        if flag in spec and flag not in entry.options:
            has = [_flag(one) for one in FLAGS if one in entry.options]
            others = [name for name in catalogue.names("engine") if flag in catalogue.get("engine", name).options]
            text = f"engine {entry.name!r} has no such option (it has {', '.join(has) or 'none'}"
            where = f"; {_flag(flag)} is for --engine {' or '.join(others)})" if others else ")"
            raise RequestError("taskloom run", [Problem(_flag(flag), text + where)])
    resolved, problems = catalogue.resolve("engine", spec)
    if problems:
        raise RequestError(f"engine {entry.name!r}", problems)
    engine = make_engine(catalogue, resolved)
    engine.check()
    return engine


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _read(text: str) -> dict[str, Any]:
    """A name, or a JSON object with the name and options."""
    if not text.startswith("{"):
        return {"name": text}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no JSON object: {error}", param_hint="--engine") from None
    if not isinstance(value.get("name"), str):
        raise click.BadParameter(f'an object should have a "name". Found {text!r}.', param_hint="--engine")
    return dict(value)


class _Seconds(click.FloatRange):
    """A time; what is no number is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"should be a number of seconds. Found {value!r}.", param, ctx)
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
        type=_Seconds(min=0, min_open=True),
        metavar="SECONDS",
        help="A cell that reports nothing for so long is stopped and counts as lost. [default: never]",
    ),
    click.option(
        "--attempts",
        type=click.IntRange(min=1),
        default=3,
        show_default=True,
        metavar="N",
        help="How often a cell is tried whose worker is lost; it goes on from its checkpoint.",
    ),
)
