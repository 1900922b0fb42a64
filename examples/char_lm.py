"""Train a byte-level transformer on CPython's own library source: an ordinary DDP script.

    torchrun --nproc-per-node 2 examples/char_lm.py --steps 400

Nothing here knows of anything but PyTorch. ``--metrics FILE`` appends one JSON object per line:
training loss every few steps, validation loss every ``--eval_every`` steps and at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import pathlib
import sysconfig
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CONTEXT = 128


def library_bytes(part: str) -> Tensor:
    """The standard library's source as one uint8 tensor; every tenth file is for validation."""
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    chosen = []
    for path in sorted(root.rglob("*.py")):
        name = str(path.relative_to(root))
        if "site-packages" in name:
            continue
        held_out = hashlib.sha256(name.encode()).digest()[0] < 26
        if held_out == (part == "validation"):
            chosen.append(path.read_bytes())
    return torch.frombuffer(bytearray(b"".join(chosen)), dtype=torch.uint8)


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Consecutive windows of CONTEXT bytes, each with the bytes that follow."""

    def __init__(self, text: Tensor) -> None:
        self.text = text

    def __len__(self) -> int:
        return (len(self.text) - 1) // CONTEXT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * CONTEXT
        window = self.text[start : start + CONTEXT + 1].long()
        return window[:-1], window[1:]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_a, self.norm_b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm_a(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_b(x))))


class CharLM(nn.Module):
    def __init__(self, width: int, layers: int, heads: int = 4) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.places = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.bytes.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.bytes(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


def learning_rate(step: int, args: argparse.Namespace) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    if step < args.warmup:
        return (step + 1) / args.warmup
    done = min(1.0, (step - args.warmup) / max(1, args.steps - args.warmup))
    return 0.55 + 0.45 * math.cos(math.pi * done)


@torch.no_grad()
def validation_loss(model: nn.Module, text: Tensor, windows: int = 256) -> float:
    """Mean loss in nats per byte over windows spread evenly over the held-out files."""
    data = Windows(text)
    picks = torch.linspace(0, len(data) - 1, windows).long().tolist()
    model.eval()
    total = 0.0
    for start in range(0, windows, 32):
        x, y = zip(*(data[i] for i in picks[start : start + 32]), strict=True)
        logits = model(torch.stack(x))
        total += F.cross_entropy(logits.flatten(0, 1), torch.stack(y).flatten(), reduction="sum")
    model.train()
    return float(total) / (windows * CONTEXT)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=8, help="windows per rank and step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=40)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eval_every", type=int, default=100)
    parser.add_argument("--log_every", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0, help="stop after this long (0: never)")
    parser.add_argument("--metrics", type=pathlib.Path)
    return parser.parse_args()


class Metrics:
    """One JSON object per line, from rank 0 alone."""

    def __init__(self, path: pathlib.Path | None, rank: int) -> None:
        self.file = path.open("a", buffering=1) if path and rank == 0 else None

    def write(self, **fields: float) -> None:
        if self.file:
            self.file.write(json.dumps({"time": time.time(), **fields}) + "\n")


def main() -> None:
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(CharLM(args.width, args.layers))
    held_out = library_bytes("validation")
    data = Windows(library_bytes("train"))
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, args))
    metrics = Metrics(args.metrics, rank)
    begun = time.monotonic()
    step, epoch, stop = 0, 0, False
    while step < args.steps and not stop:
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            if step % args.log_every == 0:
                metrics.write(step=step, loss=loss.item(), tokens=step * args.batch * CONTEXT)
                if rank == 0:
                    print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)
            if step % args.eval_every == 0 and rank == 0:
                value = validation_loss(model.module, held_out)
                metrics.write(step=step, validation=value)
                print(f"step {step:5d}  validation loss {value:.4f}", flush=True)
            stop = bool(args.seconds) and time.monotonic() - begun > args.seconds
            if step == args.steps or stop:
                break
        epoch += 1
    seconds = time.monotonic() - begun
    dist.barrier()
    dist.destroy_process_group()
    value = validation_loss(model.module, held_out)
    metrics.write(step=step, validation=value, seconds=seconds, final=1)
    if rank == 0:
        print(f"done: {step} steps in {seconds:.1f} s, validation loss {value:.4f}", flush=True)


if __name__ == "__main__":
    main()
