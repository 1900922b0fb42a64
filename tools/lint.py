"""Every static check of the project, each with its verdict; exit status 1 when one fails.

python3 tools/lint.py         checks all
python3 tools/lint.py --fix   lets clang-format and ruff mend what they can
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).parent.parent


def tracked(*suffixes: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    paths = [p for p in listed.stdout.split() if p.endswith(suffixes) and (ROOT / p).exists()]
    return sorted(set(paths))


def newest(tool: str) -> str | None:
    """The tool's path, with or without a version in its name."""
    names = [f"{tool}-{version}" for version in (14, 15, 16, 19)] + [tool]
    return next((path for name in names if (path := shutil.which(name))), None)


def run(name: str, command: Sequence[str]) -> bool:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(f"{name}: {'ok' if done.returncode == 0 else 'FAILED'}", flush=True)
    if done.returncode:
        print((done.stdout + done.stderr)[-6000:])
    return done.returncode == 0


def tidy(tool: str, sources: list[str]) -> bool:
    """clang-tidy over all C files, as many at a time as there are cores."""
    jobs = str(os.cpu_count() or 1)
    flags = "-std=c11 -D_GNU_SOURCE -Icsrc -Icsrc/include"
    script = f"xargs -P {jobs} -I{{}} {tool} --quiet {{}} -- {flags}"
    done = subprocess.run(
        ["sh", "-c", script], cwd=ROOT, input="\n".join(sources), capture_output=True, text=True
    )
    print(f"clang-tidy: {'ok' if done.returncode == 0 else 'FAILED'}", flush=True)
    if done.returncode:
        print(done.stdout[-6000:])
    return done.returncode == 0


def main() -> int:
    fix = "--fix" in sys.argv[1:]
    c_files = tracked(".c", ".h", ".cpp", ".hpp")
    library = [p for p in tracked(".c") if p.startswith(("csrc/", "launcher/"))]
    library = [p for p in library if not p.startswith("csrc/py/")]
    python = [sys.executable, "-m"]
    verdicts = []
    if tool := newest("clang-format"):
        how = ["-i"] if fix else ["--dry-run", "-Werror"]
        verdicts.append(run("clang-format", [tool, *how, *c_files]))
    else:
        print("clang-format: not installed")
    mend = ["--fix"] if fix else []
    verdicts.append(run("ruff check", [*python, "ruff", "check", "-q", *mend, "."]))
    how = [] if fix else ["--check"]
    verdicts.append(run("ruff format", [*python, "ruff", "format", "-q", *how, "."]))
    if fix:
        return not all(verdicts)
    typed = ["solo", "tests/py/typed_use.py"]
    verdicts.append(run("mypy --strict", [*python, "mypy", "--strict", *typed]))
    verdicts.append(
        run(
            "layers",
            [sys.executable, "tools/check_layers.py", "csrc", "launcher"],
        )
    )
    verdicts.append(run("sizes", [sys.executable, "tools/check_sizes.py"]))
    if tool := newest("clang-tidy"):
        verdicts.append(tidy(tool, library))
    else:
        print("clang-tidy: not installed")
    return not all(verdicts)


if __name__ == "__main__":
    sys.exit(main())
