"""From what a caller names to what is there: paths, MODEL_PATH, ``~``, variables, URLs."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from typing import IO, Any, cast

from solo._load import source as sources
from solo._load.errors import CheckpointError, fail
from solo._load.source import Source

PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Where = PathLike | IO[bytes] | bytearray | memoryview
SEARCH = ("SOLO_MODEL_PATH", "MODEL_PATH")  # lists of directories, first match wins


@dataclass
class Found:
    """What was found: one source, or a directory of this machine."""

    source: Source | None
    directory: str = ""
    base: int = 0
    stream: IO[bytes] | None = None


def is_url(text: str) -> bool:
    return "://" in text and not text.startswith("file://")


def meant(where: Where) -> Where:
    """Bytes that no path can be are the content of a file."""
    return memoryview(where) if isinstance(where, bytes) and b"\0" in where else where


def locate(where: Where, *, storage_options: dict[str, Any] | None, threads: int) -> Found:
    """Open what the caller named."""
    if isinstance(where, (bytearray, memoryview)):
        return Found(sources.of_buffer(where))
    if hasattr(where, "read") and hasattr(where, "seek"):
        stream = cast("IO[bytes]", where)
        source, base = sources.of_object(stream)
        return Found(source, base=base, stream=stream)
    try:
        text = os.fsdecode(where)
    except TypeError:
        raise fail(
            "argument",
            f"a path, URL or file object is expected, not {type(where).__name__}",
        ) from None
    if is_url(text):
        return Found(sources.of_url(text, storage_options, threads))
    path = find(text)
    if os.path.isdir(path):
        return Found(None, directory=path)
    return Found(open_local(path))


def open_local(path: str) -> Source:
    try:
        return sources.LocalSource(path)
    except Exception as error:
        if isinstance(error, CheckpointError):
            raise
        raise _cannot_open(path, error) from None


def find(text: str) -> str:
    """The path of an existing file or directory, or an error that shows what was tried."""
    name = text.removeprefix("file://") if text.startswith("file://") else text
    if not name:  # as of a variable that is not set; the working directory is "."
        raise fail("argument", "the path is empty")
    if "\0" in name:
        raise fail("argument", "a path holds no zero character", path=text)
    name = os.path.expanduser(os.path.expandvars(name))
    tried = [os.path.abspath(name)]
    if not os.path.isabs(name):
        for variable in SEARCH:
            folders = [f for f in os.environ.get(variable, "").split(os.pathsep) if f]
            tried += [os.path.join(os.path.expanduser(folder), name) for folder in folders]
    for path in tried:
        if os.path.exists(path):
            return path
    raise _not_found(text, tried)


def _not_found(text: str, tried: list[str]) -> CheckpointError:
    for path in tried:
        if os.path.islink(path):
            return fail(
                "not_found",
                f"{path} is a symbolic link to {os.readlink(path)}, which does not exist",
                path=text,
                fix="download or copy the link's target",
            )
    lines = ["there is no such file. Tried: " + ", ".join(tried)]
    parent = tried[0]
    while parent != os.path.dirname(parent) and not os.path.isdir(parent):
        parent = os.path.dirname(parent)
    near = _near(os.path.basename(tried[0]), parent) if parent == os.path.dirname(tried[0]) else []
    if near:
        lines.append(f"{parent} has {', '.join(near)}")
    else:
        lines.append(f"the nearest directory that exists is {parent}")
    if "$" in tried[0]:
        lines.append("a variable in it is not set")
    if not any(os.environ.get(variable) for variable in SEARCH):
        lines.append("MODEL_PATH is not set")
    fix = (
        f"did you mean {os.path.join(parent, near[0])}?"
        if near
        else "check the path, or set MODEL_PATH"
    )
    return fail("not_found", "; ".join(lines), path=text, fix=fix)


def _near(name: str, folder: str) -> list[str]:
    try:
        entries = os.listdir(folder)[:10000]
    except OSError:
        return []
    return difflib.get_close_matches(name, entries, n=3, cutoff=0.5)


def _cannot_open(path: str, error: Exception) -> CheckpointError:
    if os.path.exists(path) and not os.access(path, os.R_OK):
        return fail(
            "permission", "it may not be read by this user", path=path, fix=f"chmod u+r {path}"
        )
    if os.path.exists(path) and not os.path.isfile(path):
        text, fix = (
            "a pipe or a device, not a regular file",
            "copy it into a file, or to io.BytesIO",
        )
        return fail("io", text, path=path, fix=fix)
    return fail("io", str(error), path=path)
