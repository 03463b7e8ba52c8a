"""What a question to a grid comes to: numbers, and the same as text, as HTML, as JSON and as a data frame."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from taskloom.core.errors import TaskloomError
from taskloom.runs.show.parts import Part, as_html, as_text
from taskloom.runs.show.render import FORMATS, as_json, flat_rows, render
from taskloom.runs.show.visible import visible

if TYPE_CHECKING:  # both import much
    import pandas as pd

    from taskloom.runs.analysis.tables import Table

Found = TypeVar("Found")


@dataclass(frozen=True, repr=False, eq=False)
class Answer(Generic[Found]):
    """What a question came to.

    ``found`` holds the numbers as objects, ``str()`` is what the command of the same name prints, ``as_json()`` what it
    prints with ``--json``, and ``to_pandas()`` is a data frame of it. A notebook shows it as HTML. ``checks`` are what
    was found by computing and stands below the numbers: in the text, in the JSON and in ``to_pandas().attrs``.
    ``notes`` are what a reader should know beside it; the command line prints them to stderr.
    """

    found: Found
    parts: Callable[[], Iterable[Part]]
    json: Callable[[], Any]
    records: Callable[[], Sequence[dict[str, Any]]]
    notes: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()

    def noting(self, notes: Iterable[str]) -> Self:
        """The same answer with notes before its own."""
        return replace(self, notes=(*notes, *self.notes))

    def as_json(self) -> Any:
        """For programs: JSON values, those of the command's ``--json``."""
        return self.json()

    def to_pandas(self) -> "pd.DataFrame":
        """A data frame, one row per row, claim, effect, cell, epoch or example; needs pandas."""
        try:
            import pandas as pd
        except ImportError:
            raise TaskloomError("a data frame needs pandas: pip install 'taskloom[pandas]'") from None
        frame = pd.DataFrame.from_records(list(self.records()))
        frame.attrs["checks"] = list(self.checks)
        return frame

    def __str__(self) -> str:
        return as_text([*self.parts(), "\n".join(self.checks)])

    def __repr__(self) -> str:
        return visible("\n".join([*self.notes, str(self)]))

    def _repr_html_(self) -> str:
        return as_html([*self.notes, *self.parts(), "\n".join(self.checks)])


@dataclass(frozen=True, repr=False, eq=False)
class TableAnswer(Answer["Table"]):
    """A comparison table. ``found.rows`` are its rows, each with a mean and its noise per column.

    ``reads`` are the grid's own files, which the table is never written over.
    """

    reported: bool = False
    reads: tuple[str, ...] = ()

    def format(self, form: str) -> str:
        """The table as ``plain``, ``github``, ``latex``, ``html``, ``csv`` or ``json`` text."""
        if form not in FORMATS:
            raise TaskloomError(f"the format should be one of {', '.join(FORMATS)}. Found {form!r}.")
        return render(self.found, form, reported=self.reported)

    def __str__(self) -> str:
        return self.format("plain")

    def _repr_html_(self) -> str:
        return f"{as_html(self.notes)}\n{self.format('html')}"


def table_answer(table: "Table", notes: Iterable[str] = (), *, reported: bool = False) -> TableAnswer:
    """A table as an answer."""
    return TableAnswer(
        table,
        lambda: [],
        lambda: as_json(table),
        lambda: flat_rows(table, reported),
        tuple(notes),
        table.checks,
        reported,
    )
