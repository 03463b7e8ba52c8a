"""What it costs to say what a table shows: 20 rows × 5 seeds, 20,000 dev examples in all of three tasks.

    python tests/bench/tables.py [--rows 20] [--seeds 5] [--examples 20000]

Each command is run as a user runs it, in a process of its own; the seconds are those of the whole command. The size is
that of the stored scores of all cells.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from recorded import METRICS, Row, record

COMMANDS = (
    ["table", "made"],
    ["table", "made", "--metric", "macro_f1"],
    ["claims", "made"],
    ["effects", "made"],
    ["seeds", "made"],
    ["report", "made", "-o", os.devnull],
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--examples", type=int, default=20_000, help="in all tasks together")
    given = parser.parse_args()
    rows = [
        Row(f"row {number}", 1 + number / 50, set={"stages.0.optimizer.lr": 0.001 * (1 + number)})
        for number in range(given.rows)
    ]
    with tempfile.TemporaryDirectory() as folder:
        registry = Path(folder)
        record(
            registry,
            rows,
            seeds=range(given.seeds),
            examples=given.examples // len(METRICS),
            baseline="row 0",
            claims=[{"better": "row 1", "than": "row 0"}],
        )
        size = sum(path.stat().st_size for path in registry.rglob("*.safetensors"))
        print(f"stored scores of {given.rows * given.seeds} cells: {size / 2**20:.1f} MiB")
        for arguments in COMMANDS:
            began = time.perf_counter()
            command = [sys.executable, "-c", "from taskloom.runs.cli import main; main()"]
            subprocess.run([*command, *arguments, "--registry", folder], check=True, stdout=subprocess.DEVNULL)
            print(f"taskloom {' '.join(arguments)}: {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
