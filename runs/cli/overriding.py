"""The options with which a command lays something over a whole grid."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def override_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--data --weights --epochs --set --only --smoke``; the command gets them as one argument ``overrides``."""

    @functools.wraps(command)
    def with_overrides(*args: Any, **kwargs: Any) -> Any:
        from taskloom.runs.grid.overrides import Overrides

        given = {name: kwargs.pop(name) for name in ("data", "weights", "epochs", "settings", "only", "smoke")}
        return command(*args, overrides=Overrides(**given), **kwargs)

    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(_OPTIONS), with_overrides)


def _read_setting(given: str) -> tuple[str, Any]:
    """``path=value``, the value as JSON; a bare word is a string.

    >>> _read_setting("stages.*.epochs=1"), _read_setting("stages.0.combiner=pcgrad")
    (('stages.*.epochs', 1), ('stages.0.combiner', 'pcgrad'))
    """

    def refuse(constant: str) -> None:
        raise click.BadParameter(f"{constant} is not a JSON number")

    path, equals, text = (part.strip() for part in given.partition("="))
    if not path or not equals:
        raise click.BadParameter(f"should be PATH=JSON, such as stages.*.clip=1. Found {given!r}.")
    try:
        return path, json.loads(text, parse_constant=refuse)
    except ValueError as error:
        if not text or text[0] in '{["-+.0123456789':
            raise click.BadParameter(f"{text!r} is not a JSON value: {error}") from None
        return path, text


_OPTIONS = (
    click.option(
        "--data",
        type=click.Path(path_type=Path),
        metavar="FOLDER",
        help="Where data sets are: their files are in FOLDER or in a folder of their name in it (cs224n, sick, snli).",
    ),
    click.option(
        "--weights", metavar="NAME_OR_FOLDER", help="Other weights for the encoder, such as minilm or a folder."
    ),
    click.option("--epochs", type=click.IntRange(min=0), metavar="N", help="At most N epochs in every stage."),
    click.option(
        "--set",
        "settings",
        callback=lambda context, option, given: dict(map(_read_setting, given)),
        multiple=True,
        metavar="PATH=JSON",
        help="Set a value in every cell that has the place, such as stages.*.optimizer.lr=3e-5; may be repeated.",
    ),
    click.option(
        "--only",
        multiple=True,
        metavar="LABEL",
        help="Only rows with this label; * matches anything; may be repeated.",
    ),
    click.option("--smoke", is_flag=True, help="Every cell for a few steps on generated text with a tiny encoder."),
)
