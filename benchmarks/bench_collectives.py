"""Collectives of "solo" beside gloo and Open MPI on one host, in interleaved rounds of one run.

Every library has its ranks waiting; for each call and size they take turns, several rounds, and
the median of a rank's time counts (the slowest rank's). Open MPI is used through mpi4py when
both are installed. The memory rows say how long the traffic alone takes that an all_reduce
cannot avoid, done by as many processes at once: they meet before and after, for otherwise of four
on two cores each has a core to itself while it is looked at.
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
FLIGHT = 8  # as in the script


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
            if library == "sockets":
                nodes = [lab.address(i // ranks_per_node) if lab else "127.0.0.1"
                         for i in range(world)]  # fmt: skip
                store = ",".join(nodes)
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


def run(report: Report, world: int, quick: bool, only: Sequence[int]) -> None:
    """All calls and sizes; ``only``: all_reduces of so many KiB, and nothing else."""
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
        for size in only:
            bench.row("all_reduce", size * KIB, large)
        if only:
            for team in teams:
                team.close()
            return
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


def medians(
    teams: Sequence[Team], op: str, size: int, times: int, rounds: int, dtype: str = "fp32"
) -> dict[str, float]:
    """Seconds of one call, by library: medians of interleaved rounds."""
    seen: dict[str, list[float]] = {team.library: [] for team in teams}
    for _ in range(rounds):
        for team in teams:
            seen[team.library].append(team.time(op, size, dtype, times))
    return {library: median(values) for library, values in seen.items()}


LINES = ((2, 0.5, 0.95), (2, 25, 0.95), (2, 50, 0.95), (4, 0, 0.90))


def run_links(report: Report, quick: bool, only: Sequence[int], alone: bool) -> None:
    """Large ones between nodes in network namespaces, beside the line's rate and bare sockets.

    A call cannot end before its last byte has travelled, so a line's time is the bytes at its rate
    and one way of the delay.
    """
    size = 16 * MIB if quick else 64 * MIB
    for world, delay_ms, least in [LINES[i] for i in only or range(len(LINES))]:
        with (
            tempfile.TemporaryDirectory() as folder,
            netlab.Lab(world, rate_mbit=1000, delay_ms=delay_ms) as lab,
        ):
            names = ("solo",) if alone else ("solo", "gloo", "sockets")
            teams = [Team(name, world, pathlib.Path(folder), lab) for name in names]
            times = medians(teams, "all_reduce", size, 1, 3 if quick else 5)
            line_s = 2 * (world - 1) / world * size * 8 / 1e9 + delay_ms / 1e3
            name = f"all_reduce {text(size)}, {world} nodes, 1 Gbit, {2 * delay_ms} ms round trip"
            note = "" if alone else f"gloo: {times['gloo'] * 1e3:.4g} ms"
            solo = times["solo"]
            report.add(Row(name, solo * 1e3, "ms", line_s / solo, "of the line's rate",
                           f">= {least}", note))  # fmt: skip
            if not alone:
                bare = times["sockets"]
                report.add(Row(name, solo * 1e3, "ms", bare / solo, "of bare sockets' rate", "",
                               f"sockets: {bare * 1e3:.4g} ms"))  # fmt: skip
            several = medians(teams[:1], "all_reduces", size // 4, 1, 3)["solo"]
            bytes_s = FLIGHT * 2 * (world - 1) / world * size / 4 * 8 / 1e9
            name = f"{FLIGHT} at once, {text(size // 4)} each, {2 * delay_ms} ms round trip"
            report.add(Row(name, several * 1e3, "ms", bytes_s / several, "of bytes / rate",
                           f">= {least}"))  # fmt: skip
            for team in teams:
                team.close()


# Of one connection of the path: Mbit/s (0: as the others), and its packets lost of 100.
BAD = {"one at 5 Mbit/s": (5, 0), "one that loses 5 %": (0, 5)}


def run_lossy(report: Report, quick: bool, rate_mbit: int) -> None:
    """A long path of several streams, one of which is slow or lossy, beside the sound path.

    Two streams that are fed alike would take as long as the bad one takes for half of the bytes;
    one that is fed as it takes costs its share only.
    """
    size, delay_ms, rounds = 64 * MIB, 25, 1 if quick else 3
    line_s = size * 8 / rate_mbit / 1e6 + delay_ms / 1e3
    sound = 0.0
    for what, (mbit, loss) in {"all sound": (0, 0), **BAD}.items():
        with (
            tempfile.TemporaryDirectory() as folder,
            netlab.Lab(2, rate_mbit=rate_mbit, delay_ms=delay_ms, bad_mbit=mbit,
                       bad_loss_percent=loss) as lab,
        ):  # fmt: skip
            team = Team("solo", 2, pathlib.Path(folder), lab)
            seconds = medians([team], "all_reduce", size, 1, rounds)["solo"]
            team.close()
        sound = sound or seconds
        name = f"all_reduce {text(size)}, {rate_mbit} Mbit, {2 * delay_ms} ms, streams: {what}"
        report.add(Row(name, seconds * 1e3, "ms", line_s / seconds, "of the line's rate"))
        if mbit or loss:
            report.add(Row(name, seconds * 1e3, "ms", sound / seconds, "of the sound path's rate",
                           ">= 0.5", "half: one of two streams alone"))  # fmt: skip


def run_latency(report: Report) -> None:
    """Small ones between two nodes whose links are as fast as the kernel."""
    with tempfile.TemporaryDirectory() as folder, netlab.Lab(2) as lab:
        names = ("solo", "gloo", "sockets")
        teams = [Team(name, 2, pathlib.Path(folder), lab) for name in names]
        back = medians(teams, "send_recv", 4, 1000, 5)
        bare = back["sockets"]
        report.add(Row("message of 4 B there and back, 2 nodes", back["solo"] * 1e6, "us",
                       back["solo"] / bare, "the time of bare sockets", "<= 1.3",
                       f"bare: {bare * 1e6:.4g}, gloo: {back['gloo'] * 1e6:.4g} us"))  # fmt: skip
        once = medians(teams[:2], "all_reduce", 4, 1000, 5)
        report.add(Row("all_reduce 4 B, 2 nodes", once["solo"] * 1e6, "us",
                       once["solo"] / (bare / 2), "the time of one way of bare sockets", "<= 1.3",
                       f"gloo: {once['gloo'] * 1e6:.4g} us"))  # fmt: skip
        for team in teams:
            team.close()


def run_mixed(report: Report, quick: bool, rate_mbit: int) -> None:
    """Two nodes of two ranks each: shared memory inside, counterparts across."""
    size = 16 * MIB if quick else 64 * MIB
    with tempfile.TemporaryDirectory() as folder, netlab.Lab(2, rate_mbit=rate_mbit) as lab:
        names = ("solo", "flat", "gloo")
        teams = [Team(name, 4, pathlib.Path(folder), lab, 2) for name in names]
        for dtype, bytes_ in (("fp32", size), ("bf16", size // 2)):
            times = medians(teams, "all_reduce", bytes_, 1, 3, dtype)
            solo = times["solo"]
            name = f"all_reduce {text(bytes_)} {dtype}, 2 nodes of 2 ranks, {rate_mbit} Mbit"
            for other, wanted in (("flat", ">= 1.8" if dtype == "fp32" else ""), ("gloo", "")):
                report.add(Row(name, solo * 1e3, "ms", times[other] / solo, f"faster than {other}",
                               wanted, f"{other}: {times[other] * 1e3:.4g} ms"))  # fmt: skip
        for team in teams:
            team.close()


def run_across(report: Report, quick: bool, rate_mbit: int) -> None:
    """All to all and from one to all between four nodes, beside the line's rate."""
    size, world = 16 * MIB if quick else 64 * MIB, 4
    # What the busiest rank sends at least, of the tensor; TCP takes 4.4 % of a packet of 1500.
    shares = {"all_reduce": 2 * (world - 1) / world, "all_to_all": (world - 1) / world,
              "broadcast": 1.0}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, netlab.Lab(world, rate_mbit=rate_mbit) as lab:
        teams = [Team(name, world, pathlib.Path(folder), lab) for name in ("solo", "gloo")]
        for op, share in shares.items():
            times = medians(teams, op, size, 1, 3)
            line_s = share * size * 8 / rate_mbit / 1e6
            solo, note = times["solo"], f"gloo: {times['gloo'] * 1e3:.4g} ms"
            report.add(Row(f"{op} {text(size)}, {world} nodes, {rate_mbit} Mbit", solo * 1e3, "ms",
                           line_s / solo, "of the line's rate", ">= 0.9", note))  # fmt: skip
        for team in teams:
            team.close()


