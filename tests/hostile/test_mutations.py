"""Archives and ledgers that are changed at random: one sentence and an unchanged registry, or figures that follow."""

import json
import os
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from hostile_law import check_table, contents, is_one_sentence, rewritten, taskloom
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

#: What a value may become; numbers near others' are more cunning than strings.
VALUES: list[Any] = [
    *(None, True, 0, 1, -1, 2, 3.5, 1e308, float("nan"), 2**63, 2**70, -(2**63) - 1),
    *("", "x", "é\u0000", [], {}, [1], {"a": 1}, [[]], {"name": "sum"}),
    *("sum", "pcgrad", "sst", "sts", "accuracy", "pearson", "finished", "failed", "test"),
]
TABLES = ("cells", "grid_cells", "scores", "grids", "cells", "history", "epochs", "attempts", "stages", "claims")
#: How many of each; CI tries more.
NUMBER = int(os.environ.get("TASKLOOM_MUTATIONS", "50"))
MANY = settings(max_examples=NUMBER, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
SEEDS = st.integers(0, 2**32)


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(deeper for key, part in inner for deeper in paths_in(part, (*path, key)))]


def change_json(value: Any, draw: random.Random) -> Any:
    """A JSON value in which one part is replaced, removed, copied over or exchanged with another."""
    paths = [path for path in paths_in(value) if path]
    if not paths:
        return draw.choice(VALUES)
    *steps, last = draw.choice(paths)
    home = value
    for key in steps:
        home = home[key]
    match draw.randrange(4):
        case 0:
            del home[last]
        case 1 if isinstance(home, list):
            home.append(json.loads(json.dumps(home[last])))
        case 2 if isinstance(home[last], int | float) and not isinstance(home[last], bool):
            home[last] = home[last] * draw.choice([-1, 2, 1.0000001, 10**6]) + draw.choice([0, 1, 0.5])
        case _:
            other: Any = value
            for key in draw.choice(paths) if draw.random() < 0.5 else ():
                other = other[key]
            home[last] = draw.choice(VALUES) if other is value else json.loads(json.dumps(other))
    return value


def change_arrays(content: bytes, draw: random.Random) -> bytes:
    """A safetensors file in which one array, or its metadata, is another."""
    size = int.from_bytes(content[:8], "little")
    arrays, metadata = load(content), json.loads(content[8 : 8 + size]).get("__metadata__")
    if metadata and draw.random() < 0.4:
        metadata = {"tasks": json.dumps(change_json(json.loads(metadata["tasks"]), draw))}
    else:
        name = draw.choice(sorted(arrays))
        array = arrays[name].copy()
        match draw.randrange(7):
            case 0:
                array = array[:-1]
            case 1:
                array = array[None]
            case 2:
                array.ravel()[draw.randrange(array.size)] = draw.choice([0, 1, 2, 3, 100])
            case 3:
                array = array.astype(draw.choice([np.float32, np.int64, np.uint8, np.float16, bool]))
            case 4:
                array = np.roll(array, 1)
            case 5 if array.dtype.kind == "f":
                array.ravel()[draw.randrange(array.size)] = draw.choice([np.nan, np.inf, -1.0, 1e300])
            case _:
                array = arrays[draw.choice(sorted(arrays))]
        arrays[name] = np.ascontiguousarray(array)
    return save(arrays, metadata)


def change_archive(source: Path, target: Path, draw: random.Random) -> None:
    if draw.random() < 0.15:
        content = bytearray(source.read_bytes())
        for _ in range(draw.randrange(1, 4)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        target.write_bytes(content)
        return

    def change(stated: dict[str, Any], files: dict[str, bytes]) -> None:
        for _ in range(draw.choice([1, 1, 1, 2, 3])):
            names = sorted(files)
            match draw.randrange(8):
                case 0 | 1 | 2:
                    change_json(stated, draw)
                case 3 | 4 | 5:
                    name = draw.choice(names)
                    try:
                        with np.errstate(all="ignore"):
                            files[name] = change_arrays(files[name], draw)
                    except (OverflowError, ValueError, TypeError, KeyError, AttributeError):
                        files[name] = files[name][:-1]  # what no array can hold
                case 6:
                    name, other = draw.sample(names, 2)
                    files[name], files[other] = files[other], files[name]
                case _:
                    name, other = draw.sample(names, 2)
                    if draw.random() < 0.5:
                        del files[name]
                    else:
                        files[name] = files[other]

    rewritten(source, target, change)


def change_ledger(registry: Path, draw: random.Random) -> None:
    with closing(sqlite3.connect(registry / "ledger.sqlite")) as database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        for _ in range(draw.choice([1, 1, 2])):
            table = draw.choice(TABLES)
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            column, key = draw.choice(columns), ", ".join(columns[:4])
            rows = database.execute(f"SELECT {key}, {column} FROM {table}").fetchall()
            if not rows:
                continue
            *keys, value = draw.choice(rows)
            try:
                new = json.dumps(change_json(json.loads(value), draw))
            except (ValueError, TypeError):
                new = draw.choice([*VALUES, *(row[-1] for row in rows)])
            new = json.dumps(new) if isinstance(new, list | dict) else new
            where = " AND ".join(f"{name} IS ?" for name in columns[:4])
            try:
                database.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", [new, *keys])
            except (sqlite3.IntegrityError, OverflowError):
                continue
        database.commit()


@MANY
@given(seed=SEEDS)
def test_an_archive_changed_at_random_is_refused_or_its_figures_follow(
    theirs: Path, tmp_path_factory: Any, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("mutated")
    change_archive(theirs / "results.zip", folder / "mutated.zip", random.Random(seed))
    done = taskloom("import", folder / "mutated.zip", "--registry", folder / "ours")
    if is_one_sentence(done):
        assert not (folder / "ours").exists(), done.stderr
    else:
        check_table(folder / "ours", json_grid(folder / "ours"))
    shutil.rmtree(folder)


def json_grid(registry: Path) -> str:
    """The name of the first grid."""
    with closing(sqlite3.connect(registry / "ledger.sqlite")) as database:
        names = [name for (name,) in database.execute("SELECT name FROM grids")]
    return str(names[0]) if names else "mine"


@MANY
@given(seed=SEEDS)
def test_a_ledger_changed_at_random_is_refused_or_its_figures_follow(
    theirs: Path, tmp_path_factory: Any, seed: int
) -> None:
    registry = Path(shutil.copytree(theirs / "registry", tmp_path_factory.mktemp("mutated") / "r"))
    change_ledger(registry, random.Random(seed))
    before = contents(registry)
    check_table(registry)
    for command in (["cells", "--json"], ["effects", "mine", "--json"]):
        done = taskloom(*command, "--registry", registry)
        assert is_one_sentence(done) or json.loads(done.stdout)
    after = contents(registry)
    looks = [line for line in after["ledger"] if 'INTO "looks"' in line]
    assert [line for line in after["ledger"] if line not in looks] == before["ledger"]
    shutil.rmtree(registry.parent)
