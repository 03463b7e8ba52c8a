"""Write the study's data sets: ``python runs/study/split.py DIR OUT``, where DIR holds ``cs224n``.

``OUT/study/cs224n`` has dev sets enlarged by rows of the training files (1,000 of SST, 1,500 of Quora, 800 of STS),
which leave training, and the files of CFIMDB as they are. ``OUT/pilot/cs224n`` has the study's training rows only, as
many again of them held out as its dev set: what the pilot chooses is never chosen on a row that the study is scored on.

Rows are drawn by a hash of their texts, so that everybody gets the same ones, and rows with equal texts stay together.
"""

import csv
import hashlib
import shutil
import sys
from pathlib import Path

HELD_OUT = {"ids-sst": 1000, "quora": 1500, "sts": 800}
UNCHANGED = ("ids-cfimdb-train.csv", "ids-cfimdb-dev.csv")

Row = list[str]


def read(path: Path) -> tuple[Row, list[Row]]:
    """The header and the rows of a tab-separated file."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file, delimiter="\t")
    return header, rows


def write(path: Path, header: Row, rows: list[Row]) -> None:
    """Write a tab-separated file with quotes where they are needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows([header, *rows])


def draw(rows: list[Row], count: int) -> tuple[list[Row], list[Row]]:
    """Split off about ``count`` rows (all rows with one text at once); both parts keep the order of the file."""

    def lot(row: Row) -> str:
        return hashlib.sha256("\x1f".join(text.strip() for text in row[2:-1]).encode()).hexdigest()

    last = sorted(map(lot, rows))[count - 1]
    return [row for row in rows if lot(row) <= last], [row for row in rows if lot(row) > last]


def main(source: Path, target: Path) -> None:
    for stem, count in HELD_OUT.items():
        header, train = read(source / "cs224n" / f"{stem}-train.csv")
        dev_header, dev = read(source / "cs224n" / f"{stem}-dev.csv")
        if dev_header[1:] != header[1:]:
            raise SystemExit(f"{stem}: the dev file has other columns than the training file")
        held_out, train = draw(train, count)
        write(target / "study/cs224n" / f"{stem}-train.csv", header, train)
        write(target / "study/cs224n" / f"{stem}-dev.csv", header, dev + held_out)
        pilot_dev, pilot_train = draw(train, count)
        write(target / "pilot/cs224n" / f"{stem}-train.csv", header, pilot_train)
        write(target / "pilot/cs224n" / f"{stem}-dev.csv", header, pilot_dev)
        print(f"{stem}: {len(train)} train, {len(dev) + len(held_out)} dev; pilot {len(pilot_train)}, {len(pilot_dev)}")
    for name in UNCHANGED:
        shutil.copy(source / "cs224n" / name, target / "study/cs224n" / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
