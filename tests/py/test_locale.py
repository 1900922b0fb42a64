"""A script that sets a locale with a decimal comma changes nothing for the sync."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

CODE = """
import locale
locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
assert locale.localeconv()["decimal_point"] == ","
from solo import _C
layout = [("weight", 4, _C.F32, _C.PARAM)]
settings = {"master_url": "tcp://127.0.0.1:1", "interval": "100"}
with_rule = _C.memory_needed(layout, outer="nesterov:lr=0.4,beta=0.9", **settings)
assert with_rule > 0
assert locale.localeconv()["decimal_point"] == ","
"""


def test_a_rule_is_read_alike_under_a_locale_with_a_decimal_comma(tmp_path: pathlib.Path) -> None:
    words = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(tmp_path / "de_DE.UTF-8")]
    try:
        made = subprocess.run(words, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no localedef here")
    if not (tmp_path / "de_DE.UTF-8" / "LC_NUMERIC").exists():
        pytest.skip(f"the locale cannot be made: {made.stderr}")
    env = {**os.environ, "LOCPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
