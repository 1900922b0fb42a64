"""The simulator finds deliberate bugs: so it looks at what it says it looks at."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys
from typing import Any

import pytest

SPEC = importlib.util.spec_from_file_location(
    "mutants", pathlib.Path(__file__).with_name("mutants.py")
)
assert SPEC is not None and SPEC.loader is not None
mutants = sys.modules["mutants"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(mutants)


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=[m.name for m in mutants.MUTANTS])
def test_the_line_that_a_deliberate_bug_changes_is_there(mutant: Any) -> None:
    assert mutants.sources(mutant)


@pytest.mark.slow
@pytest.mark.skipif("SOLO_TEST_FLAVOR" in os.environ, reason="the bugs are in the release build")
@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=[m.name for m in mutants.MUTANTS])
def test_the_simulator_finds_a_deliberate_bug(mutant: Any) -> None:
    assert mutants.found(mutant, mutants.SEEDS), f"{mutants.SEEDS} seeds did not find it"
