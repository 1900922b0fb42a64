"""torch's own serialization tests with ``solo.load`` in the place of ``torch.load``.

Not collected by itself: test_load_suite.py runs it with pytest in a process of its own. torch's
wheels do not have these tests: TORCH_SERIALIZATION_TESTS names test/test_serialization.py of a
source tree of torch, of any version. Nothing on disk is changed.
"""

from __future__ import annotations

import os
import pathlib
import sys
import types
from typing import Any

import torch

import solo

SUITE = pathlib.Path(os.environ["TORCH_SERIALIZATION_TESTS"])
theirs = torch.load


def load(
    f: Any,
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = None,
    **options: Any,
) -> Any:
    """Everything but a caller's own unpickler, which solo has no word for."""
    if pickle_module is not None or options.keys() - {"mmap"}:
        return theirs(f, map_location, pickle_module, weights_only=weights_only, **options)
    # These tests were written when everything in a file was run, unless they say otherwise.
    return solo.load(f, map_location, weights_only=weights_only or False, **options)


def load_suite() -> types.ModuleType:
    module = types.ModuleType("torch_serialization_tests")
    module.__file__ = str(SUITE)
    sys.modules[module.__name__] = module
    exec(compile(SUITE.read_text(), SUITE, "exec", dont_inherit=True), module.__dict__)
    return module


torch.load = load
suite = load_suite()
for name, value in list(vars(suite).items()):
    if isinstance(value, type) and any(part.startswith("test_") for part in dir(value)):
        globals()[name] = value
del name, value  # else the last one would be collected twice
