"""Many files that are one checkpoint: indexes of shards, directories; and what a path means."""

from __future__ import annotations

import dataclasses
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from solo import _C
from solo._load import dcp, paths
from solo._load.errors import CheckpointError, Problem, fail
from solo._load.single import Request, content, load_single, nothing_selected, prepare
from solo._load.source import Source
from solo._load.table import Options, Table, open_table

if TYPE_CHECKING:
    from solo._load.paths import Found, Where

log = logging.getLogger("solo.load")

INDEXES = (  # in the order of preference
    "model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors.index.json",
    "adapter_model.safetensors.index.json",
    "consolidated.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "diffusion_pytorch_model.bin.index.json",
)
SINGLE = (
    "model.safetensors",
    "pytorch_model.bin",
    "consolidated.safetensors",
    "adapter_model.safetensors",
)
SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
EXPECTED = {".safetensors": "safetensors", ".gguf": "GGUF"}


@dataclass
class Shards:
    """The files of one checkpoint, each indexed, and which names belong to which."""

    path: str
    tables: list[Table]


def load_any(where: Where, request: Request) -> Any:
    """Load whatever the caller named."""
    found = paths.locate(
        where, storage_options=request.storage_options, threads=request.how.threads
    )
    opened = open_found(found, request)
    if isinstance(opened, Shards):
        result: Any = _load_shards(opened, request)
    else:
        result = load_single(opened, request)
    if found.stream is not None:  # as torch.load leaves it: behind what was read
        table = opened.tables[0] if isinstance(opened, Shards) else opened
        found.stream.seek(found.base + _end_of(table))
    return result


def open_tables(where: Where, request: Request) -> list[Table]:
    """The table of each file of what the caller named."""
    found = paths.locate(
        where, storage_options=request.storage_options, threads=request.how.threads
    )
    opened = open_found(found, request)
    return opened.tables if isinstance(opened, Shards) else [opened]


def _end_of(table: Table) -> int:
    if table.kind != "torch legacy":
        return table.source.size - table.base
    ends = [row.offset + row.bytes for row in table.storages]
    return max([*ends, int(table.info["metadata_bytes"])])


def open_found(found: Found, request: Request) -> Table | Shards:
    """Index one file, or all files of a directory or an index of shards."""
    if found.directory and dcp.is_dcp(found.directory):
        return dcp.open_folder(found.directory, request.options, request.extra)
    if found.directory:
        path = choose(found.directory)
        if isinstance(path, list):
            return _open_files(found.directory, [paths.open_local(p) for p in path], {}, request)
        found = paths.Found(paths.open_local(path))
    source = found.source
    assert source is not None
    if _is_json(source):
        return _open_index(source, request)
    options = request.options
    if found.stream is not None:
        options = type(options)(**{**options.__dict__, "allow_trailing": True})
    table = open_table(source, options, base=found.base)
    expected = EXPECTED.get(os.path.splitext(source.name)[1])
    if expected and expected != table.kind:
        log.info(
            "%s: the content is %s, whatever the name says: loading it as that",
            source.name,
            table.kind,
        )
    if table.kind == "TorchScript":
        constants = _constants_of(table, options)
        return Shards(source.name, [table, constants]) if constants.names else table
    return table


def _constants_of(table: Table, options: Options) -> Table:
    """The tensors that the code of a TorchScript archive holds, under the names it has for them."""
    limits = {**options.limits, "constants": 1}
    of = open_table(table.source, dataclasses.replace(options, limits=limits), base=table.base)
    of.names = [name._replace(name=f"CONSTANTS.c{name.name}", key_at=0) for name in of.names]
    return of


def _is_json(source: Source) -> bool:
    head = source.read(0, min(source.size, 4096))
    return _C.sniff(head, source.size) == "JSON"


def choose(folder: str) -> str | list[str]:
    """What in a directory is the checkpoint: an index, a single file, or all shards."""
    entries = sorted(os.listdir(folder))
    indexes = [name for name in INDEXES if name in entries]
    indexes += [n for n in entries if n.endswith(".index.json") and n not in indexes]
    if indexes:
        if len(indexes) > 1:
            log.info("%s has %s: the first is taken", folder, ", ".join(indexes))
        return os.path.join(folder, indexes[0])
    for name in SINGLE:
        if name in entries:
            return os.path.join(folder, name)
    for suffix in SUFFIXES:
        names = [os.path.join(folder, name) for name in entries if name.endswith(suffix)]
        if names:
            return names[0] if len(names) == 1 else names
    shown = ", ".join(entries[:10]) or "nothing"
    raise fail(
        "format",
        f"a directory without a checkpoint that is known here; it holds {shown}",
        path=folder,
        fix="pass the file itself",
    )


