"""What the build promises to whoever installs it."""

import os
import pathlib
import subprocess

import solo
from solo import _C

PACKAGES = pathlib.Path(__file__).parents[2] / "tools" / "packages.sh"


def test_the_library_and_the_package_have_one_version() -> None:
    assert _C.version() == solo.__version__


def packages_with(python: str | None, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """What the check says to a plain user of a machine without a compiler and with this Python."""
    for name in ("sh", "make", "echo", "uname"):
        found = next(p for p in ("/usr/bin", "/bin") if pathlib.Path(p, name).exists())
        (folder / name).symlink_to(f"{found}/{name}")
    scripts = {"id": "echo 1000", "python3": python}
    for name, script in scripts.items():
        if script is not None:
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if key not in ("CC", "PYTHON")}
    return subprocess.run(
        ["/bin/sh", str(PACKAGES)],
        env={**environment, "PATH": str(folder)},
        capture_output=True,
        text=True,
    )


def test_missing_system_packages_are_named_in_one_message(tmp_path: pathlib.Path) -> None:
    done = packages_with(None, tmp_path)
    assert done.returncode == 1
    for name in ("gcc", "g++", "libssl-dev", "python3-venv", "python3-dev"):
        assert f" {name}" in done.stderr.splitlines()[1]
    assert "fix: as root: apt-get install" in done.stderr


def test_a_python_without_its_headers_is_told_before_the_compiler_is(
    tmp_path: pathlib.Path,
) -> None:
    done = packages_with('case "$2" in *Python.h*) echo /nowhere/Python.h;; esac', tmp_path)
    assert done.returncode == 1
    assert "python3-dev" in done.stderr and "python3-venv" not in done.stderr


def test_an_old_python_is_named_with_the_way_to_give_another(tmp_path: pathlib.Path) -> None:
    old = 'case "$*" in *version_info*) exit 1;; -V) echo Python 3.9.2;; esac'
    done = packages_with(old, tmp_path)
    assert done.returncode == 1
    assert "python3 is Python 3.9.2" in done.stderr and "make PYTHON=" in done.stderr
