"""The whole hostile corpus in a process of little memory: an error each, in bounded time."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import hostile_files
import pytest

MEMORY_BYTES = 512 << 20  # address space beyond what torch itself takes
SECONDS = 20  # of processor time for one file; each takes milliseconds

HARMLESS = {  # strange, and no harm: what they give is as small as they are
    "pickle: a million empty lists",
    "pickle: a frame of 2^62",
}

SCRIPT = """
import json, pathlib, resource, signal, sys
import solo, solo.load, torch

folder, memory, seconds = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
solo.load(folder / "good")
size = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (size + memory, size + memory))

def of(function, path):
    try:
        function(path)
    except solo.CheckpointError as error:
        return error.reason
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:300]
    return ""

verdicts = {}
for path in sorted(folder.iterdir()):
    signal.setitimer(signal.ITIMER_PROF, seconds)
    verdicts[path.name] = [of(f, path) for f in (solo.load, solo.inspect)]
    signal.setitimer(signal.ITIMER_PROF, 0)
    verdicts[path.name].append(of(lambda p: solo.load(p, only="*"), path))
print(json.dumps(verdicts))
"""


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """By file, what load, inspect and load(only=) said: a reason, or "" where nothing was wrong."""
    folder = tmp_path_factory.mktemp("hostile")
    names: dict[str, str] = {}
    for number, (name, data) in enumerate(sorted(hostile_files.corpus().items())):
        (folder / f"{number}").write_bytes(data)
        names[str(number)] = name
    (folder / "good").write_bytes(hostile_files.packed(hostile_files.GOOD))
    words = [sys.executable, "-c", SCRIPT, str(folder), str(MEMORY_BYTES), str(SECONDS)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"it died: {done.returncode} {done.stderr[-3000:]}"
    found = json.loads(done.stdout)
    assert found.pop("good") == ["", "", ""]
    return {names[number]: verdict for number, verdict in found.items()}


@pytest.mark.parametrize("name", sorted(hostile_files.corpus()))
def test_a_hostile_file_gets_its_error(verdicts: dict[str, list[str]], name: str) -> None:
    load, inspect, some = verdicts[name]
    assert " " not in load + inspect + some, (load, inspect, some)  # no other exception
    assert load or name in HARMLESS, "it was loaded"


def test_the_corpus_has_every_kind_of_attack() -> None:
    names = " ".join(hostile_files.corpus())
    for word in ("bomb", "overlapping", "twice", "header", "negative", "overflow", "strides",
                 "nested", "memo", "climbs", "outside", "exec"):  # fmt: skip
        assert word in names, word
    assert len(hostile_files.corpus()) > 70
    assert pathlib.Path(hostile_files.__file__).exists()