DDP_OPS = ("ddp_alone", "ddp_lone", "ddp_step")


def longer_ms(rounds: Sequence[Sequence[float]], op: int, than: int) -> float:
    return median([seconds[op] - seconds[than] for seconds in rounds]) * 1e3


def run_ddp(report: Report) -> None:
    """What a step takes longer for its all_reduce: the median of differences of neighbours in time.

    A step with the all_reduce and one in groups of one rank follow each other, and the libraries
    take turns, so that what the machine does to one of a pair it mostly does to the other. Beside
    it what DDP takes in all, which holds what no library can shorten: it divides every gradient.
    """
    with tempfile.TemporaryDirectory() as folder:
        teams = [Team(name, 2, pathlib.Path(folder)) for name in ("solo", "gloo")]
        for size, times, rounds in ((MIB, 50, 9), (100 * MIB, 2, 9)):
            seen: dict[str, list[list[float]]] = {team.library: [] for team in teams}
            for _ in range(rounds):
                for team in teams:
                    seconds = [team.time(op, size, "fp32", times) for op in DDP_OPS]
                    seen[team.library].append(seconds)
            parts = [steps[2] - steps[1] for steps in seen["solo"]]
            solo, gloo = (longer_ms(seen[team.library], 2, 1) for team in teams)
            name = f"DDP step, {text(size)} of parameters, 2 ranks"
            report.add(Row(f"{name}: all_reduce", solo, "ms", gloo / solo, "shorter than gloo",
                           ">= 4", f"gloo: {gloo:.4g} ms; solo's differences spread over "
                           f"{(max(parts) - min(parts)) * 1e3:.3g} ms"))  # fmt: skip
            solo, gloo = (longer_ms(seen[team.library], 2, 0) for team in teams)
            own = longer_ms(seen["solo"], 1, 0)
            note = f"gloo: {gloo:.4g} ms; without all_reduce: {own:.4g} ms"
            report.add(Row(f"{name}: all of DDP", solo, "ms", gloo / solo, "shorter than gloo",
                           ">= 4", note))  # fmt: skip
        for team in teams:
            team.close()


