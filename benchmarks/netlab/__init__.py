"""Nodes in network namespaces with shaped links, on one machine.

    with netlab.Lab(nodes=2, rate_mbit=100, delay_ms=25) as lab:
        process = lab.popen(0, ["program", lab.address(1)])

Each node is a namespace of its own with the address 10.77.0.k. Without delay its link is a veth
pair at a bridge with a token bucket each way; with delay or loss a small relay in user space
carries the packets (its threads share the cores with the test: publish ratios). Traffic never
leaves the namespaces. Needs root; ``why_not()`` says in words what is missing.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import types
from collections.abc import Mapping, Sequence

HERE = pathlib.Path(__file__).parent
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-O2")
BUILD = HERE.parent.parent / "build" / "netlab"


def why_not() -> str | None:
    """None when a lab can be made here, else the reason in words."""
    if os.geteuid() != 0:
        return "network namespaces need root; run as root, or use the loopback benchmarks"
    if not shutil.which("ip") or not shutil.which("tc"):
        return "the programs ip and tc are missing: install iproute2"
    probe = f"solo-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode:
        return f"no network namespace can be made here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], capture_output=True)
    return None


def sh(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Lab:
    """Namespaces ``nodes`` long, joined at ``rate_mbit`` each way (0: unshaped).

    Args:
        nodes: how many, 1 to 32.
        rate_mbit: Mbit/s of each node's link, each way.
        delay_ms: one-way delay in ms; above 0 the relay is used.
        loss_percent: packets lost of 100; above 0 the relay is used.
        queue_ms: how long a packet may wait at a link before it is dropped.
        bad_mbit: of one TCP connection, the second to have carried 1 MiB (0: as the others); the
            relay is used.
        bad_loss_percent: packets that this connection loses of 100 beside the others' losses; the
            relay is used.
    """

    def __init__(
        self,
        nodes: int,
        *,
        rate_mbit: float = 0,
        delay_ms: float = 0,
        loss_percent: float = 0,
        queue_ms: float = 100,
        bad_mbit: float = 0,
        bad_loss_percent: float = 0,
    ) -> None:
        self.count = nodes
        self.rate_mbit = rate_mbit
        self.delay_ms = delay_ms
        self.loss_percent = loss_percent
        self.queue_ms = queue_ms
        self.bad_mbit = bad_mbit
        self.bad_loss_percent = bad_loss_percent
        self.tag = f"solo{os.getpid() % 100000}"
        self.bridge = f"br{self.tag}"[:15]
        self.relay: subprocess.Popen[str] | None = None
        self.processes: list[subprocess.Popen[str]] = []

    def name(self, node: int) -> str:
        return f"{self.tag}n{node}"

    def address(self, node: int) -> str:
        return f"10.77.0.{node + 1}"

    def __enter__(self) -> Lab:
        try:
            for node in range(self.count):
                sh("ip", "netns", "add", self.name(node))
                sh("ip", "-n", self.name(node), "link", "set", "lo", "up")
            if self.delay_ms or self.loss_percent or self.bad_mbit or self.bad_loss_percent:
                self._join_by_relay()
            else:
                self._join_by_bridge()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End what was started here and remove every namespace; may be called twice."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        if self.relay:
            self.relay.kill()
            self.relay.wait()
        for node in range(self.count):
            subprocess.run(["ip", "netns", "del", self.name(node)], capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)

    def _join_by_bridge(self) -> None:
        # The bridge lives in the first node's namespace, so that nothing shows outside.
        home = self.name(0)
        sh("ip", "-n", home, "link", "add", self.bridge, "type", "bridge")
        sh("ip", "-n", home, "link", "set", self.bridge, "up")
        for node in range(self.count):
            space, port = self.name(node), f"port{node}"
            sh("ip", "-n", home, "link", "add", port, "type", "veth", "peer", "name", "solo0",
               "netns", space)  # fmt: skip
            sh("ip", "-n", home, "link", "set", port, "master", self.bridge, "up")
            sh("ip", "-n", space, "addr", "add", f"{self.address(node)}/24", "dev", "solo0")
            sh("ip", "-n", space, "link", "set", "solo0", "up")
            if self.rate_mbit:
                self._shape(space, "solo0")
                self._shape(home, port)

    def _shape(self, space: str, device: str) -> None:
        # A bucket must hold what a timer tick lets through: rate / 250 Hz, with room.
        burst = max(16_000, int(self.rate_mbit * 1e6 / 8 / 250 * 2))
        sh("tc", "-n", space, "qdisc", "add", "dev", device, "root", "tbf",
           "rate", f"{self.rate_mbit}mbit", "burst", str(burst),
           "latency", f"{self.queue_ms}ms")  # fmt: skip

    def _join_by_relay(self) -> None:
        program = BUILD / "relay"
        BUILD.mkdir(parents=True, exist_ok=True)
        source = HERE / "relay.c"
        if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
            sh(os.environ.get("CC", "cc"), *FLAGS, str(source), "-o", str(program))
        figures = [self.rate_mbit or 100_000, self.delay_ms, self.queue_ms, self.loss_percent,
                   self.bad_mbit, self.bad_loss_percent]  # fmt: skip
        names = [self.name(node) for node in range(self.count)]
        self.relay = subprocess.Popen(
            [program, *map(str, figures), *names], stdout=subprocess.PIPE, text=True
        )
        assert self.relay.stdout
        if self.relay.stdout.readline().strip() != "ready":
            raise RuntimeError("the relay did not start; its message is above")
        for node in range(self.count):
            space = self.name(node)
            sh("ip", "-n", space, "addr", "add", f"{self.address(node)}/24", "dev", "solo0")
            sh("ip", "-n", space, "link", "set", "solo0", "mtu", "9000", "txqueuelen", "10000",
               "up")  # fmt: skip

    def command(self, node: int, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` inside node ``node``."""
        return ["ip", "netns", "exec", self.name(node), *command]

    def popen(
        self,
        node: int,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        **rest: object,
    ) -> subprocess.Popen[str]:
        """Start ``command`` in a node; killed when the lab closes."""
        whole = {**os.environ, **(env or {})}
        process = subprocess.Popen(self.command(node, command), env=whole, text=True, **rest)  # type: ignore[call-overload]
        self.processes.append(process)
        return process

    def traffic(self, node: int) -> tuple[int, int]:
        """Bytes that node ``node`` has sent and received, headers included."""
        base = "/sys/class/net/solo0/statistics"
        shown = sh(*self.command(node, ["cat", f"{base}/tx_bytes", f"{base}/rx_bytes"])).split()
        return int(shown[0]), int(shown[1])
