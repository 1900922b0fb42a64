"""Loading checkpoints: solo.load beside torch, safetensors and the streamers, in the same run.

Every run is a process of its own, runs of different loaders take turns, and the best of each
is compared. "touched" means that every byte of every tensor was summed after the load; the
cost of the sum itself is taken off, and the sums must agree. fastsafetensors and the runai
streamer are installed in a virtual environment of their own; without them their rows are left out.

A private copy is mostly the price of fresh memory, and that depends on the machine: a virtual
one that gives its free memory back to the host pays milliseconds for each huge page. So copies
are measured twice, "as found" and "pages at hand" (a moment after the parent has taken and
freed as many huge pages), each beside the filling of fresh memory with nothing to read.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes
import dataclasses
import json
import mmap
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.checkpoints import MIB, make_files, set_cache
from benchmarks.peers import streamers_python
from benchmarks.report import Report, Row, parser

TIMEOUT_S = 300
PR_SET_THP_DISABLE = 41


# ---- the loaders; each runs in a child ----


def torch_load(path: str, **options: Any) -> Any:
    import torch

    return torch.load(path, weights_only=True, **options)


def solo_load(path: str, **options: Any) -> Any:
    import solo

    return solo.load(path, **options)


def safetensors_load(path: str, **options: Any) -> Any:
    from safetensors.torch import load_file

    return load_file(path, **options)


def fast_load(path: str) -> Any:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), device="cpu", nogds=True, max_threads=16)
    loader.add_filenames({0: [path]})
    files = loader.copy_files_to_device()
    kept.extend([loader, files])
    return {name: files.get_tensor(name) for name in loader.get_keys()}


def runai_load(path: str) -> Any:
    from runai_model_streamer import SafetensorsStreamer

    streamer = SafetensorsStreamer()
    streamer.__enter__()
    kept.append(streamer)
    streamer.stream_file(path)
    return dict(streamer.get_tensors())


def dcp_load(path: str) -> Any:
    import pickle
    import warnings

    import torch
    import torch.distributed.checkpoint as dcp

    warnings.simplefilter("ignore")
    with open(path + "/.metadata", "rb") as stream:
        metadata = pickle.load(stream)
    tensors = {
        name: torch.empty(item.size, dtype=item.properties.dtype)
        for name, item in metadata.state_dict_metadata.items()
    }
    dcp.load(tensors, checkpoint_id=path, no_dist=True)
    return tensors


def fill(path: str, threads: int) -> Any:
    """Fresh memory of the file's size, written once in small pages: what no copy can do without."""
    size = pathlib.Path(path).stat().st_size
    room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    kept.append(room)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    starts = range(0, size, 8 * MIB)

    def work(number: int) -> None:
        for at in starts[number::threads]:
            ctypes.memset(address + at, 1, min(8 * MIB, size - at))

    crew = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    return {}


def make_model(path: str) -> Any:
    """A module with the checkpoint's tensors, allocated and not yet touched."""
    import torch

    model = torch.nn.Module()
    for name, tensor in torch.load(path, map_location="meta", weights_only=True).items():
        model.register_buffer(name.replace(".", "_"), torch.empty(tensor.shape, dtype=tensor.dtype))
    return model


def idiom(path: str, model: Any) -> Any:
    state = {name.replace(".", "_"): t for name, t in torch_load(path).items()}
    model.load_state_dict(state)
    return dict(model.state_dict())


def solo_into(path: str, model: Any) -> Any:
    import solo

    target = {name: model.get_buffer(name.replace(".", "_")) for name in solo.inspect(path).names}
    solo.load_into(target, path)
    return target


kept: list[Any] = []


@dataclasses.dataclass(frozen=True)
class Case:
    load: Callable[..., Any]
    file: str = "x.pt"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    prepare: Callable[[str], Any] | None = None
    package: str = "torch"
    reads: bool = True
    streamer: bool = False  # runs in the environment of the streamers
    environ: dict[str, str] = dataclasses.field(default_factory=dict)


