"""The page "Write a plugin" does what it says: every block in it is executed or compared, in a new environment.

| block | what is done with it |
|---|---|
| `sh` | each line is run; `# exits with 2` says how it ends, otherwise it ends with 0 |
| no language | is what the lines above printed: … stands for anything, and figures may differ |
| `diff` | is applied to the file that its first line names |
| `python`, `json`, `toml` | "Write `file`:" before it writes the file; "`file` holds:" says that this stands in it |
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "plugins" / "README.md"
_BLOCK = re.compile(r"(?P<before>[^\n]*)\n+^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block, the line of text before it, and where it stands."""

    language: str
    text: str
    before: str
    line: int

    def __str__(self) -> str:
        return f"the block in line {self.line} of {PAGE.name}"


def blocks(page: str) -> list[Block]:
    return [
        Block(found["language"], found["text"], found["before"], page.count("\n", 0, found.start("language")) + 1)
        for found in _BLOCK.finditer(page)
    ]


class Reader:
    """Somebody who does all that the page says, from top to bottom, in an empty folder."""

    def __init__(self, environment: Any, folder: Path) -> None:
        self.environment, self.folder = environment, folder
        self.printed: str | None = None

    def read(self, page: str) -> None:
        """Follow every block."""
        for block in blocks(page):
            self.follow(block)

    def follow(self, block: Block) -> None:
        if block.language == "sh":
            self.printed = "".join(self._run(line, block) for line in commands(block.text))
        elif block.language == "":
            assert self.printed is not None, f"{block} shows output, but nothing was run before it"
            self._compare(block, self.printed)
            self.printed = None
        elif block.language == "diff":
            self._patch(block)
        elif block.language in ("python", "json", "toml"):
            self._file(block)
        else:
            pytest.fail(f"{block} is {block.language!r}: nothing is known of such a block")

    def _run(self, line: str, block: Block) -> str:
        expected = re.search(r"# exits with (\d+)$", line)
        done = self.environment.run(line, cwd=self.folder)
        assert done.returncode == int(expected[1] if expected else 0), f"{block}: {line}\n{done.stdout}{done.stderr}"
        return done.stdout + (done.stderr if expected else "")

    def _compare(self, block: Block, printed: str) -> None:
        pattern = ".*?".join(map(re.escape, plain(block.text).split("…")))
        assert re.fullmatch(pattern, plain(printed), re.DOTALL), f"{block} shows other output than\n{printed}"

    def _patch(self, block: Block) -> None:
        """Lines with a minus give way to those with a plus; an … stands between two places of the file."""
        head, _, rest = block.text.partition("\n")
        path = self.folder / head.removeprefix("--- ")
        text = path.read_text(encoding="utf-8")
        for part in re.split(r"^…\n", rest, flags=re.MULTILINE):
            lines = part.splitlines()
            old = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
            new = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
            assert text.count(old) == 1, f"{block}: this should stand once in {path.name}:\n{old}"
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")

    def _file(self, block: Block) -> None:
        named = re.search(r"(Write )?`([^`]+)`( holds)?:$", block.before)
        assert named, f'{block} should follow a line that ends in "Write `file`:" or "`file` holds:"'
        path = self.folder / named[2]
        if named[1]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        else:
            assert block.text in path.read_text(encoding="utf-8"), f"{block} is not in {path.name}"


def commands(text: str) -> list[str]:
    """The lines of a block; one that ends in a backslash goes on."""
    return [line for line in re.sub(r"\\\n\s*", "", text).splitlines() if line and not line.startswith("#")]


def plain(output: str) -> str:
    """Output without what differs from machine to machine: figures with a point, the best of a column, widths."""
    output = re.sub(r"[*+-]?\d+\.\d+(?!\.?\d)", "0.0", output)
    return re.sub(r"[ ─-]{2,}|\s+", " ", output).strip()


def test_every_block_of_the_page_does_what_it_says(new_environment: Any, tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert 2 * len(blocks(page)) == page.count("\n```"), "a block that is not found is not run"
    Reader(new_environment, tmp_path).read(page)


def test_every_link_of_the_page_leads_somewhere() -> None:
    for path in re.findall(r"\]\(([^)#]+)[^)]*\)", PAGE.read_text(encoding="utf-8")):
        assert path.startswith("https://") or (PAGE.parent / path).exists(), path


@pytest.mark.parametrize(
    "text",
    [
        "```yaml\na: 1\n```\n",
        "```python\nx = 1\n```\n",
        "```sh\nfalse\n```\n",
        "```sh\necho a\n```\n\n```\nb\n```\n",
        "Write `a.txt`:\n\n```json\n1\n```\n\n`a.txt` holds:\n\n```json\n2\n```\n",
        "Write `a.txt`:\n\n```json\n1\n```\n\n```diff\n--- a.txt\n-2\n+3\n```\n",
    ],
)
def test_a_page_that_is_wrong_is_found_out(new_environment: Any, tmp_path: Path, text: str) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        Reader(new_environment, tmp_path).read(f"\n{text}")


def test_output_is_compared_with_room_for_figures(new_environment: Any, tmp_path: Path) -> None:
    command = "```sh\necho 'sum   0.512  in 3.2 s'; exit 2  # exits with 2\n```"
    Reader(new_environment, tmp_path).read(f"\n{command}\n\n```\nsum 0.498 in … s\n```\n")
