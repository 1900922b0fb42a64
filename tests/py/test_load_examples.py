"""The loading examples run, and docs/loading.md knows every reason that an error can have."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("name", "words"),
    [("load_two_devices", "by size"), ("serve_two_models", "answered 8 requests")],
)
def test_the_example_runs(name: str, words: str) -> None:
    command = [sys.executable, ROOT / "examples" / f"{name}.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout


def test_every_reason_is_documented() -> None:
    code = "\n".join(p.read_text() for p in (ROOT / "solo" / "_load").glob("*.py"))
    reasons = set(re.findall(r'(?:fail|Problem)\(\s*"([a-z_]+)"', code))
    reasons |= set(re.findall(r'= "([a-z]+)"', (ROOT / "csrc/py/load.c").read_text()))
    documented = (ROOT / "docs" / "loading.md").read_text()
    known = {word for word in reasons if f"`{word}`" not in documented}
    assert known <= {"argument", "missing_package"}, known
