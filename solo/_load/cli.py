"""``python -m solo.load inspect|verify|plan|convert PATH``."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from typing import Any

import torch

from solo._load import collection, ledger, memory, objects, paths, read
from solo._load.errors import CheckpointError, Problem
from solo._load.inspection import inspect
from solo._load.place import CPU, Placement
from solo._load.ranks import fingerprint
from solo._load.save import save
from solo._load.single import Request, prepare, storages_to_read
from solo._load.table import Options, Table

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
        return 1
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
    one.add_argument("--threads", type=int, default=0)
    one.set_defaults(run=_verify)

    one = commands.add_parser("plan", help="bytes by device and whether they fit; loads nothing")
    one.add_argument("path")
    one.add_argument(
        "--device-map", help='"auto", a device, or JSON: {"layers.0": "cuda:0", "": "cpu"}'
    )
    one.add_argument("--map-location")
    one.add_argument("--max-memory", help='for "auto", JSON: {"cuda:0": "20GiB", "cpu": "60GiB"}')
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
    request = _request()
    request.how.threads = args.threads
    for table in _tables(args.path, request):
        _read_all(table, request)
        kinds = "checksums agree" if table.info["crc_known"] else "whole; it has no checksums"
        print(
            f"{table.source.name}: {table.kind}, {len(table.storages)} storages, {kinds}, "
            f"fingerprint {fingerprint(table)}"
        )


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
        memory_limit=args.memory,
        gpu_memory_limit=args.gpu_memory,
    )
    tables = _tables(args.path, request)
    try:
        placed = prepare(tables, request)
    finally:
        for name, row in memory.report(request.loaded).items():
            free = f", {memory.human(row['free'])} free" if row["free"] else ""
            print(f"{name}: {memory.human(row['loaded'])}{free}")
        with ledger.opened() as book:
            for line in book.lines() if book is not None else ():
                print(f"beside it, {line}")
    files = sum(len(storages_to_read(table, request)) for table in tables)
    where = "one file" if len(placed) == 1 else f"{len(placed)} files"
    print(f"fits: {files} storages of {where}")


def _convert(args: Any) -> None:
    from solo.load import load

    dtype = getattr(torch, args.dtype, None) if args.dtype else None
    if args.dtype and not isinstance(dtype, torch.dtype):
        raise CheckpointError(Problem("dtype", f"torch has no dtype {args.dtype!r}"))
    obj = load(args.path, dtype=dtype, only=args.only or ("*" if args.flat else None))
    for path in save(obj, args.target, format=args.format, shard_size=args.shard_size):
        print(path)
