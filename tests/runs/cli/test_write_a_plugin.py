"""The page "Write a plugin" does what it says: every block in it is executed or compared, in a new environment.

| block | what is done with it |
|---|---|
| `sh` | each line is run; `# exits with 2` says how it ends, otherwise it ends with 0 |
| no language | is what the lines above printed: … stands for anything, and figures may differ |
| `diff` | is applied to the file that its first line names |
| `python`, `json`, `toml` | "Write `file`:" before it writes the file; "`file` holds:" says that this stands in it |
"""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[3] / "runs" / "docs" / "pages" / "how-to" / "plugin.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCK = re.compile(r"(?P<before>[^\n]*)\n+^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


class Reader:
    """Somebody who does all that the page says, from top to bottom, in an empty folder."""

    def __init__(self, environment: Any, folder: Path) -> None:
        self.environment, self.folder = environment, folder
        self.printed: str | None = None

    def read(self, page: str) -> None:
        for found in BLOCK.finditer(page):
            self._follow(**found.groupdict())

    def _follow(self, language: str, text: str, before: str) -> None:
        """Do what one block says; ``before`` is the line of text above it."""
        if language == "sh":  # a line that ends in a backslash goes on
            lines = re.sub(r"\\\n\s*", "", text).splitlines()
            self.printed = "".join(self._run(line) for line in lines if line and not line.startswith("#"))
        elif language == "":
            assert self.printed is not None, f"nothing was run before this output:\n{text}"
            pattern = ".*?".join(map(re.escape, plain(text).split("…")))
            assert re.fullmatch(pattern, plain(self.printed), re.DOTALL), (
                f"{text}\nis not what was printed:\n{self.printed}"
            )
            self.printed = None
        elif language == "diff":
            self._patch(text)
        elif language in ("python", "json", "toml"):
            self._file(text, before)
        else:
            pytest.fail(f"nothing is known of a block of {language!r}:\n{text}")

    def _run(self, line: str) -> str:
        expected = re.search(r"# exits with (\d+)$", line)
        # Worker processes would import torch again for every grid.
        done = self.environment.run(line, cwd=self.folder, TASKLOOM_ENGINE="inline")
        assert done.returncode == int(expected[1] if expected else 0), f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout + (done.stderr if expected else "")

    def _patch(self, block: str) -> None:
        """Lines with a minus give way to those with a plus; an … stands between two places of the file."""
        head, _, rest = block.partition("\n")
        path = self.folder / head.removeprefix("--- ")
        text = path.read_text(encoding="utf-8")
        for part in re.split(r"^…\n", rest, flags=re.MULTILINE):
            lines = part.splitlines()
            old = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
            new = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
            assert text.count(old) == 1, f"this should stand once in {path.name}:\n{old}"
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")

    def _file(self, text: str, before: str) -> None:
        named = re.search(r"(Write )?`([^`]+)`( holds)?:$", before)
        assert named, f'before this block a line should end in "Write `file`:" or "`file` holds:"\n{text}'
        path = self.folder / named[2]
        if named[1]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        else:
            assert text in path.read_text(encoding="utf-8"), f"{path.name} does not hold:\n{text}"


def plain(output: str) -> str:
    """Output without what differs from machine to machine: figures with a point, verdicts, widths."""
    output = re.sub(r" \(\d:\d\d:\d\d\)", "", output)  # which pytest adds after a minute
    output = re.sub(r"[*+-]?\d+\.\d+(?!\.?\d)", "0.0", output)
    output = re.sub(r"\b(better|worse|equal|open) +(?=0\.0)", "open ", output)
    return re.sub(r"[ ─-]{2,}|\s+", " ", output).strip()


def test_every_block_of_the_page_does_what_it_says(new_environment: Any, tmp_path: Path) -> None:
    assert 2 * len(BLOCK.findall(TEXT)) == TEXT.count("\n```"), "a block that is not found is not run"
    Reader(new_environment, tmp_path).read(TEXT)


def test_every_link_of_the_page_leads_somewhere() -> None:
    for path in re.findall(r"\]\(([^)#]+)[^)]*\)", TEXT):
        assert path.startswith("https://") or (PAGE.parent / path).exists(), path


@pytest.mark.parametrize(
    "text",
    [
        "```python\nx = 1\n```\n",
        "```sh\nfalse\n```\n",
        "```sh\necho a\n```\n\n```\nb\n```\n",
        "Write `a.txt`:\n\n```json\n1\n```\n\n`a.txt` holds:\n\n```json\n2\n```\n",
        "Write `a.txt`:\n\n```json\n1\n```\n\n```diff\n--- a.txt\n-2\n+3\n```\n",
    ],
)
def test_a_page_that_is_wrong_is_found_out(new_environment: Any, tmp_path: Path, text: str) -> None:
    with pytest.raises(AssertionError):
        Reader(new_environment, tmp_path).read(f"\n{text}")
