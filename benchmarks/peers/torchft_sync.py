"""torchft's LocalSGD or DiLoCo on a model of linear layers: seconds of each sync, and of gaps.

Run by bench_sync and bench_recover, one process a replica, beside a lighthouse:

    LIGHTHOUSE=http://localhost:PORT REPLICA=0 python torchft_sync.py --rule diloco --mib 61.7

Prints one JSON object a sync: when it ended, how long it took, the step and the participants;
and the seconds of ordinary steps.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torchft import Manager, ProcessGroupGloo
from torchft.local_sgd import DiLoCo, LocalSGD


def model_of(mib: float) -> nn.Sequential:
    """Linear layers of together ``mib`` MiB of fp32 parameters."""
    width = 512 if mib > 4 else 128
    count = max(1, round(mib * 2**20 / 4 / (width * width)))
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rule", choices=["localsgd", "diloco"], default="diloco")
    parser.add_argument("--mib", type=float, default=1.1)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--syncs", type=int, default=10)
    parser.add_argument("--step_ms", type=float, default=1)
    return parser.parse_args()


def main() -> None:
    args = options()
    torch.set_num_threads(1)
    replica = os.environ["REPLICA"]
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    model = model_of(args.mib)
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    seconds = datetime.timedelta(seconds=10)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=seconds),
        load_state_dict=lambda state: model.load_state_dict(state["model"]),
        state_dict=lambda: {"model": model.state_dict()},
        min_replica_size=1,
        use_async_quorum=args.rule == "localsgd",
        timeout=seconds,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=os.environ["LIGHTHOUSE"],
        replica_id=f"replica_{replica}",
    )
    if args.rule == "diloco":
        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        sync = DiLoCo(manager, [model], inner, outer, sync_every=args.every)
    else:
        sync = LocalSGD(manager, model, inner, sync_every=args.every)
    gradients = [torch.full_like(p, 1e-4) for p in model.parameters()]
    done, steps, longest, last = 0, 0, 0.0, time.monotonic()
    with sync:
        while done < args.syncs:
            time.sleep(args.step_ms / 1e3)
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient.clone()
            before = manager.current_step()
            begun = time.monotonic()
            inner.step()
            now = time.monotonic()
            longest = max(longest, now - last)
            last = now
            steps += 1
            if manager.current_step() == before and steps % args.every == args.every // 4:
                print(json.dumps({"ordinary": now - begun}), flush=True)
            if manager.current_step() != before or now - begun > 0.5:
                done += manager.current_step() != before
                shown = {
                    "at": time.time(),
                    "seconds": now - begun,
                    "step": manager.current_step(),
                    "participants": manager.num_participants(),
                    "longest_gap": longest,
                }
                print(json.dumps(shown), flush=True)
                longest = 0.0
    threading.Timer(2, lambda: os._exit(0)).start()
    manager.shutdown(wait=False)
    sys.exit(0)


if __name__ == "__main__":
    main()
