"""torch's own distributed tests, as installed, with "solo" in the place of gloo.

Not collected by itself: test_peer_suite.py runs it with pytest in a process of its own. The suite
is closed to backends that it does not know by name; its source is read, "gloo" is replaced by
"solo", and the CPU tests kept for MPI are opened. Nothing on disk or in torch is changed.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
import unittest
from typing import Any

import torch
import torch.testing._internal.common_distributed as common

BACKEND = os.environ["BACKEND"]
SUITE = "torch.testing._internal.distributed.distributed_test"


def admit_backend() -> None:
    """Put the backend in every set of features in which the suite lists gloo."""
    features = common.DistTestCases.backend_feature
    features["plugin"].add(BACKEND)
    for backends in features.values():
        if "gloo" in backends:
            backends.add(BACKEND)


def skip_early() -> None:
    """Decide what needs GPUs or more ranks here: the same verdict, and no process is started."""
    world_size = int(os.environ["WORLD_SIZE"])
    upstream_needs_gpus = common.skip_if_lt_x_gpu

    def needs_gpus(count: int, *, allow_cpu: bool = False) -> Any:
        if allow_cpu:
            return upstream_needs_gpus(count, allow_cpu=True)
        return unittest.skip(f"needs {count} GPUs")

    common.skip_if_no_gpu = unittest.skip("needs a GPU")
    common.skip_if_lt_x_gpu = needs_gpus
    if world_size < 8:
        common.skip_if_small_worldsize = unittest.skip("needs 8 ranks")
    if world_size % 2:
        common.skip_if_odd_worldsize = unittest.skip("needs an even number of ranks")


def load_suite() -> types.ModuleType:
    spec = importlib.util.find_spec(SUITE)
    assert spec and spec.origin
    with open(spec.origin) as file:
        source = file.read()
    source = source.replace('BACKEND != "mpi"', f"BACKEND not in ('mpi', {BACKEND!r})")
    source = source.replace('"gloo"', repr(BACKEND))
    source = source.replace("Backend.GLOO", "Backend." + BACKEND.upper())
    module = types.ModuleType(SUITE)
    module.__file__, module.__spec__ = spec.origin, spec
    sys.modules[SUITE] = module
    # torch checks annotations by identity: this file's own "annotations" must not reach them
    exec(compile(source, spec.origin, "exec", dont_inherit=True), module.__dict__)
    return module


admit_backend()
if not torch.cuda.is_available():
    skip_early()
suite: Any = load_suite()


class Suite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc]
    def _spawn_processes(self) -> None:  # upstream's spawn takes ten seconds a test
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()
