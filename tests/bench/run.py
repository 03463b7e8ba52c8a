"""All figures of "fast on a CPU", one line each: name, ratio, bar, ok or MISSED, and the machine's load before.

    python tests/bench/run.py --data DIR [--quick]

Each program runs in a process of its own, one after another: about ten minutes on two quiet cores. Exits with 1 where a
program fails or, unless the run is a quick one, where a bar is missed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: The programs, and whether they read the course's data.
PROGRAMS = {
    "training_step.py": True,
    "combiner_step.py": True,
    "sentences.py": True,
    "surgery.py": True,
    "scaling.py": False,
}


def lines_of(command: list[str]) -> tuple[list[str], str]:
    """What a program prints, shown as it comes, and what went wrong ("" if nothing did)."""
    lines = []
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
        code = process.wait()
        errors.seek(0)
        last = errors.read().strip().rpartition("\n")[2]
    return lines, f"failed with exit code {code}: {last}" if code else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds cs224n/")
    parser.add_argument("--threads", type=int, help="threads of every program; by default what torch takes")
    parser.add_argument("--quick", action="store_true", help="a few turns each: shows that it works, not how fast")
    given = parser.parse_args()
    if not (given.data / "cs224n").is_dir():
        parser.error(f"--data should be a folder that holds cs224n/. Found {given.data}.")
    rest = ["--quick"] * given.quick + (["--threads", str(given.threads)] if given.threads else [])
    began, missed, failed = time.monotonic(), 0, []
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before; later loads are of the program before, too")
    for program, reads in PROGRAMS.items():
        data = ["--data", str(given.data)] * reads
        lines, wrong = lines_of([sys.executable, str(Path(__file__).with_name(program)), *data, *rest])
        missed += sum(" MISSED " in line for line in lines)
        if wrong:
            failed.append(program)
            print(f"{program}: {wrong}", flush=True)
    print(f"{missed} missed, {len(failed)} failed, {(time.monotonic() - began) / 60:.1f} minutes")
    sys.exit(int(bool(failed) or (missed > 0 and not given.quick)))


if __name__ == "__main__":
    main()
