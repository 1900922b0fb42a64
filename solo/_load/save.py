"""Saving so that nobody ever sees half a file: temporary name, fsync, rename."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

import torch

from solo import _C
from solo._load.errors import CheckpointError, Problem, fail
from solo._load.memory import parse_bytes
from solo._load.objects import TIED
from solo.errors import NotSupported

NAMES = {  # torch dtype to safetensors' name
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16",
    torch.int32: "I32", torch.int64: "I64", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float32: "F32", torch.float64: "F64", torch.complex64: "C64", torch.uint16: "U16",
    torch.uint32: "U32", torch.uint64: "U64", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2", torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ", torch.float8_e8m0fnu: "F8_E8M0",
}  # fmt: skip
STEMS = {"safetensors": ("model", ".safetensors"), "pt": ("pytorch_model", ".bin")}
HEADER_ALIGN = 8
CHUNK_BYTES = 16 << 20
NOT_FLAT = "format='pt' saves any object in one file"


def save(
    obj: Any,
    path: str | os.PathLike[str],
    *,
    shard_size: int | str | None = None,
    format: str | None = None,
    metadata: Mapping[str, str] | None = None,
    compact: bool = False,
) -> list[str]:
    """Save a checkpoint that torch and safetensors can read.

    Args:
        obj: anything torch.save takes; for safetensors or shards a dict of tensors.
        path: the file; with ``shard_size`` a directory (made if need be).
        shard_size: bytes of one file at most ("5GiB"), a larger tensor has a file of its own; an
            index is written beside the files.
        format: ``"pt"`` or ``"safetensors"``; None: by the suffix of path, else ``"pt"``.
        metadata: text entries of a safetensors file.
        compact: tensors that are parts of larger storages are saved without the rest.

    Returns:
        The paths that were written.

    Raises:
        CheckpointError: obj does not fit the format, or writing failed; an older file of this
            name is then as it was.
    """
    target = _local(path)
    kind = format or (
        "safetensors" if target.endswith((".safetensors", ".safetensors.index.json")) else "pt"
    )
    if kind not in STEMS:
        raise fail("argument", f"format is {kind!r}", fix="format='pt' or format='safetensors'")
    if compact:
        obj = _compacted(obj)
    if shard_size is None:
        _write(target, kind, obj, metadata)
        return [target]
    return _save_shards(_tensors(obj), target, kind, parse_bytes(shard_size), metadata)


def _local(path: Any) -> str:
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise fail("argument", f"a path is expected, not {type(path).__name__}") from None
    if "\0" in text:
        raise fail("argument", "a path holds no zero character", path=text)
    if "://" in text and not text.startswith("file://"):
        raise fail(
            "unsupported",
            "only files of this machine are written",
            path=text,
            fix="save it here, and copy it there with fsspec or the store's own tool",
        )
    return os.path.abspath(os.path.expanduser(text.removeprefix("file://")))


def _write(target: str, kind: str, obj: Any, metadata: Mapping[str, str] | None) -> None:
    if kind == "safetensors":
        tensors = _tensors(obj)
        atomically(target, lambda stream: write_safetensors(tensors, stream, metadata))
    else:
        atomically(target, lambda stream: torch.save(obj, stream))


def atomically(
    target: str,
    write: Callable[[IO[bytes]], object],
    take: Callable[[str, str], object] = os.replace,
) -> None:
    """Write beside the target, make it durable, then take the name."""
    if os.path.isdir(target):  # told before anything is written
        text, fix = "there is a directory of that name", "name a file, or give shard_size="
        raise fail("io", text, path=target, fix=fix)
    if os.path.exists(target) and not os.path.isfile(target):  # a rename would take its place
        text, fix = "there is a device or a pipe of that name", "torch.save writes into those"
        raise fail("io", text, path=target, fix=fix)
    folder = os.path.dirname(target)
    try:
        os.makedirs(folder, exist_ok=True)
        number, temporary = tempfile.mkstemp(
            prefix=f".{os.path.basename(target)}.", suffix=".partial", dir=folder
        )
    except OSError as error:
        raise fail("io", f"cannot write there: {error}", path=target) from None
    before = sys.exc_info()[1]  # the caller may be handling an error of its own
    try:
        with os.fdopen(number, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        take(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):  # interrupted when it had its name already
            os.unlink(temporary)
        cause = _first_of(error, before)
        if cause is not None and not isinstance(cause, Exception):
            raise cause from None  # Ctrl-C
        if cause is not None:
            raise fail(
                "io", f"writing failed: {cause}; what was there before is unchanged", path=target
            ) from error
        raise
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _first_of(error: BaseException, before: BaseException | None) -> BaseException | None:
    """What the system or the user said first: torch.save fails once more while it closes a cut
    archive."""
    seen: BaseException | None = error
    while seen is not None and seen is not before:
        if isinstance(seen, OSError) or not isinstance(seen, Exception):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _tensors(obj: Any) -> dict[str, torch.Tensor]:
    """A dict of tensors, or all that keeps obj from being one."""
    if not isinstance(obj, Mapping):
        raise fail(
            "argument",
            f"a dict of tensors is expected, not {type(obj).__name__}",
            fix=NOT_FLAT,
        )
    problems = [
        Problem("argument", f"{name!r} {wrong}", record=str(name))
        for name, value in obj.items()
        if (wrong := _unfit(name, value))
    ]
    problems += [
        Problem("argument", f"{name!r} is a name that a file cannot hold", record=repr(name))
        for name in obj
        if isinstance(name, str) and (name == "__metadata__" or not _is_text(name))
    ]
    if problems:
        raise CheckpointError(problems, fix=NOT_FLAT)
    return dict(obj)


def _unfit(name: object, value: object) -> str:
    """Why an item cannot be in a file of dense tensors by name; "" if it can."""
    if not isinstance(value, torch.Tensor):
        return f"is {type(value).__name__}, not a dense tensor"
    if value.layout != torch.strided:
        return f"has the layout {value.layout}, and is not a dense tensor"
    if value.is_meta:
        return "is on meta: it has no data"
    return "" if isinstance(name, str) else "is a name that is no text"


def _is_text(name: str) -> bool:
    try:
        return b"\0" not in name.encode()
    except UnicodeEncodeError:
        return False


def _compacted(obj: Any) -> Any:
    if isinstance(obj, torch.Tensor):
        whole = (
            obj.layout != torch.strided
            or obj.is_meta
            or (obj.untyped_storage().nbytes() == obj.numel() * obj.element_size())
        )
        return obj if whole else obj.detach().clone().requires_grad_(obj.requires_grad)
    if isinstance(obj, dict):
        made = obj.copy()  # keeps the class and what hangs on it (_metadata)
        made.update({key: _compacted(value) for key, value in obj.items()})
        return made
    if isinstance(obj, (list, tuple)) and type(obj) in (list, tuple):
        return type(obj)(_compacted(value) for value in obj)
    return obj


# ---- safetensors ----


def _tied(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Aliases: names of exactly the same elements, to the first of them."""
    first: dict[Any, str] = {}
    out = {}
    for name, tensor in tensors.items():
        seen_as = (tensor.is_conj(), tensor.is_neg())
        where = (tensor.data_ptr(), tensor.device)
        key = (*where, tensor.dtype, tensor.shape, tensor.stride(), seen_as)
        if tensor.numel() and first.setdefault(key, name) != name:
            out[name] = first[key]
    return out


