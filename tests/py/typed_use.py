"""What a user writes, for mypy --strict alone (tools/lint.py): the package's types fit together."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

import solo
from solo import CheckpointError, IntervalSync, SoloError, TimedOut
from solo.load import Placeholder, Problem


def train(model: nn.Module, batches: Iterable[torch.Tensor]) -> int:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sync = IntervalSync(model, optimizer, interval="0:1,500:16", outer="avg", codec="int8")
    try:
        for batch in batches:
            model(batch)
            optimizer.step()
            sync.step(samples=len(batch))
    except TimedOut as error:
        print(error.code)
    sync.close()
    ranks = [member.node_rank for member in solo.members()]
    return sum(ranks) + solo.version() + solo.job_step()


def shard(data: list[torch.Tensor]) -> list[torch.Tensor]:
    dist.init_process_group("solo", pg_options=solo.Options(sync_interval=100))
    solo.init()
    return data[solo.data_rank() :: solo.data_world_size()]


def load(model: nn.Module, path: str) -> list[Problem]:
    try:
        tensor: torch.Tensor = solo.load(path, device_map={"": "cpu"}, mode="mmap")["weight"]
        solo.load.materialize(tensor)
        solo.load_into(model, path)
        print(solo.inspect(path).text(), solo.load.inspect(path).text())
        solo.save({"weight": tensor}, path)
    except CheckpointError as error:
        return list(error.problems)
    except SoloError as error:
        print(error, solo.load.Placeholder is Placeholder)
    return []
