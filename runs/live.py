"""The live display of ``taskloom run`` on a terminal."""

from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live as Display
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from taskloom.core.events import Event
from taskloom.runs.progress import Board


class Live:
    """Cells done, running and failed, each running cell's step and figures, the rate and the time left."""

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
        self._display.stop()
        self.say(self.board.line())

    def __call__(self, event: Event) -> None:
        self.board.hear(event)
        if event.what in ("log", "finished", "failed"):
            self.say(self.board.tell(event) or "", style="red" if event.what == "failed" else "")

    def say(self, text: str, style: str = "") -> None:
        """A line that stays above the display. Labels are no markup, whatever brackets they hold."""
        self.console.print(Text(text, style=style))

    def render(self) -> RenderableType:
        board = self.board
        cells = Table.grid(padding=(0, 2))
        for cell in board.running.values():
            cells.add_row(Text(cell.title, style="bold"), Text(cell.line()))
        bar = Table.grid()  # a bar alone does not end its line
        bar.add_row(ProgressBar(total=max(board.work, 1), completed=board.done, width=40))
        return Group(cells, bar, Text(board.line()))
