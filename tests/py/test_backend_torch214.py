"""The adapter against torch 2.14.1, whose virtual functions differ: built and tested there.

SOLO_TORCH214 is the python of an environment with torch 2.14 and pytest, or "create": then one is
made in build/torch214 (pip brings the wheel, which may be large).
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
WANTED = os.environ.get("SOLO_TORCH214", "")
TESTS = ["collectives", "messages", "groups", "faults", "device"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not WANTED,
        reason="SOLO_TORCH214 names no python with torch 2.14, and does not say 'create'",
    ),
]


def interpreter() -> str:
    if WANTED != "create":
        return WANTED
    home = ROOT / "build" / "torch214"
    python = home / "bin" / "python"
    if not (home / ".made").exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        needs = ["torch==2.14.1", "numpy", "setuptools", "wheel", "expecttest", "pytest",
                 "pytest-timeout"]  # fmt: skip
        subprocess.run([python, "-m", "pip", "install", "-qq", *needs], check=True)
        (home / ".made").touch()
    return str(python)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, pathlib.Path]:
    """That python, and a copy of the project with its native modules built for it."""
    python = interpreter()
    copy = tmp_path_factory.mktemp("torch214") / "solo"
    ignored = shutil.ignore_patterns(".git", ".venv", "asan", "tsan", "fuzz", "torch214", "*.so")
    shutil.copytree(ROOT, copy, ignore=ignored)
    subprocess.run(["make", "-s", "lib", "launcher"], cwd=copy, check=True)
    command = [python, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
    return python, copy


def environment(copy: pathlib.Path) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SOLO_", "PYTEST_"))}
    return {**clean, "PYTHONPATH": str(copy)}


@pytest.mark.parametrize("name", TESTS)
def test_the_backend_s_tests_pass_with_torch_2_14(
    name: str, built: tuple[str, pathlib.Path]
) -> None:
    python, copy = built
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest",
               "-c", os.devnull, "--rootdir", copy, f"tests/py/test_backend_{name}.py"]  # fmt: skip
    done = subprocess.run(
        command, cwd=copy, env=environment(copy), capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "passed" in done.stdout


def test_torch_2_14_with_an_adapter_for_2_13_is_told_in_one_sentence(
    built: tuple[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    python, copy = built
    package = tmp_path / "solo"
    shutil.copytree(copy / "solo", package)
    for adapter in package.glob("_c10d.*so"):
        text = adapter.read_bytes()
        adapter.write_bytes(text.replace(b"built for torch 2.14\0", b"built for torch 2.13\0"))
    script = (
        "import torch, torch.distributed as dist\n"
        "from solo import backend; backend.register()\n"
        "print(torch.ones(1).item())\n"
        "dist.init_process_group('solo', store=dist.HashStore(), rank=0, world_size=1)\n"
    )
    done = subprocess.run(
        [python, "-c", script], env=environment(tmp_path), capture_output=True, text=True
    )
    assert done.stdout == "1.0\n"
    assert "was built for torch 2.13, this is torch 2.14: install solo again" in done.stderr
