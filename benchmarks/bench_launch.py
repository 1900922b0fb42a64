"""What solorun costs before torchrun begins, beside torchrun's own start.

``--dry_run`` does every local check of a start and then prints instead of executing.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.report import Report, Row, median, parser

ROOT = pathlib.Path(__file__).parent.parent
SOLORUN = ROOT / "build" / "release" / "solorun"


def time_ms(command: Sequence[str | os.PathLike[str]], repetitions: int) -> float:
    env = {**os.environ, "VIRTUAL_ENV": sys.prefix}
    times = []
    for _ in range(repetitions):
        begun = time.perf_counter()
        subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True)
        times.append((time.perf_counter() - begun) * 1e3)
    return median(times)


def main() -> None:
    options = parser(__doc__).parse_args()
    report = Report("launch", as_json=options.json)
    count = 10 if options.quick else 50
    spawn = time_ms(["true"], count)
    torchrun = time_ms([sys.executable, "-m", "torch.distributed.run", "--help"], 3)
    report.add(Row("spawn of `true`", spawn, "ms"))
    report.add(Row("torchrun --help", torchrun, "ms", torchrun / spawn, "spawn of `true`"))
    checks = [SOLORUN, "--solo", "--dry_run", __file__]
    for name, command in (("solorun --help", [SOLORUN, "--help"]), ("all local checks", checks)):
        value = time_ms(command, count)
        note = f"{value - spawn:.1f} ms of its own; wanted under 10"
        report.add(Row(name, value, "ms", value / torchrun, "torchrun --help", "<= 0.05", note))


if __name__ == "__main__":
    main()