def run_start(report: Report) -> None:
    """How long 32 ranks of this host take to become a group."""
    seen: dict[str, list[float]] = {"solo": [], "gloo": []}
    for i in range(3):
        for j, backend in enumerate(seen):
            port = 29650 + 2 * i + j
            command = [sys.executable, str(SCRIPT.parent / "start_ranks.py"), backend, "32"]
            done = subprocess.run([*command, str(port)], capture_output=True, text=True, check=True)
            seen[backend].append(float(done.stdout))
    solo, gloo = median(seen["solo"]), median(seen["gloo"])
    report.add(Row("start of 32 ranks", solo * 1e3, "ms", solo / gloo, "the time of gloo", "<= 2",
                   f"gloo: {gloo * 1e3:.4g} ms"))  # fmt: skip


PARTS = ("host", "ddp", "start", "links", "latency", "mixed", "across", "lossy")


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--worlds", type=int, nargs="*", default=[2, 4])
    arguments.add_argument("--size", type=int, nargs="*", default=[], metavar="KIB",
                           help="these all_reduces alone")  # fmt: skip
    arguments.add_argument("--part", nargs="*", choices=PARTS, default=PARTS)
    arguments.add_argument("--line", type=int, nargs="*", default=[], choices=range(len(LINES)))
    arguments.add_argument("--alone", action="store_true", help="links: solo without the others")
    arguments.add_argument("--rate", type=int, default=1000, help="Mbit/s of mixed and across")
    options = arguments.parse_args()
    report = Report("collectives", as_json=options.json)
    if "host" in options.part:
        for world in options.worlds:
            run(report, world, options.quick, options.size)
    if "ddp" in options.part:
        run_ddp(report)
    if "start" in options.part:
        run_start(report)
    why = netlab.why_not()
    if why and set(options.part) & {"links", "latency", "mixed", "across", "lossy"}:
        report.say(f"no links are measured: {why}")
        return 0
    if "latency" in options.part:
        run_latency(report)
    if "mixed" in options.part:
        run_mixed(report, options.quick, options.rate)
    if "across" in options.part:
        run_across(report, options.quick, options.rate)
    if "lossy" in options.part:
        run_lossy(report, options.quick, min(options.rate, 200))
    if "links" in options.part:
        run_links(report, options.quick, options.line, options.alone)
    return 0


if __name__ == "__main__":
    sys.exit(main())
