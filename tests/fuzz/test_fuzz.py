"""Every parser survives its fuzzer for a moment: its corpus, then some thousand new inputs.

``make fuzz`` runs them for longer. Needs clang with libFuzzer.
"""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
TARGETS = sorted(path.stem for path in (ROOT / "tests" / "fuzz").glob("fuzz_*.c"))
CLANG = next((c for c in ("clang", "clang-16", "clang-15", "clang-14") if shutil.which(c)), None)
RUNS = 3000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(CLANG is None, reason="clang with libFuzzer is not installed"),
]


@pytest.fixture(scope="session")
def built() -> pathlib.Path:
    """All targets, built once with sanitizers."""
    jobs = f"-j{os.cpu_count() or 1}"
    programs = [f"build/fuzz/{target}" for target in TARGETS]
    command = ["make", "-s", jobs, "FLAVOR=fuzz", f"CC={CLANG}", f"CLANG={CLANG}", *programs]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[-3000:]
    return ROOT / "build" / "fuzz"


@pytest.mark.parametrize("target", TARGETS)
def test_a_parser_survives_its_fuzzer(
    built: pathlib.Path, target: str, tmp_path: pathlib.Path
) -> None:
    corpus = ROOT / "tests" / "fuzz" / "corpus" / target
    folders = [tmp_path, *([corpus] if corpus.is_dir() else [])]
    limits = [f"-runs={RUNS}", "-max_total_time=20", "-seed=1", f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run(
        [built / target, *limits, *folders], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
