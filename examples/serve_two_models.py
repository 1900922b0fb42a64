"""Two models in one process, each with its own share of memory, checked before it is read.

    python examples/serve_two_models.py

The second model does not fit its share: the error says what is needed and what is allowed.
It is mapped instead, which takes no memory of its own, and both answer side by side.
"""

from __future__ import annotations

import concurrent.futures
import pathlib
import tempfile

import torch

import solo

SIZE = 512
LIMITS = {"small": "4MiB", "large": "8MiB"}


def make_model(layers: int) -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(SIZE, SIZE) for _ in range(layers)))


def serve(path: pathlib.Path, layers: int, limit: str) -> torch.nn.Module:
    """A model on meta, then its weights within the limit, else left in the file."""
    with torch.device("meta"):
        model = make_model(layers)
    try:
        solo.load_into(model, path, memory_limit=limit)
        print(f"{path.stem}: loaded within {limit}")
    except solo.CheckpointError as error:
        print(error)
        model.load_state_dict(solo.load(path, mode="mmap"), assign=True)
        print(f"{path.stem}: mapped; its pages belong to the page cache")
    return model


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        models = []
        for (name, limit), layers in zip(LIMITS.items(), (2, 12), strict=True):
            path = pathlib.Path(home) / f"{name}.pt"
            solo.save(make_model(layers).state_dict(), path)
            models.append(serve(path, layers, limit))

        requests = [torch.randn(4, SIZE) for _ in range(8)]
        with torch.no_grad(), concurrent.futures.ThreadPoolExecutor() as pool:
            answers = [list(pool.map(model, requests)) for model in models]
        for name, of_model in zip(LIMITS, answers, strict=True):
            print(
                f"{name}: answered {len(of_model)} requests, the last {tuple(of_model[-1].shape)}"
            )


if __name__ == "__main__":
    main()
