"""``python -m solo.load inspect|verify|plan|convert PATH``."""

from __future__ import annotations

import argparse
import difflib
import io
import json
import os
import sys
from typing import Any

import torch

from solo._load import collection, diagnose, ledger, memory, objects, paths, read
from solo._load.errors import CheckpointError, Problem
from solo._load.inspection import REFUSED, inspect
from solo._load.place import CPU, Placement
from solo._load.ranks import fingerprint
from solo._load.save import NOT_FLAT, save
from solo._load.single import Request, prepare, storages_to_read
from solo._load.table import Options, Table, refused_names

VERIFY_BYTES = 64 << 20  # of the buffer that verify reads through


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 all well, 1 the checkpoint has faults, 2 wrong usage."""
    args = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):  # names may hold what a locale has no letters for
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        args.run(args)
        sys.stdout.flush()
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return 2 if error.reason == "argument" else 1
    except BrokenPipeError:  # of "| head"; Python would complain once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m solo.load",
        description="Looks into checkpoints of any format that solo.load reads, and converts them.",
        epilog="COMMAND --help shows its options.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    one = commands.add_parser("inspect", help="what is in it, without reading its data")
    one.add_argument("path")
    one.add_argument("--limit", type=int, default=50, help="tensors to list, 0: all (default 50)")
    one.add_argument("--json", action="store_true", help="for programs")
    one.set_defaults(run=_inspect)

    one = commands.add_parser("verify", help="read all of it and compare its checksums")
    one.add_argument("path")
    one.add_argument("--threads", type=int, default=0, help="0: those of the machine, at most 8")
    one.set_defaults(run=_verify)

    one = commands.add_parser("plan", help="bytes by device and whether they fit; loads nothing")
    one.add_argument("path")
    one.add_argument(
        "--device-map", help='"auto", a device, or JSON: {"layers.0": "cuda:0", "": "cpu"}'
    )
    one.add_argument("--map-location")
    one.add_argument("--max-memory", help='for "auto", JSON: {"cuda:0": "20GiB", "cpu": "60GiB"}')
    one.add_argument("--no-split", action="append", help='for "auto": a prefix kept on one device')
    one.add_argument("--only", action="append", help="a module prefix or pattern; may be repeated")
    one.add_argument("--dtype", help="of floating tensors, such as bfloat16")
    one.add_argument("--mmap", action="store_true", help="what is for the CPU stays in the file")
    one.add_argument("--memory", help="bytes of the host that may be taken (default SOLO_MEMORY)")
    one.add_argument("--gpu-memory", help="the same for each GPU")
    one.set_defaults(run=_plan)

    one = commands.add_parser("convert", help="to another format, dtype or number of files")
    one.add_argument("path")
    one.add_argument("target", help="a file, or a directory with --shard-size")
    one.add_argument("--format", choices=("pt", "safetensors"))
    one.add_argument("--shard-size", help="of one file at most, such as 5GiB")
    one.add_argument("--dtype", help="of floating tensors, such as bfloat16")
    one.add_argument("--only", action="append", help="a module prefix or pattern; may be repeated")
    one.add_argument("--flat", action="store_true", help="the tensors by name, without the object")
    one.set_defaults(run=_convert)
    return parser


def _inspect(args: Any) -> None:
    found = inspect(args.path)
    if not args.json:
        print(found.text(limit=args.limit))
        return
    rows = [t.__dict__ for t in found.tensors]
    print(
        json.dumps(
            {
                "path": found.path,
                "kind": found.kind,
                "files": found.files,
                "stored_bytes": found.stored_bytes,
                "metadata": found.metadata,
                "tied": found.tied,
                "refused": found.refused,
                "tensors": rows,
            },
            default=str,
            indent=1,
        )
    )


def _request(**options: Any) -> Request:
    extra = objects.allowed_names(())
    return Request(Options(tuple(extra), True), read.How(), extra, **options)


def _tables(path: str, request: Request) -> list[Table]:
    found = paths.locate(path, storage_options=None, threads=request.how.threads)
    opened = collection.open_found(found, request)
    return opened.tables if isinstance(opened, collection.Shards) else [opened]


def _verify(args: Any) -> None:
    if not 0 <= args.threads <= read.THREADS_MAX:
        text = f"--threads is {args.threads}, not 0 to {read.THREADS_MAX}"
        raise CheckpointError(Problem("argument", text))
    request = _request()
    request.how.threads = args.threads
    for table in _tables(args.path, request):
        _read_all(table, request)
        count = memory.count_of(len(table.storages), "storage")
        kinds = "checksums agree" if table.info["crc_known"] else "whole; it has no checksums"
        mark = fingerprint(table, all_data=True)
        print(f"{table.source.name}: {table.kind}, {count}, {kinds}, fingerprint {mark}")


def _read_all(table: Table, request: Request) -> None:
    rows = sorted(range(len(table.storages)), key=lambda r: table.storages[r].offset)
    placed = Placement([CPU] * len(rows))
    for batch in read.batches(table, rows, VERIFY_BYTES):
        read.read_storages(table, placed, batch, request.how)


def _json(option: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CheckpointError(Problem("argument", f"{option} is no JSON: {error}")) from None
    if not isinstance(value, dict):
        raise CheckpointError(Problem("argument", f"{option} is not an object of JSON"))
    return value


def _plan(args: Any) -> None:
    device_map = args.device_map
    if device_map and device_map.lstrip().startswith("{"):
        device_map = _json("--device-map", device_map)
    request = _request(
        map_location=args.map_location,
        device_map=device_map,
        max_memory=_json("--max-memory", args.max_memory) if args.max_memory else None,
        no_split=args.no_split or (),
        only=args.only,
        dtype=_dtype(args.dtype),
        memory_limit=args.memory,
        gpu_memory_limit=args.gpu_memory,
    )
    request.how.mode = "mmap" if args.mmap else "copy"
    tables = _tables(args.path, request)
    try:
        prepare(tables, request)
    finally:
        for name, row in memory.report(request.loaded).items():
            free = f", {memory.human(row['free'])} free" if row["free"] else ""
            print(f"{name}: {memory.human(row['loaded'])}{free}")
        with ledger.opened() as book:
            for line in book.lines() if book is not None else ():
                print(f"beside it, {line}")
    count = sum(len(storages_to_read(table, request)) for table in tables)
    files = memory.count_of(len(tables), "file")
    print(f"fits: {memory.count_of(count, 'storage')} of {files}")
    refused = [name for table in tables for name in refused_names(table, request.options)]
    if refused and args.only is None:
        print(f"but {REFUSED}: {diagnose.marked(refused)}")


def _convert(args: Any) -> None:
    from solo.load import load

    only = args.only or ("*" if args.flat else None)
    obj = load(args.path, dtype=_dtype(args.dtype), only=only)
    try:
        written = save(obj, args.target, format=args.format, shard_size=args.shard_size)
    except CheckpointError as error:
        if only is None and error.fix == NOT_FLAT:
            fix = f"--flat converts its tensors alone, by name; or {error.fix}"
            raise CheckpointError(error.problems, path=args.path, fix=fix) from None
        raise
    for path in written:
        print(path)


def _dtype(name: str | None) -> torch.dtype | None:
    if not name:
        return None
    dtype = getattr(torch, name, None)
    if isinstance(dtype, torch.dtype):
        return dtype
    known = [name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(near)}?" if near else "such as bfloat16"
    raise CheckpointError(Problem("argument", f"torch has no dtype {name!r}"), fix=hint)