def write_safetensors(
    tensors: Mapping[str, torch.Tensor], stream: IO[bytes], metadata: Mapping[str, str] | None
) -> None:
    """Header, then the data, wider dtypes first so that all of it is aligned."""
    tied = _tied(tensors)
    note = {"format": "pt", **(metadata or {})}
    if not all(isinstance(text, str) for pair in note.items() for text in pair):
        raise fail("argument", "metadata has something that is no text", fix="str() of it")
    if tied:
        note[TIED] = json.dumps(tied)
    unknown = sorted({str(t.dtype) for t in tensors.values() if t.dtype not in NAMES})
    if unknown:
        raise fail("dtype", f"safetensors has no {', '.join(unknown)}", fix="format='pt'")
    kept = [name for name in tensors if name not in tied]
    kept.sort(key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": note}
    at = 0
    for name in kept:
        tensor = tensors[name]
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGN)
    stream.write(len(text).to_bytes(8, "little") + text)
    for name in kept:
        _write_data(tensors[name], stream)


def _write_data(tensor: torch.Tensor, stream: IO[bytes]) -> None:
    """In pieces, so that a tensor of another device or layout needs no second copy at once."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    flat = plain.contiguous().reshape(-1).view(torch.uint8)
    for at in range(0, flat.numel(), CHUNK_BYTES):
        stream.write(flat[at : at + CHUNK_BYTES].cpu().numpy().data)


# ---- shards ----


def _save_shards(
    tensors: dict[str, torch.Tensor],
    folder: str,
    kind: str,
    limit: int,
    metadata: Mapping[str, str] | None,
) -> list[str]:
    tied = _tied(tensors)
    parts: list[dict[str, torch.Tensor]] = [{}]
    size = total = 0
    for name, tensor in tensors.items():
        if name in tied:
            continue
        count = tensor.numel() * tensor.element_size()
        if parts[-1] and size + count > limit:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += count
        total += count
    home = {name: number for number, part in enumerate(parts) for name in part}
    for alias, name in tied.items():
        parts[home[name]][alias] = tensors[alias]
    stem, suffix = STEMS[kind]
    index = os.path.join(folder, f"{stem}{suffix}.index.json")
    with _alone(folder) as alone:
        files = _names(folder, stem, suffix, len(parts), usual=alone)
        weight_map = {n: file for file, part in zip(files, parts, strict=True) for n in part}
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=1)
        before: set[str] = set()
        committed = False

        def take(temporary: str, name: str) -> None:
            nonlocal committed
            before.update(_replaced(temporary, name))
            committed = True

        try:
            for file, part in zip(files, parts, strict=True):
                _write(os.path.join(folder, file), kind, part, metadata)
            # Last: by it the new files take the place of the old ones, all at once.
            atomically(index, lambda stream: stream.write(text.encode()), take)
        finally:  # also after Ctrl-C: whatever no index names is nobody's
            if committed:
                _remove(folder, before - set(files))
            else:
                _remove(folder, set(files) - _files_of(index))
    return [*(os.path.join(folder, file) for file in files), index]


def _replaced(temporary: str, index: str) -> set[str]:
    """Put a new index in the old one's place, and give the files that the old one named. Of two
    that save at once each so replaces another index, and none is forgotten."""
    try:
        if not _C.swap(temporary, index):
            return set()
    except NotSupported:  # NFS and others
        before = _files_of(index)
        os.replace(temporary, index)
        return before
    before = _files_of(temporary)
    os.unlink(temporary)
    return before


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[bool]:
    """Whether no other process is saving shards in this folder; inside, others know of us."""
    try:
        os.makedirs(folder, exist_ok=True)
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise fail("io", f"cannot write there: {error}", path=folder) from None
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
        except OSError:  # also where a file system has no locks
            alone = False
        yield alone
    finally:
        os.close(number)


def _remove(folder: str, files: Iterable[str]) -> None:
    """All of them: Ctrl-C in the middle is put off to the end."""
    late: KeyboardInterrupt | None = None
    for file in files:
        try:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, file))
        except KeyboardInterrupt as error:  # before its file went, or after
            late = error
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, file))
    if late is not None:
        raise late


def _names(folder: str, stem: str, suffix: str, count: int, *, usual: bool) -> list[str]:
    """The usual names; others where a file has one of them, which an index may still need, and
    while somebody else writes here."""
    ends = [f"{number + 1:05d}-of-{count:05d}{suffix}" for number in range(count)]
    if not usual or any(os.path.lexists(os.path.join(folder, f"{stem}-{end}")) for end in ends):
        stem = f"{stem}-{os.urandom(4).hex()}"
    return [f"{stem}-{end}" for end in ends]


def _files_of(index: str) -> set[str]:
    """The files beside an index that it names."""
    try:
        with open(index, "rb") as stream:
            _, files, _, faults = _C.shards(stream.read())
    except OSError:
        return set()
    return set() if faults else {file for file in files if os.path.basename(file) == file}
