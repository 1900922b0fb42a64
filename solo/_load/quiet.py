"""No garbage collection while tables of thousands of rows are made: none of it is garbage, and
each pass would walk all of it again."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_inside = 0
_was_enabled = False


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Collection is off inside, for all threads, and as before once the last one has left."""
    global _inside, _was_enabled
    with _lock:
        if _inside == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and _was_enabled:
                gc.enable()
