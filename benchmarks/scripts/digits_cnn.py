"""A small CNN with BatchNorm and SGD momentum on scikit-learn's digits: an ordinary DDP script.

1,437 images to train on, 360 to validate; prints and writes accuracy and loss of the last epoch.
"""

from __future__ import annotations

import argparse
import json
import pathlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def network() -> nn.Sequential:
    layers: list[nn.Module] = []
    for inside, outside, stride in ((1, 16, 1), (16, 32, 2), (32, 64, 2)):
        layers += [
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4, 10))


def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    return images, torch.tensor(data.target)


@torch.no_grad()
def validate(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    model.eval()
    logits = model(images)
    model.train()
    accuracy = (logits.argmax(1) == labels).float().mean()
    return float(F.cross_entropy(logits, labels)), float(accuracy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--metrics", type=pathlib.Path)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    images, labels = digits()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    train, held_out = order[:1437], order[1437:]
    data = TensorDataset(images[train], labels[train])
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    steps = args.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank == 0:
        loss, accuracy = validate(model.module, images[held_out], labels[held_out])
        print(f"done: loss {loss:.4f} accuracy {accuracy:.4f}", flush=True)
        if args.metrics:
            fields = {"final": 1, "validation": loss, "accuracy": accuracy}
            with args.metrics.open("a") as file:
                file.write(json.dumps(fields) + "\n")


if __name__ == "__main__":
    main()
