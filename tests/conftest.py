"""Collects the C tests beside the Python ones: each TEST(...) of tests/unit/test_*.c is an item."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parent.parent
BUILD = ROOT / "build" / "release"


def pytest_sessionstart(session: pytest.Session) -> None:
    """Build what the C tests need, once; a compile error then fails each of them with its text."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background: so begin all
        signal.signal(signal.SIGINT, signal.default_int_handler)  # processes that tests start
    command = ["make", "-s", f"-j{os.cpu_count() or 1}", "ctests", "launcher"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    session.config.stash[BUILD_ERROR] = built.stderr if built.returncode else ""


BUILD_ERROR = pytest.StashKey[str]()


def pytest_collect_file(file_path: pathlib.Path, parent: pytest.Collector) -> pytest.File | None:
    if file_path.suffix == ".c" and file_path.match("unit/test_*.c"):
        return CFile.from_parent(parent, path=file_path)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under CI a Python test that fails is run once more; its first failure stays in the report.

    These tests start real processes that must meet; on a machine that others share one may starve.
    A rerun in the report is a fault to mend. C tests and runs by hand are never repeated.
    """
    if os.environ.get("CI"):
        for item in items:
            if isinstance(item, pytest.Function):
                item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"first failure of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


class CFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        program = BUILD / "tests" / self.path.stem
        error = self.config.stash[BUILD_ERROR]
        if error and not program.exists():
            raise self.CollectError(f"{self.path.name} does not build:\n{error}")
        if error:
            raise self.CollectError(f"the C tests do not build:\n{error}")
        listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True)
        for name in listed.stdout.split():
            yield CItem.from_parent(self, name=name, program=program)


class CItem(pytest.Item):
    def __init__(self, *, program: pathlib.Path, **rest: object) -> None:
        super().__init__(**rest)  # type: ignore[arg-type]
        self.program = program

    def runtest(self) -> None:
        done = subprocess.run(
            [self.program, self.name], capture_output=True, text=True, timeout=120
        )
        if done.returncode:
            raise CFailure(f"exit status {done.returncode}\n{done.stderr}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> str:
        return str(excinfo.value)

    def reportinfo(self) -> tuple[pathlib.Path, int, str]:
        return self.path, 0, self.name


class CFailure(Exception):
    pass
