"""The benchmark's network: nodes in namespaces with the rate and the delay that were asked for."""

import json
import sys

import pytest

from benchmarks import netlab

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(netlab.why_not() is not None, reason=str(netlab.why_not())),
]

SERVER = """
import socket, sys
server = socket.create_server((sys.argv[1], 5000))
print("listening", flush=True)
while True:
    peer, _ = server.accept()
    with peer:
        while data := peer.recv(1 << 20):
            if len(data) == 1:
                peer.sendall(data)
        peer.close()
"""
CLIENT = """
import json, socket, sys, time
peer = socket.create_connection((sys.argv[1], 5000))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times = []
for _ in range(5):
    begun = time.monotonic()
    peer.sendall(b"x")
    peer.recv(1)
    times.append(time.monotonic() - begun)
size = int(sys.argv[2])
begun = time.monotonic()
peer.sendall(bytes(size))
peer.shutdown(socket.SHUT_WR)
peer.recv(1)
print(json.dumps({"rtt": min(times), "rate": size * 8 / (time.monotonic() - begun)}))
"""

FLOOD = """
import socket, sys
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print("sending", flush=True)
while True:
    for host in sys.argv[1:]:
        out.sendto(bytes(8000), (host, 9))
"""


def serve(lab: netlab.Lab) -> None:
    server = lab.popen(1, [sys.executable, "-c", SERVER, lab.address(1)], stdout=-1)
    assert server.stdout and server.stdout.readline() == "listening\n"


def ask(lab: netlab.Lab, size: int) -> dict[str, float]:
    client = lab.popen(0, [sys.executable, "-c", CLIENT, lab.address(1), str(size)], stdout=-1)
    shown, _ = client.communicate(timeout=60)
    return json.loads(shown)


def measure(lab: netlab.Lab, size: int) -> dict[str, float]:
    serve(lab)
    return ask(lab, size)


def test_a_shaped_link_carries_its_rate_and_no_more() -> None:
    with netlab.Lab(2, rate_mbit=100) as lab:
        got = measure(lab, 12_500_000)
        assert 0.5e8 < got["rate"] < 1.1e8
        assert lab.traffic(0)[0] > 12_500_000


def test_a_distant_link_has_its_delay_both_ways() -> None:
    with netlab.Lab(3, rate_mbit=200, delay_ms=20) as lab:
        assert 0.040 <= measure(lab, 1_000_000)["rtt"] < 0.4


def test_what_waits_at_a_full_line_keeps_nobody_elses_packets_back() -> None:
    with netlab.Lab(3, rate_mbit=100, delay_ms=5, queue_ms=400) as lab:
        # Half of it goes to the measured server's line, which is half free for node 0.
        flood = lab.popen(
            2, [sys.executable, "-c", FLOOD, lab.address(1), lab.address(0)], stdout=-1
        )
        assert flood.stdout and flood.stdout.readline() == "sending\n"
        assert 0.010 <= measure(lab, 1000)["rtt"] < 0.2


def test_one_connection_may_fare_worse_and_holds_up_no_other() -> None:
    with netlab.Lab(2, rate_mbit=100, delay_ms=5, bad_mbit=1) as lab:
        serve(lab)
        # The second to have carried 1 MiB is the bad one: its other half then takes 4 s.
        first, bad, third = [ask(lab, 1_500_000)["rate"] for _ in range(3)]
        assert bad < 4e6 < min(first, third)


def test_nothing_is_left_when_a_lab_closes() -> None:
    with netlab.Lab(2, rate_mbit=10) as lab:
        name = lab.name(0)
    assert name not in netlab.sh("ip", "netns", "list")
