"""The live display of ``taskloom run`` on a terminal: a line per worker, and the whole run below."""

from contextlib import suppress
from types import TracebackType
from typing import Self, TextIO

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live as Display
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from taskloom.core.events import ENDS, Event
from taskloom.core.units import figures, memory
from taskloom.core.visible import visible
from taskloom.runs.show.board import Board
from taskloom.runs.show.running import Running

#: Columns between two parts of a line.
GAP = 2
#: How wide the bar of a cell is, half of it where there is little room, and that of the run.
BAR, LONG_BAR = 10, 40
#: What a cell's title gets before anything is left out, and in how many steps that is done.
TITLE, LEVELS = 20, 7
_STYLES = {"failed": "red", "oom": "red", "lost": "yellow", "interrupted": "yellow"}


class Live:
    """Cells done, running and failed; per worker its cell, how far it is and how well; rate, time left, memory."""

    def __init__(self, board: Board, stream: TextIO) -> None:
        self.board = board
        self.console = Console(file=stream)
        self._display = Display(
            console=self.console,
            get_renderable=self.render,
            refresh_per_second=4,
            redirect_stdout=False,  # stdout is the table's
            transient=True,
        )

    def __enter__(self) -> Self:
        self._display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # the terminal may be gone
            self._display.stop()
            self.say(self.board.line())

    def __call__(self, event: Event) -> None:
        text = self.board.tell(event) if event.what in ENDS or event.what == "log" else None
        self.board.hear(event)
        if text:
            again = event.facts.get("again")
            self.say(text, style="yellow" if again else _STYLES.get(event.what, ""))

    def say(self, text: str, style: str = "") -> None:
        """A line that stays above the display. Labels are no markup, whatever brackets they hold."""
        self.console.print(Text(visible(text), style=style))

    def render(self) -> RenderableType:
        width, height = self.console.size
        return display(self.board, width, height)


def display(board: Board, width: int, height: int) -> RenderableType:
    """The whole display for a terminal of this size: no line is longer, and the totals are always seen."""
    cells = sorted(board.running.values(), key=lambda cell: (len(cell.worker), cell.worker))
    shown = cells if len(cells) <= height - 6 else cells[: max(1, height - 7)]
    parts: list[RenderableType] = [_workers(shown, width)] if shown else []
    if len(shown) < len(cells):
        parts.append(Text(f"… and {len(cells) - len(shown)} more"))
    bar = Table.grid()  # a bar alone does not end its line
    bar.add_row(ProgressBar(total=max(board.work, 1), completed=board.done, width=min(LONG_BAR, width - 1)))
    return Group(*parts, bar, Text(f"{board.name}: {board.totals()}"), Text(board.pace()))


def _workers(cells: list[Running], width: int) -> Table:
    """A line per worker: where, which cell, how far, how fast, how much memory, how well."""
    columns = next((fit for level in range(LEVELS) if (fit := _columns(cells, level, width - 1))), None)
    columns = columns or _columns(cells, LEVELS, width - 1)
    table = Table(box=None, show_header=False, show_edge=False, pad_edge=False, padding=(0, GAP, 0, 0))
    for size, _ in columns:
        table.add_column(width=size, no_wrap=True, overflow="ellipsis")
    for row in zip(*(parts for _, parts in columns), strict=True):
        table.add_row(*row)
    return table


_Column = tuple[int, list[RenderableType]]  # its width, and what stands in its rows


def _columns(cells: list[Running], level: int, width: int) -> list[_Column]:
    """The columns, the more left out the higher the level; none if the titles do not get enough room."""
    bar = BAR if level < 2 else BAR // 2 if level < 5 else 0
    texts = [
        [cell.position for cell in cells],
        [f"{cell.rate:.1f}/s" if cell.rate and level < 4 else "" for cell in cells],
        [memory(cell.memory) if cell.memory and level < 6 else "" for cell in cells],
        [_figures(cell, level) for cell in cells],
    ]
    workers, titles = [cell.worker for cell in cells], [cell.title for cell in cells]
    after: list[_Column] = [(bar, [ProgressBar(total=1.0, completed=cell.share, width=bar) for cell in cells])]
    after += [(_widest(column), list(map(Text, column))) for column in texts]
    first: _Column = (_widest(workers), [Text(text, style="cyan") for text in workers])
    room = width - sum(size + GAP for size, _ in (first, *after) if size)
    title = min(_widest(titles), room)
    if title < min(_widest(titles), TITLE) and level < LEVELS:
        return []
    title = max(1, title)
    columns: list[_Column] = [first, (title, [_cut(text, title) for text in titles]), *after]
    return [column for column in columns if column[0]]


def _figures(cell: Running, level: int) -> str:
    """Dev scores and losses: all, the losses as their mean, the overall score alone, without any loss."""
    scores, losses = cell.scores, cell.losses
    parts = []
    if scores:
        parts.append(
            f"dev {figures(scores)}" if level < 2 or "overall" not in scores else f"dev {scores['overall']:.3f}"
        )
    if losses and (level < 3 or not scores):
        mean = sum(losses.values()) / len(losses)
        parts.append(f"loss {figures(losses)}" if level < 1 else f"loss {mean:.3f}")
    return "  ".join(parts)


def _cut(title: str, width: int) -> Text:
    """A title of at most that many columns: ``…`` stands for the end of its label; wide characters count twice."""
    label, comma, seed = title.rpartition(",")
    end = comma + seed
    if cell_len(title) <= width or cell_len(end) >= width - 1:
        end, label = "", title
    cut = Text(label, style="bold")
    cut.truncate(max(1, width - cell_len(end)), overflow="ellipsis")
    return cut.append(end)


def _widest(texts: list[str]) -> int:
    return max(map(cell_len, texts), default=0)
