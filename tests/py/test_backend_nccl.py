"""What the adapter says of NCCL is what NCCL's own header says, where that is installed."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

CHECKS = """
#include <stddef.h>
#include <nccl.h>
#define SAME(a, b) _Static_assert((a) == (b), #a)
struct config { size_t size; unsigned magic, version; int blocking; };
SAME(ncclSuccess, 0); SAME(ncclInProgress, 7);
SAME(ncclSum, 0); SAME(ncclProd, 1); SAME(ncclMax, 2); SAME(ncclMin, 3); SAME(ncclAvg, 4);
SAME(ncclInt8, 0); SAME(ncclUint8, 1); SAME(ncclInt32, 2); SAME(ncclUint32, 3);
SAME(ncclInt64, 4); SAME(ncclUint64, 5); SAME(ncclFloat16, 6); SAME(ncclFloat32, 7);
SAME(ncclFloat64, 8); SAME(ncclBfloat16, 9); SAME(ncclScalarHostImmediate, 1);
SAME(sizeof(ncclUniqueId), 128); SAME(NCCL_API_MAGIC, 0xcafebeef);
SAME(offsetof(ncclConfig_t, magic), offsetof(struct config, magic));
SAME(offsetof(ncclConfig_t, version), offsetof(struct config, version));
SAME(offsetof(ncclConfig_t, blocking), offsetof(struct config, blocking));
int (*init)(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *) =
    (int (*)(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *))ncclCommInitRankConfig;
"""


def header() -> pathlib.Path | None:
    places = [os.environ.get("SOLO_NCCL_INCLUDE", ""), "/usr/include", "/usr/local/cuda/include"]
    places += [f"{path}/nvidia/nccl/include" for path in sys.path]
    found = (pathlib.Path(place) / "nccl.h" for place in places if place)
    return next((path for path in found if path.exists()), None)


def test_nccl_is_as_the_adapter_takes_it_to_be(tmp_path: pathlib.Path) -> None:
    path = header()
    if path is None:
        pytest.skip("no nccl.h here; SOLO_NCCL_INCLUDE names a folder that has it")
    # What nccl.h wants of CUDA, for where the toolkit is not.
    (tmp_path / "cuda_runtime.h").write_text("typedef struct CUstream_st *cudaStream_t;\n")
    (tmp_path / "cuda_fp16.h").write_text("")
    (tmp_path / "check.c").write_text(CHECKS)
    command = ["gcc", "-std=c11", "-c", "-o", os.devnull, f"-I{tmp_path}", f"-I{path.parent}"]
    done = subprocess.run([*command, tmp_path / "check.c"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
