"""One line of solo's on stderr: text for people, or one JSON object (``--log_format json``)."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time


def as_json() -> bool:
    """Whether lines are for machines."""
    return os.environ.get("SOLO_LOG_FORMAT") == "json"


def say(node: int, text: str, *, level: str = "info", event: str = "sync") -> None:
    """What the sync has to tell. A closed stderr is nobody's concern."""
    if as_json():
        say_json(node, text, level=level, event=event)
        return
    warned = "error: " if level == "error" else ""
    with contextlib.suppress(OSError, ValueError):
        print(f"solo: node {node}: {warned}{text}", file=sys.stderr, flush=True)


def say_json(node: int, text: str, *, level: str, event: str, **fields: object) -> None:
    """The line as an object: time in UTC, level, node, rank, event, text and more fields."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03}Z"
    rank = os.environ.get("RANK")
    line = {
        "time": stamp,
        "level": level,
        "node": node,
        "rank": int(rank) if rank and rank.isdigit() else None,
        "event": event,
        "text": text,
        **fields,
    }
    with contextlib.suppress(OSError, ValueError):
        print(json.dumps(line), file=sys.stderr, flush=True)
