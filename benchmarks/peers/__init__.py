"""Peers that benchmarks run beside solo, each in a virtual environment of its own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import sysconfig

BUILD = pathlib.Path(__file__).parent.parent.parent / "build"
TORCHFT = (
    ["torchft-nightly==2026.10.26"],
    ["opentelemetry-sdk>=1.39", "opentelemetry-api>=1.39",
     "opentelemetry-exporter-otlp-proto-http>=1.39"],
)  # fmt: skip


# loaders of safetensors: they read to the CPU as well, and bring torch and numpy in otherwise
STREAMERS = (["fastsafetensors==0.5.0", "runai-model-streamer==0.17.1", "humanize"], [])


def python_with(name: str, alone: list[str], whole: list[str]) -> str | None:
    """The interpreter of the environment ``name`` over this one's packages; None without it.

    ``alone`` is installed without its dependencies (so that no other torch comes in), ``whole``
    with them.
    """
    home = BUILD / f"venv-{name}"
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        made = subprocess.run([sys.executable, "-m", "venv", "--clear", home])
        packages = home / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        stdlib = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
        here = [p for p in sys.path if pathlib.Path(p).is_dir() and p not in stdlib]
        (packages / "site-packages" / "here.pth").write_text("\n".join(here) + "\n")
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        done = [subprocess.run([*pip, "--no-deps", *alone])]
        done += [subprocess.run([*pip, *whole])] if whole else []
        if made.returncode or any(step.returncode for step in done):
            return None
        (home / "ready").touch()
    return str(python)


def torchft_env(lighthouse: str, replica: int) -> dict[str, str]:
    """The environment of one replica: of torch's backends none is loaded, solo's included."""
    own = {"LIGHTHOUSE": lighthouse, "REPLICA": str(replica), "OMP_NUM_THREADS": "1"}
    return {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **own}


def torchft_python() -> str | None:
    return python_with("torchft", *TORCHFT)


def streamers_python() -> str | None:
    return python_with("streamers", *STREAMERS)
