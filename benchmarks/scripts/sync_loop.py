"""A DDP script whose only work is its optimizer step: times each step, tells of the long ones.

Prints one JSON object for every step in which a merge may have happened (each ``--every``-th)
and for every gap between steps over 50 ms: when, the step, its seconds, the longest gap since
the last line. The first line has the seconds of one memcpy of the model, measured here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def model_of(mib: float) -> nn.Sequential:
    """Linear layers of together ``mib`` MiB of fp32 parameters."""
    width = 512 if mib > 4 else 128
    count = max(1, round(mib * 2**20 / 4 / (width * width)))
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))


def memcpy_seconds(count: int) -> float:
    """Median seconds of copying ``count`` fp32 values once, buffers touched before."""
    source, target = torch.ones(count), torch.zeros(count)
    times = []
    for _ in range(15):
        begun = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def say(**fields: float) -> None:
    print(json.dumps(fields), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=float, default=1.1)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--syncs", type=int, default=10)
    parser.add_argument("--step_ms", type=float, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model_of(args.mib))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    gradients = [torch.full_like(p, 1e-4) for p in model.parameters()]
    count = sum(p.numel() for p in model.parameters())
    say(memcpy=memcpy_seconds(count), bytes=4 * count)
    longest, last = 0.0, time.monotonic()
    for step in range(1, args.every * args.syncs + 1):
        time.sleep(args.step_ms / 1e3)
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        begun = time.monotonic()
        optimizer.step()
        now = time.monotonic()
        longest = max(longest, now - last)
        if step % args.every == 0 or now - last > 0.05:
            say(at=time.time(), step=step, seconds=now - begun, longest_gap=longest)
            longest = 0.0
        last = now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
