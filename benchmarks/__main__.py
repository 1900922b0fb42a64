"""Run every benchmark, one after the other: python -m benchmarks [--quick] [--json] [NAME ...]"""

from __future__ import annotations

import pathlib
import subprocess
import sys


def main() -> int:
    here = pathlib.Path(__file__).parent
    flags = [word for word in sys.argv[1:] if word.startswith("-")]
    named = [word for word in sys.argv[1:] if not word.startswith("-")]
    names = named or sorted(path.stem for path in here.glob("bench_*.py"))
    failed = [
        name
        for name in names
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *flags]).returncode
    ]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
