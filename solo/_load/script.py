"""TorchScript with its code: run only by the caller's explicit word, on the device that is here."""

from __future__ import annotations

import logging
import re
import zipfile
from typing import TYPE_CHECKING, Any

import torch

from solo._load import collection, paths, place
from solo._load.errors import fail
from solo._load.place import Device
from solo._load.read import How
from solo._load.single import Request
from solo._load.table import Options

if TYPE_CHECKING:
    from solo._load.paths import PathLike

log = logging.getLogger("solo.load")

CODE_BYTES_MAX = 64 << 20  # of one archive's code that is looked at
BAKED = re.compile(r'torch\.device\("((?!cpu)[a-z]+(?::\d+)?)"\)')


def load_script(path: PathLike, map_location: Device = "cpu") -> Any:
    """A TorchScript module that can be run. Its code is the file's: only from who you trust.

    Args:
        path: a file of torch.jit.save.
        map_location: where parameters, buffers and constants go; never what the file says.

    Raises:
        CheckpointError: it is no TorchScript, or is damaged, or the device is not here.
    """
    device = place.device_of(map_location)
    found = paths.locate(path, storage_options=None, threads=1)
    opened = collection.open_found(found, Request(Options(), How()))
    table = opened.tables[0] if isinstance(opened, collection.Shards) else opened
    if table.kind != "TorchScript":
        raise fail(
            "format",
            f"it is {table.kind}, which holds no code to run",
            path=table.source.name,
            fix="solo.load(path) gives its tensors",
        )
    baked = sorted(_devices_in_code(table.source.name) - {str(device)})
    if baked:
        log.warning(
            "%s: its code makes tensors on %s whatever map_location says: trace or script it "
            "again on the device that it is to run on",
            table.source.name,
            ", ".join(baked),
        )
    return torch.jit.load(table.source.name, map_location=device)  # type: ignore[no-untyped-call]


def _devices_in_code(path: str) -> set[str]:
    """Devices that are literals of the code; nothing but text is read."""
    found: set[str] = set()
    left = CODE_BYTES_MAX
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.filename.endswith(".py") or info.file_size > left:
                continue
            left -= info.file_size
            with archive.open(info) as stream:
                text = stream.read(info.file_size).decode(errors="replace")
            found |= set(BAKED.findall(text))
    return found