def _open_index(source: Source, request: Request) -> Shards:
    names, files, total, faults = _C.shards(source.read(0, source.size))
    if faults:
        raise CheckpointError(
            [Problem(code, text, at) for code, at, text in faults],
            path=source.name,
            fix="download the index again",
        )
    opened, problems = [], []
    for file in files:
        try:
            opened.append(_beside(source, file, request))
        except CheckpointError as error:
            if "Too many open files" in str(error):
                raise fail(
                    "io",
                    f"its {len(files)} shards are more than this process may have open at once",
                    path=source.name,
                    fix="ulimit -n 65536, or save it again in fewer shards",
                ) from None
            problems += [
                Problem(
                    "missing" if p.code == "not_found" else p.code,
                    f"shard {file}: {p.text}",
                    record=file,
                )
                for p in error.problems
            ]
    if problems:
        raise CheckpointError(
            problems,
            path=source.name,
            fix=f"download the missing files; the index names {len(files)} of them",
        )
    wanted: dict[str, set[str]] = {file: set() for file in files}
    for name, number in names:
        wanted[files[number]].add(name)
    shards = _open_files(source.name, opened, wanted, request)
    stored = sum(table.used_bytes() for table in shards.tables)
    if total and total != stored:
        log.info("%s: total_size is %d, the files hold %d bytes", source.name, total, stored)
    return shards


def _beside(index: Source, file: str, request: Request) -> Source:
    """A file of the index's own directory; the parser has refused names that leave it."""
    if paths.is_url(index.name):
        url = index.name.rsplit("/", 1)[0] + "/" + file
        found = paths.locate(
            url, storage_options=request.storage_options, threads=request.how.threads
        )
        assert found.source is not None
        return found.source
    path = os.path.join(os.path.dirname(os.path.abspath(index.name)), file)
    return paths.open_local(paths.find(path))


def _open_files(
    path: str, sources: list[Source], wanted: dict[str, set[str]], request: Request
) -> Shards:
    """Index every file, then compare with the index in both directions."""
    tables: list[Table] = []
    problems: list[Problem] = []
    for source in sources:
        try:
            tables.append(open_table(source, request.options))
        except CheckpointError as error:
            file = os.path.basename(source.name)
            problems += [
                Problem(p.code, f"{file}: {p.text}", p.offset, file) for p in error.problems
            ]
    for table, names in zip(tables, wanted.values(), strict=False) if not problems else ():
        problems += _compare(table, names, request.strict)
    if not wanted and not problems:
        problems += _twice(tables)
    if problems:
        raise CheckpointError(
            problems, path=path, fix="download the files again, all of one version of the model"
        )
    return Shards(path, tables)


def _compare(table: Table, wanted: set[str], strict: bool) -> list[Problem]:
    """A shard holds exactly the names that the index gives it."""
    held = {name.name for name in table.names}
    file = os.path.basename(table.source.name)
    problems = (
        [
            Problem(
                "missing",
                f"{file} lacks {_some(wanted - held)}, which the index says it has",
                record=file,
            )
        ]
        if wanted - held
        else []
    )
    if held - wanted and strict:
        problems.append(
            Problem(
                "mismatch",
                f"{file} holds {_some(held - wanted)}, which the index does not "
                "name (strict=False accepts it)",
                record=file,
            )
        )
    return problems


def _twice(tables: list[Table]) -> list[Problem]:
    home: dict[str, str] = {}
    problems = []
    for table in tables:
        file = os.path.basename(table.source.name)
        for name in table.names:
            other = home.setdefault(name.name, file)
            if other != file:
                problems.append(
                    Problem(
                        "duplicate",
                        f"{name.name!r} is in {other} and in {file}: these are "
                        "not shards of one checkpoint; pass one of the files",
                        record=file,
                    )
                )
                break
    return problems


def _some(names: set[str]) -> str:
    shown = sorted(names)[:4]
    rest = len(names) - len(shown)
    return ", ".join(map(repr, shown)) + (f" and {rest} more" if rest else "")


def _load_shards(shards: Shards, request: Request) -> dict[str, Any]:
    if not shards.tables:  # an index of nothing
        return {}
    placed = prepare(shards.tables, request)
    strict, request.strict = request.strict, False  # a shard may hold none of the wanted names
    out: dict[str, Any] = {}
    for table, placement in zip(shards.tables, placed, strict=True):
        part = content(table, placement, request)
        if not isinstance(part, dict):
            raise fail(
                "format", f"a shard holds {type(part).__name__}, not a dict", path=table.source.name
            )
        out.update(part)
    if request.only is not None and strict and not out:
        names = [name.name for table in shards.tables for name in table.names]
        raise nothing_selected(request.only, names, shards.path)
    return out
