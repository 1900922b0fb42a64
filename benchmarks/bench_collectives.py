"""Collectives of "solo" beside gloo and Open MPI on one host, in interleaved rounds of one run.

Every library has its ranks waiting; for each call and size they take turns, several rounds, and
the median of a rank's time counts (the slowest rank's). Open MPI is used through mpi4py when
both are installed. The memory rows say how long the traffic alone takes that an all_reduce
cannot avoid, done by as many processes at once.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import TextIO

from benchmarks import netlab
from benchmarks.report import Report, Row, median, parser

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "collectives_rank.py"
KIB, MIB = 1 << 10, 1 << 20


class Team:
    """The ranks of one library, waiting for tasks."""

    def __init__(
        self,
        library: str,
        world: int,
        folder: pathlib.Path,
        lab: netlab.Lab | None = None,
        ranks_per_node: int = 1,
    ) -> None:
        self.library = library
        path = folder / f"{library}.socket"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(world)
        listener.settimeout(60)
        command = [sys.executable, str(SCRIPT), str(path), library]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        if library == "mpi":
            mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(world)]
            words = [[*mpirun, *command, "0", "0", "-"]]
        else:
            port = {"solo": 29600, "gloo": 29601}.get(library, 29602)
            store = f"tcp://{lab.address(0)}:{port}" if lab else str(folder / f"{library}.store")
            words = [[*command, str(rank), str(world), store] for rank in range(world)]
        if lab:
            environment["GLOO_SOCKET_IFNAME"] = "solo0"
            words = [lab.command(i // ranks_per_node, line) for i, line in enumerate(words)]
        self.processes = [subprocess.Popen(line, env=environment) for line in words]
        self.lines: dict[int, TextIO] = {}
        for _ in range(world):
            connection, _ = listener.accept()
            lines = connection.makefile("rw")
            self.lines[int(lines.readline().split()[1])] = lines

    def time(self, op: str, size: int, dtype: str, times: int) -> float:
        """Seconds of one call, of the slowest rank."""
        task = json.dumps({"op": op, "bytes": size, "dtype": dtype, "times": times})
        for lines in self.lines.values():
            lines.write(task + "\n")
            lines.flush()
        return max(float(lines.readline()) for lines in self.lines.values())

    def close(self) -> None:
        for lines in self.lines.values():
            lines.close()
        for process in self.processes:
            process.terminate()
            process.wait()


def repetitions(size: int) -> int:
    return max(1, min(300, (16 * MIB) // max(size, 1)))


class Bench:
    def __init__(self, report: Report, teams: Sequence[Team], world: int, rounds: int) -> None:
        self.report, self.teams, self.world, self.rounds = report, teams, world, rounds

    def measure(self, op: str, size: int, dtype: str = "fp32") -> dict[str, float]:
        """Microseconds of one call, by library: medians of interleaved rounds."""
        seen: dict[str, list[float]] = {}
        for _ in range(self.rounds):
            for team in self.teams:
                if team.library == "memory" and op != "all_reduce":
                    continue
                if dtype != "fp32" and team.library in ("mpi", "memory"):
                    continue
                seconds = team.time(op, size, dtype, repetitions(size))
                seen.setdefault(team.library, []).append(seconds * 1e6)
        return {library: median(values) for library, values in seen.items()}

    def row(self, op: str, size: int, wanted: dict[str, str], dtype: str = "fp32") -> float:
        times = self.measure(op, size, dtype)
        name = f"{op} {text(size)} {dtype}, {self.world} ranks"
        for library, bound in times.items():
            if library != "solo":
                ratio = times["solo"] / bound if library == "memory" else bound / times["solo"]
                words = (
                    "the memory traffic alone" if library == "memory" else f"faster than {library}"
                )
                self.report.add(
                    Row(name, times["solo"], "us", ratio, words, wanted.get(library, ""),
                        f"{library}: {bound:.4g} us")
                )  # fmt: skip
        return times["solo"]


def text(size: int) -> str:
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def run(report: Report, world: int, quick: bool) -> None:
    libraries = ["solo", "gloo", "memory"]
    if shutil.which("mpirun") and importlib.util.find_spec("mpi4py"):
        libraries.append("mpi")
    else:
        report.say("Open MPI or mpi4py is not installed: compared with gloo alone")
    with tempfile.TemporaryDirectory() as folder:
        teams = [Team(library, world, pathlib.Path(folder)) for library in libraries]
        bench = Bench(report, teams, world, 3 if quick else 5)
        small = {"gloo": ">= 20"}
        middle = {"gloo": ">= 5", "mpi": ">= 1"}
        large = {"gloo": ">= 4", "mpi": ">= 1", "memory": "<= 1.5"}
        for size in (4, 256, 4 * KIB):
            bench.row("all_reduce", size, small)
        for size in (64 * KIB, 256 * KIB, MIB):
            bench.row("all_reduce", size, middle)
        last = 16 * MIB if quick else 256 * MIB
        for size in sorted({16 * MIB, last}):
            bench.row("all_reduce", size, large)
        for op in ("reduce_scatter", "all_gather", "broadcast", "all_to_all"):
            for size in sorted({MIB, 16 * MIB, last}):
                bench.row(op, size, {"gloo": ">= 3"})
        full = bench.measure("all_reduce", 16 * MIB)["solo"]
        for dtype in ("bf16", "fp16"):
            half = bench.measure("all_reduce", 8 * MIB, dtype)["solo"]
            report.add(Row(f"all_reduce of 4 Mi {dtype}, {world} ranks", half, "us", half / full,
                           "the time of fp32", "<= 0.6"))  # fmt: skip
        bench.row("barrier", 4, {})
        if world == 2:
            for size in (4, 64 * KIB, 16 * MIB):
                bench.row("send_recv", size, {})
        for team in teams:
            team.close()


def run_links(report: Report, quick: bool) -> None:
    """Collectives between nodes in network namespaces, beside the line's own rate."""
    why = netlab.why_not()
    if why:
        report.say(f"no links are measured: {why}")
        return
    size = 16 * MIB if quick else 64 * MIB
    for world, delay_ms, least in ((2, 0.5, 0.95), (2, 25, 0.95), (2, 50, 0.95), (4, 0, 0.90)):
        with (
            tempfile.TemporaryDirectory() as folder,
            netlab.Lab(world, rate_mbit=1000, delay_ms=delay_ms) as lab,
        ):
            teams = [Team(name, world, pathlib.Path(folder), lab) for name in ("solo", "gloo")]
            line_s = 2 * (world - 1) / world * size * 8 / 1e9
            times = {team.library: [] for team in teams}  # type: dict[str, list[float]]
            for _ in range(2 if quick else 3):
                for team in teams:
                    times[team.library].append(team.time("all_reduce", size, "fp32", 2))
            solo, gloo = median(times["solo"]), median(times["gloo"])
            name = f"all_reduce {text(size)}, {world} nodes, 1 Gbit, {2 * delay_ms} ms round trip"
            report.add(Row(name, solo * 1e3, "ms", line_s / solo, "of the line's rate",
                           f">= {least}", f"gloo: {gloo * 1e3:.4g} ms"))  # fmt: skip
            for team in teams:
                team.close()


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--worlds", type=int, nargs="*", default=[2, 4])
    arguments.add_argument("--no-links", action="store_true", help="this host alone")
    options = arguments.parse_args()
    report = Report("collectives on one host", as_json=options.json)
    for world in options.worlds:
        run(report, world, options.quick)
    if not options.no_links:
        run_links(report, options.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
