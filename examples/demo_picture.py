"""The demo's picture: loss of each node and of DDP over time, with what happened marked."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

MARKED = ("joined", "left", "lost", "alone")
Rows = Sequence[Mapping[str, Any]]


def draw(
    path: pathlib.Path,
    nodes: Mapping[str, Rows],
    ddp: Rows,
    events: Rows,
    text_of: Callable[[dict[str, Any]], str],
) -> None:
    """Write the picture to ``path``: above the nodes over seconds, below validation over tokens."""
    figure, (above, below) = plt.subplots(2, 1, figsize=(10, 8), constrained_layout=True)
    zero = min(rows[0]["time"] for rows in nodes.values() if rows)
    for name, rows in nodes.items():
        losses = [(row["time"] - zero, row["loss"]) for row in rows if "loss" in row]
        if losses:
            above.plot(*zip(*losses, strict=True), label=name, linewidth=1.2)
    marked = [event for event in events if event["event"] in MARKED and event["time"] > zero]
    end = max(row["time"] for rows in nodes.values() for row in rows) - zero
    for index, event in enumerate(marked):
        at = event["time"] - zero
        side = {"xytext": (3, 0)} if at < 0.7 * end else {"xytext": (-3, 0), "ha": "right"}
        above.axvline(at, color="0.6", linewidth=0.8, linestyle="--")
        above.annotate(
            text_of(dict(event))[:40].rstrip(" :"), (at, 0.97 - 0.06 * (index % 5)), fontsize=7,
            xycoords=("data", "axes fraction"), textcoords="offset points", **side,
        )  # fmt: skip
    above.set(xlabel="seconds", ylabel="training loss, nats per byte", title="nodes come and go")
    above.legend(loc="lower left")
    for name, rows in (("solo, node 0", nodes["node 0"]), ("plain DDP", ddp)):
        points = [(row["step"], row["validation"]) for row in rows if "validation" in row]
        below.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
    below.set(xlabel="steps of one rank", ylabel="validation loss, nats per byte")
    below.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)
