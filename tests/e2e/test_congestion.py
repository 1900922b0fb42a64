"""Which congestion control the connections of real members have, over a lab's links."""

import pathlib
import re
import subprocess
import time

import pytest

from benchmarks import netlab
from tests.e2e.jobs import MEMBER, PATIENCE

AVAILABLE = pathlib.Path("/proc/sys/net/ipv4/tcp_available_congestion_control")

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(netlab.why_not() is not None, reason=str(netlab.why_not())),
    pytest.mark.skipif(
        not {"bbr", "cubic"} <= set(AVAILABLE.read_text().split()) if AVAILABLE.exists() else True,
        reason="this kernel has not both bbr and cubic",
    ),
]


def start(lab: netlab.Lab, **env: str) -> list[subprocess.Popen[str]]:
    """A master on the first node and a member on each, on hosts whose congestion control is BBR."""
    url = f"tcp://{lab.address(0)}:29400"
    common = [str(MEMBER), url, "--token", "a secret of the lab"]
    processes = []
    for node in range(2):
        netlab.sh(*lab.command(node, ["sysctl", "-qw", "net.ipv4.tcp_congestion_control=bbr"]))
    arguments = [["--master", "--min-nodes", "2"], ["--rank", "0"], ["--rank", "1"]]
    for node, more in zip((0, 0, 1), arguments, strict=True):
        command = [*common, *more, "--quiet"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        processes.append(lab.popen(node, command, env, **quiet))
    return processes


def first_control(lab: netlab.Lab) -> str:
    """The congestion control of a connection from the second node to the first, as its kernel
    tells it, once bytes went out: it is chosen before."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        shown = netlab.sh(*lab.command(1, ["ss", "-tinH", "state", "established"]))
        found = re.search(r"\b(bbr|cubic|reno)\b.*\bbytes_sent:\d", shown)
        if found:
            return found[1]
        time.sleep(0.1)
    return "no connection"


def test_on_a_long_path_bbr_stays() -> None:
    with netlab.Lab(2, delay_ms=5) as lab:
        start(lab)
        assert first_control(lab) == "bbr"


def test_on_a_short_path_cubic_takes_the_place_of_bbr() -> None:
    found: list[str] = []
    for _ in range(10):  # where a busy machine answered late the path looked long
        with netlab.Lab(2) as lab:
            start(lab)
            found.append(first_control(lab))
        if found[-1] == "cubic":
            return
    raise AssertionError(f"no connection took cubic: {found}")


@pytest.mark.parametrize(
    ("wanted", "then"), [("reno", "reno"), ("host", "bbr"), ("cubic", "cubic")]
)
def test_the_environment_decides_otherwise(wanted: str, then: str) -> None:
    with netlab.Lab(2) as lab:
        start(lab, SOLO_CONGESTION=wanted)
        assert first_control(lab) == then
