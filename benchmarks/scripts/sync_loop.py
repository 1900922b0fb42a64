"""A DDP script whose only work is its optimizer step: times each step, tells of the long ones.

Prints one JSON object for every step in which a merge may have happened (each ``--every``-th)
and for every gap between steps over 50 ms: when, the step, its seconds, the longest gap since
the last line; and once an interval the seconds of an ordinary step. With ``--copies`` also those
of a memcpy of the model in the middle of each interval, by all nodes at about the same time, so
that all was measured under the same load. The last line says by how many steps
the parameters have moved: gradients are constant and equal on all nodes, so a step that was lost
is missing there.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RATE, GRADIENT = 2.0**-7, 2.0**-10  # a step is a whole number of the parameters' last digits


def first_values(model: nn.Module) -> torch.Tensor:
    return next(model.parameters()).detach().flatten()[:1024].double().clone()


def model_of(mib: float) -> nn.Sequential:
    """Linear layers of together ``mib`` MiB of fp32 parameters."""
    width = 512 if mib > 4 else 128
    count = max(1, round(mib * 2**20 / 4 / (width * width)))
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))


class Copies:
    """Times memcpys of ``count`` fp32 values between buffers that were touched before.

    Several in a row, of which the middle one counts: the other nodes' begin a little earlier or
    later, and are to be seen.
    """

    def __init__(self, count: int) -> None:
        self.source, self.target = torch.ones(count), torch.zeros(count)

    def seconds(self) -> float:
        took = []
        for _ in range(5):
            begun = time.perf_counter()
            self.target.copy_(self.source)
            took.append(time.perf_counter() - begun)
        return sorted(took)[2]


def say(**fields: float) -> None:
    print(json.dumps(fields), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=float, default=1.1)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--syncs", type=int, default=10)
    parser.add_argument("--step_ms", type=float, default=1)
    parser.add_argument("--copies", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)  # the same start on all nodes, so that moves can be compared
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model_of(args.mib))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    gradients = [torch.full_like(p, GRADIENT) for p in model.parameters()]
    count = sum(p.numel() for p in model.parameters())
    copies = Copies(count) if args.copies else None
    say(bytes=4 * count)
    start = first_values(model)
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
        if step % args.every == args.every // 4:
            say(ordinary=now - begun)
        if copies and step % args.every == args.every // 2:
            say(memcpy=copies.seconds())
    dist.destroy_process_group()
    say(moved=float((start - first_values(model)).median()) / (RATE * GRADIENT))


if __name__ == "__main__":
    main()
