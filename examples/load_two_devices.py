"""A sharded checkpoint onto two devices: two GPUs if they are here, else the CPU and "meta".

python examples/load_two_devices.py
"""

from __future__ import annotations

import pathlib
import tempfile

import torch

import solo


def make_checkpoint(folder: pathlib.Path) -> None:
    """Six layers and a head in several safetensors files with an index, as on model hubs."""
    layers = {f"layers.{n}.weight": torch.full((256, 256), float(n)) for n in range(6)}
    state = {"embed.weight": torch.randn(1000, 256), **layers}
    state["head.weight"] = state["embed.weight"]  # tied
    solo.save(state, folder, shard_size="600KiB", format="safetensors")


def main() -> None:
    first, second = ("cuda:0", "cuda:1") if torch.cuda.device_count() > 1 else ("cpu", "meta")
    with tempfile.TemporaryDirectory() as home:
        folder = pathlib.Path(home)
        make_checkpoint(folder)
        print(solo.inspect(folder).text(limit=3))

        print("\nby name: the longest prefix wins, the empty one is the rest")
        state = solo.load(folder, device_map={"": first, "layers": second, "layers.0": first})
        for name, tensor in state.items():
            print(f"  {name:<18} {tensor.device}")
        assert state["head.weight"] is state["embed.weight"]

        print("\nby size: layers stay whole, each device takes what fits")
        state = solo.load(
            folder, device_map="auto", max_memory={first: "1.5MiB", second: "2MiB", "disk": "1GiB"}
        )
        for name, tensor in state.items():
            print(f"  {name:<18} {tensor.device}")


if __name__ == "__main__":
    main()