ST = "x.safetensors"
CASES = {
    "torch": Case(torch_load),
    "torch mmap": Case(torch_load, options={"mmap": True}),
    "solo 1 thread": Case(solo_load, options={"threads": 1}),
    "solo 2 threads": Case(solo_load, options={"threads": 2}),
    "solo 1 thread, no checksum": Case(solo_load, options={"threads": 1, "verify": False}),
    "solo": Case(solo_load),
    "solo mmap": Case(solo_load, options={"mode": "mmap"}),
    "solo safetensors": Case(solo_load, ST),
    "solo safetensors mmap": Case(solo_load, ST, {"mode": "mmap"}),
    "safetensors": Case(safetensors_load, ST),
    "safetensors pread": Case(safetensors_load, ST, {"backend": "pread"}),
    "fastsafetensors": Case(fast_load, ST, package="fastsafetensors", streamer=True),
    "runai streamer": Case(runai_load, ST, package="runai_model_streamer", streamer=True),
    "runai streamer, small pages": Case(  # numpy asks for huge pages, which may be dear here
        runai_load,
        ST,
        package="runai_model_streamer",
        streamer=True,
        environ={"NUMPY_MADVISE_HUGEPAGE": "0"},
    ),
    "DCP": Case(dcp_load, "dcp"),
    "solo DCP": Case(solo_load, "dcp"),
    "fill 1 thread": Case(fill, options={"threads": 1}, reads=False),
    "fill 2 threads": Case(fill, options={"threads": 2}, reads=False),
    "load_state_dict": Case(idiom, prepare=make_model),
    "solo load_into": Case(solo_into, prepare=make_model),
}


def checksum(tensors: dict[str, Any]) -> int:
    import torch

    total = 0
    for tensor in tensors.values():
        raw = tensor.detach().reshape(-1).view(torch.uint8)
        whole = raw.numel() // 8 * 8
        if raw.data_ptr() % 8:
            raw = raw.clone()
        total += int(torch.sum(raw[:whole].view(torch.int64))) + int(torch.sum(raw[whole:]))
    return total & (1 << 64) - 1


def child(name: str, folder: str) -> None:
    """Load once, when told to; print seconds and the sum."""
    import gc

    import torch

    case = CASES[name]
    path = f"{folder}/{case.file}"
    torch.set_num_threads(1)
    for module in (case.package, "solo.load", "safetensors.torch", "torch.distributed.checkpoint"):
        __import__(module)
    torch.sum(torch.ones(1 << 16, dtype=torch.int64))
    torch._weights_only_unpickler._get_allowed_globals()  # type: ignore[attr-defined]
    prepared = [case.prepare(path)] if case.prepare else []
    gc.collect()
    print("ready", flush=True)
    sys.stdin.readline()
    begun = time.perf_counter()
    tensors = case.load(path, *prepared, **case.options)
    loaded = time.perf_counter() - begun
    first = checksum(tensors)
    summed = time.perf_counter() - begun - loaded
    begun = time.perf_counter()
    checksum(tensors)
    again = time.perf_counter() - begun
    print(
        json.dumps({"load": loaded, "touched": loaded + max(summed - again, 0.0), "sum": first}),
        flush=True,
    )
    os._exit(0)  # half-open streamers are not torn down


# ---- the parent ----


def rss_anonymous(process: int) -> int:
    try:
        for line in pathlib.Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def start(name: str, folder: pathlib.Path, *, huge: bool = True) -> subprocess.Popen[str]:
    python = streamers_python() if CASES[name].streamer else sys.executable
    command = [str(python), "-m", "benchmarks.bench_load", "--child", name, str(folder)]
    command += [] if huge else ["--small-pages"]
    environ = {**os.environ, **CASES[name].environ}
    process = subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ
    )
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        process.kill()
        process.wait()
        raise RuntimeError(f"{name} did not start")
    return process


def go(process: subprocess.Popen[str]) -> dict[str, float]:
    out, _ = process.communicate("go\n", timeout=TIMEOUT_S)
    return json.loads(out)  # type: ignore[no-any-return]


def take_and_free(size: int) -> None:
    """Leave the kernel this many bytes of huge pages that the host has not taken back yet."""
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as room:
        room.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, size, mmap.PAGESIZE):
            room[at] = 1


