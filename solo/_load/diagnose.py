"""What a fault means to the person who has the file, and what mends it."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Any

from solo._load.errors import CheckpointError, Problem

if TYPE_CHECKING:
    from solo import _C
    from solo._load.source import Source

HARMLESS = {  # names that are data, not behaviour: said so beside the list
    "numpy.core.multiarray.scalar": "a NumPy number",
    "numpy._core.multiarray.scalar": "a NumPy number",
    "numpy.core.multiarray._reconstruct": "a NumPy array",
    "numpy._core.multiarray._reconstruct": "a NumPy array",
    "numpy.ndarray": "a NumPy array",
    "numpy.dtype": "a NumPy dtype",
    "argparse.Namespace": "command-line arguments",
    "pathlib.PosixPath": "a path",
    "pathlib.WindowsPath": "a path",
    "pathlib._local.PosixPath": "a path",
    "datetime.datetime": "a date",
    "collections.defaultdict": "a dict",
}
PLAIN_PICKLE = "torch.storage._load_from_bytes"

NOT_A_CHECKPOINT = {
    "Git LFS pointer": (
        "git lfs install && git lfs pull",
        "a Git LFS pointer, not the file itself",
    ),
    "web page": ("download it again: the address or the login was wrong", "a web page"),
    "empty": ("copy or download it again", "empty"),
    "zero-filled": (
        "copy it again: a disk that ran full or a download that was only reserved looks so",
        "filled with zero bytes",
    ),
    "gzip": ("gunzip it first", "compressed with gzip"),
    "zstd": ("unzstd it first", "compressed with zstd"),
    "bzip2": ("bunzip2 it first", "compressed with bzip2"),
    "xz": ("unxz it first", "compressed with xz"),
    "tar": (
        "tar -xf it; if torch 0.1.9 wrote it, load and save it once in a sandbox with "
        "torch.load(weights_only=False)",
        "a tar archive",
    ),
    "GGUF": ("gguf-py (pip install gguf) reads it", "GGUF, the format of llama.cpp"),
    "HDF5": ("h5py reads it", "HDF5 (Keras, or h5py)"),
    "NumPy array": ("numpy.load reads it", "a NumPy array"),
    "ONNX": ("onnx.load reads it", "an ONNX model"),
    "picture": ("download it again: this is another file", "a picture"),
    "JSON": ("pass the directory, or the weights that lie beside it", "JSON text"),
    "pickle": (
        "save it with torch.save; or load it with pickle in a sandbox if you trust it",
        "a pickle that torch.save did not write",
    ),
    "zip": ("unzip it first", "a zip archive, but not of torch.save"),
    "unknown": (
        "look at its first bytes: head -c 64 FILE | xxd",
        "of no format that is known here",
    ),
}
UNSAFE_FIX = (
    "load the tensors alone with tensors_only=True, or allow names that you know: "
    "safe_globals=[...]"
)
FIXES = {
    "truncated": "copy or download it again, and compare the size",
    "checksum": "copy or download it again: the data was changed on the way",
    "duplicate": "do not trust this file: two readers would read it differently",
    "overlap": "do not trust this file: two readers would read it differently",
    "limit": "if you trust the file, raise the limit: limits={...}",
    "changed": "wait until its writer has finished, then load again",
}


def explain(source: Source, index: _C.Checkpoint, info: dict[str, Any]) -> CheckpointError:
    """The error for an index that has faults."""
    faults = index.faults()
    unsafe = sorted({text for code, _, text in faults if code == "unsafe"})
    if PLAIN_PICKLE in unsafe:
        return _plain_pickle(source)
    if info["kind"] in NOT_A_CHECKPOINT and not unsafe:
        return _not_a_checkpoint(source, str(info["kind"]))
    problems = [
        Problem(code, _with_size(source, code, text), at)
        for code, at, text in faults
        if code != "unsafe"
    ]
    fix = FIXES.get(problems[0].code, "") if problems else ""
    if fix == FIXES["limit"] and "strides of 0" in problems[0].text:
        fix = "if you trust the file: allow_expanded=True"
    total = index.fault_count()
    if unsafe:
        problems.insert(0, Problem("unsafe", _unsafe_text(unsafe)))
        total += 1 - sum(code == "unsafe" for code, _, _ in faults)
        fix = UNSAFE_FIX
    return CheckpointError(problems, path=source.name, fix=fix, total=max(total, len(problems)))


def _unsafe_text(names: list[str]) -> str:
    things = "1 thing that is" if len(names) == 1 else f"{len(names)} things that are"
    return f"it names {things} neither tensor nor plain data, and nothing was run: {marked(names)}"


def marked(names: list[str]) -> str:
    """The names, with what the harmless ones of them are."""
    return ", ".join(f"{name} ({HARMLESS[name]})" if name in HARMLESS else name for name in names)


def _plain_pickle(source: Source) -> CheckpointError:
    return CheckpointError(
        Problem(
            "unsupported",
            "written by pickle.dump, not torch.save: map_location would not "
            "reach the tensors, and reading it can run anything",
        ),
        path=source.name,
        fix="write it again with torch.save (in a sandbox, if it is not yours)",
    )


def _not_a_checkpoint(source: Source, kind: str) -> CheckpointError:
    fix, what = NOT_A_CHECKPOINT[kind]
    text = f"this file is {what} ({source.size} bytes)"
    if kind == "Git LFS pointer":
        text += _lfs_details(source)
    code = {"empty": "empty", "zero-filled": "zeros"}.get(kind, "format")
    return CheckpointError(Problem(code, text), path=source.name, fix=fix)


def _lfs_details(source: Source) -> str:
    pointer = source.read(0, min(source.size, 1024)).decode(errors="replace")
    oid = re.search(r"oid \w+:([0-9a-f]{8})", pointer)
    size = re.search(r"size (\d+)", pointer)
    if not oid or not size:
        return ""
    return f": the real file, oid {oid[1]}..., has {int(size[1])} bytes"


def _with_size(source: Source, code: str, text: str) -> str:
    """A cut file: what else is known of how large it should be, and when it was written."""
    if code != "truncated":
        return text
    try:
        modified = os.stat(source.name).st_mtime
    except OSError:
        return text
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(modified))
    return (
        f"{text}; it has {source.size} bytes, written {when}: the save or download did not finish"
    )
