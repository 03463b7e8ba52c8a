"""New texts from a stream of rows: choose the columns that hold them, and skip rows that cannot be read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from taskloom.core import DataError, unknown
from taskloom.core.errors import count
from taskloom.core.rows import Rows, UnreadableError, text_in, utf8, written_in

#: Number of texts per row → the usual names of their columns, for data sets that name none.
USUAL: dict[int, list[tuple[str, ...]]] = {
    1: [("text",), ("sentence",)],
    2: [("text_1", "text_2"), ("sentence1", "sentence2")],
    3: [("text_1", "text_2", "text_3"), ("sentence1", "sentence2", "sentence3")],
}


@dataclass(frozen=True)
class TextRow:
    """An example to predict: its line, its id if it has one, and its texts, stripped."""

    line: int
    id: str
    texts: tuple[str, ...]


@dataclass
class NewTexts:
    """The texts of a stream of rows. Iterating reads it; ``skip`` is called with the reason for each unreadable row.

    Each row has ``needed`` texts: in the columns ``texts`` if any are named, in those of the data set (``own``) if the
    stream has them all, or in columns with the usual names. After the first row ``texts`` are the columns that were
    chosen, and ``id`` is the column of ids, or "" if there is none.
    """

    rows: Rows
    needed: int
    texts: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    id: str = "id"
    skip: Callable[[str], None] = field(default=lambda why: None)
    skipped: int = 0

    @property
    def name(self) -> str:
        """The name of the stream in messages."""
        return self.rows.name

    def __iter__(self) -> Iterator[TextRow]:
        chosen, read = False, 0
        for line, values in self.rows:
            try:
                if isinstance(values, str):
                    raise UnreadableError(values)
                if not chosen:
                    self._choose_columns([*values])
                    chosen = True
                texts = tuple(text_in(values, column) for column in self.texts)
                row = TextRow(line, utf8(written_in(values, self.id), self.id), texts)
            except UnreadableError as problem:
                self.skipped += 1
                self.skip(f"{self.name}, line {line}: {problem}")
            else:
                read += 1
                yield row
        if not read:
            none = "there are no rows below the first line, which names the columns"
            why = f"none of its {count(self.skipped, 'row')} can be read" if self.skipped else none
            raise DataError(f"{self.name}: {why}; nothing was predicted")

    def _choose_columns(self, there: Sequence[str]) -> None:
        reads = f"{count(self.needed, 'text')} per row"
        listed = ", ".join(repr(name) for name in there)
        if self.texts and len(self.texts) != self.needed:
            raise DataError(f"--text should name {count(self.needed, 'column')}: the task reads {reads}")
        if wrong := [name for name in self.texts if name not in there]:
            raise DataError(f"{self.name}: {unknown('column', wrong[0], there, where='in the file')}")
        usual = [self.texts] if self.texts else [self.own[: self.needed], *USUAL[self.needed]]
        fitting = [names for names in usual if names and set(names) <= {*there}]
        if not fitting:
            columns = " ".join(["--text COLUMN"] * self.needed)
            raise DataError(
                f"{self.name}: the task reads {reads}, and no columns are called "
                f"{' or '.join(' and '.join(map(repr, names)) for names in usual if names)}; name them with {columns} "
                f"(columns in the file: {listed})"
            )
        self.texts = fitting[0]
        if self.id not in there or self.id in self.texts:
            self.id = ""
        for name in filter(None, (self.id, *self.texts)):
            if (times := self.rows.columns.count(name)) > 1:
                raise DataError(f"{self.name}: column {name!r} appears {times} times; rename all but one")