def run(
    name: str, folder: pathlib.Path, *, warm: bool = True, at_hand: int = 0
) -> dict[str, float]:
    path = folder / CASES[name].file
    process = start(name, folder)
    set_cache(path, warm=warm)
    if at_hand:
        take_and_free(at_hand)
    return go(process)


def peak(name: str, folder: pathlib.Path) -> int:
    """Growth of anonymous memory at its highest, watched every millisecond."""
    process = start(name, folder)
    before = highest = rss_anonymous(process.pid)
    over = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not over.is_set():
            highest = max(highest, rss_anonymous(process.pid))
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    go(process)
    over.set()
    watcher.join()
    return highest - before


def best(
    names: list[str], folder: pathlib.Path, count: int, *, warm: bool = True, at_hand: int = 0
) -> dict[str, float]:
    """Seconds of the best touched run of each; the loaders take turns."""
    times: dict[str, list[float]] = {name: [] for name in names}
    sums = set()
    for _ in range(count):
        for name in names:
            result = run(name, folder, warm=warm, at_hand=at_hand)
            times[name].append(result["touched"])
            if CASES[name].reads:
                sums.add(result["sum"])
    if len(sums) != 1:
        raise RuntimeError(f"the loaders gave different bytes: {sums}")
    return {name: min(values) for name, values in times.items()}


class Bench:
    def __init__(self, report: Report, folder: pathlib.Path, count: int, states: list[str]) -> None:
        made = json.loads((folder / "made.json").read_text())
        self.report, self.folder, self.count = report, folder, count
        self.size: int = made["bytes"]
        self.wanted_states = states
        self.label = f"{self.size / MIB:.0f} MiB, {made['tensors']} tensors"
        report.say(f"{self.label}:")

    def row(self, name: str, seconds: float, other: float, against: str, wanted: str) -> None:
        rate = self.size / 1e9 / seconds
        self.report.add(
            Row(f"{name}, {self.label}", rate, "GB/s", other / seconds, against, wanted)
        )

    def copies(self) -> None:
        rivals = ["safetensors pread"]
        if streamers_python():
            rivals += ["fastsafetensors", "runai streamer", "runai streamer, small pages"]
        for state, at_hand in self.states():
            names = ["torch", "solo 1 thread", "solo 2 threads", "fill 1 thread", "fill 2 threads",
                     "solo 1 thread, no checksum", "solo safetensors", *rivals]  # fmt: skip
            times = best(names, self.folder, self.count, at_hand=at_hand)
            for threads, wanted in (("1 thread", ">= 2.4"), ("2 threads", ">= 4")):
                own, name = times[f"solo {threads}"], f"solo, {threads}, {state}"
                self.row(name, own, times["torch"], "torch.load", wanted)
                limit = times[f"fill {threads}"]
                self.row(name, own, limit, "filling fresh small pages", ">= 0.91")
            bare = times["solo 1 thread, no checksum"]
            self.row(f"solo, 1 thread, no checksum, {state}", bare, times["solo 1 thread"],
                     "with checksum", "")  # fmt: skip
            for name in rivals:
                own = times["solo safetensors"]
                self.row(f"solo, safetensors file, {state}", own, times[name], name, ">= 2")

    def states(self) -> list[tuple[str, int]]:
        """How memory is when the loader starts: words, and bytes to take and free before."""
        known = [("as found", 0), ("pages at hand", 2 * self.size)]
        return [state for state in known if state[0] in self.wanted_states]

    def mapped(self) -> None:
        names = ["torch mmap", "safetensors", "solo mmap", "solo safetensors mmap"]
        times = best(names, self.folder, self.count)
        self.row("solo mmap", times[names[2]], times[names[0]], "torch.load(mmap=True)", ">= 2")
        self.row(
            "solo mmap, safetensors file", times[names[3]], times[names[1]], "load_file", ">= 0.9"
        )

    def small(self) -> None:
        names = ["torch", "safetensors", "solo", "solo safetensors"]
        times = best(names, self.folder, self.count)
        self.row("solo", times["solo"], times["torch"], "torch.load", ">= 6")
        self.row("solo, safetensors file", times[names[3]], times[names[1]], "load_file", ">= 1")

    def dcp(self) -> None:
        times = best(["DCP", "solo DCP"], self.folder, self.count)
        self.row("solo, DCP directory", times["solo DCP"], times["DCP"], "DCP's own reader", ">= 5")

    def into(self) -> None:
        names = ["load_state_dict", "solo load_into"]
        against = "torch.load + load_state_dict"
        for state, at_hand in self.states():
            times = best(names, self.folder, self.count, at_hand=at_hand)
            self.row(f"load_into, {state}", times[names[1]], times[names[0]], against, ">= 3")
        for name in names:
            grown = peak(name, self.folder)
            wanted = "<= 1.02" if name.startswith("solo") else ""
            self.report.add(Row(f"{name}: peak anonymous memory, {self.label}", grown / MIB, "MiB",
                                grown / self.size, "the checkpoint", wanted))  # fmt: skip

    def cold(self) -> None:
        path = self.folder / "x.pt"
        disk = []
        for _ in range(self.count):
            begun = time.perf_counter()
            subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=4M", "iflag=direct"],
                           check=True, stderr=subprocess.DEVNULL)  # fmt: skip
            disk.append(time.perf_counter() - begun)
        times = best(["torch", "solo"], self.folder, self.count, warm=False)
        self.row("solo, cold cache", times["solo"], min(disk), "dd iflag=direct", ">= 0.9")
        self.row("solo, cold cache", times["solo"], times["torch"], "torch.load", "")

    def ranks(self) -> None:
        """Two processes load at once; the later one counts. Whether one of them finds huge pages
        that two do not is luck, so it is measured in small pages too."""
        name = "solo 1 thread"
        set_cache(self.folder / CASES[name].file, warm=True)
        for state, huge in (("as found", True), ("small pages", False)):
            single, both = [], []
            for _ in range(self.count):  # in turns: what memory costs changes in between
                single.append(go(start(name, self.folder, huge=huge))["touched"])
                pair = [start(name, self.folder, huge=huge) for _ in range(2)]
                with concurrent.futures.ThreadPoolExecutor(2) as pool:
                    both.append(max(result["touched"] for result in pool.map(go, pair)))
            ratio = min(both) / min(single)
            self.report.add(Row(f"2 ranks, one file, {state}, {self.label}", min(both), "s", ratio,
                                "1 rank", "<= 1.2"))  # fmt: skip


STATES = ("as found", "pages at hand")
PARTS = ("small", "dcp", "copies", "mapped", "into", "cold", "ranks")


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--dir", help="where the files are made (default: a temporary directory)")
    made.add_argument("--files", help="a directory in which they are kept for the next run")
    made.add_argument("--state", action="append", choices=STATES, help="of fresh memory")
    made.add_argument("--large-mib", type=int, default=1024)
    made.add_argument("--part", action="append", choices=PARTS, help="may be repeated")
    made.add_argument("--size", action="append", choices=("small", "middle", "large"))
    made.add_argument("--small-pages", action="store_true", help=argparse.SUPPRESS)
    made.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.child:
        if options.small_pages:
            ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
        child(*options.child)
        return
    report = Report("load", as_json=options.json)
    count = 3 if options.quick else 7
    with tempfile.TemporaryDirectory(dir=options.dir) as temporary:
        home = options.files or temporary
        for name, size, dim in (
            ("small", 64, 64),
            ("middle", 64, 768),
            ("large", options.large_mib, 2048),
        ):
            if name not in (options.size or ("small", "middle", "large")[: 3 - options.quick]):
                continue
            folder = pathlib.Path(home) / name
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "made.json").exists():
                make_files(folder, size * MIB, dim)
            tries = count if name != "large" else 3
            bench = Bench(report, folder, tries, options.state or list(STATES))
            for part in PARTS:
                of_small = part in ("small", "dcp")
                if of_small == (name == "small") and part in (options.part or PARTS):
                    getattr(bench, part)()


if __name__ == "__main__":
    main()
