"""Hooks into ``torch.utils.data``: who trains on what, and when a pass over the data ends.

In an elastic job each node's torch world is its own, so a sampler would give every node the
same data. ``DistributedSampler`` and ``RandomSampler`` are split over the members anew each
time a pass begins; a pass that has begun keeps its split.
"""

from __future__ import annotations

import copy
import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, RandomSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from solo import takeover

# Frameworks that fetch a batch ahead of the one they train on: StopIteration, or (Lightning,
# when the length is known) the last batch, comes one step before the pass has ended.
_AHEAD = ("accelerate", "lightning", "pytorch_lightning")
_COUNTING = ("lightning", "pytorch_lightning")


def install() -> None:
    """Install the hooks; once per process."""
    _wrap(DataLoader, "__iter__", _loader_iter)
    _wrap(_BaseDataLoaderIter, "__next__", _iterator_next)
    _wrap(DistributedSampler, "__iter__", _distributed_iter)
    _wrap(DistributedSampler, "__len__", _distributed_len)
    _split_random(RandomSampler)


def _wrap(owner: type, name: str, around: Callable[..., Any]) -> None:
    """Replace a method by ``around(original, self, ...)``."""
    original = vars(owner)[name]

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(original, self, *args, **kwargs)

    setattr(owner, name, method)


# ---- passes over a DataLoader ----------------------------------------------------------------


@dataclass
class _Pass:
    """One pass over a DataLoader."""

    steps_before: int  # of any optimizer, when it began
    batches: int = 0
    samples: int = 0  # counted as trained on


def _loader_iter(original: Callable[..., Any], loader: DataLoader[Any]) -> Any:
    follow = takeover.active()
    if follow is None:
        return original(loader)
    follow.join_for_pass(all_ranks=False)
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if isinstance(sampler, RandomSampler):
        _split_random(type(sampler))
    iterator = original(loader)
    iterator._solo_pass = _Pass(follow.step_calls)
    return iterator


def _iterator_next(original: Callable[..., Any], iterator: Any) -> Any:
    follow = takeover.active()
    begun: _Pass | None = getattr(iterator, "_solo_pass", None)
    if follow is None or begun is None:
        return original(iterator)
    try:
        batch = original(iterator)
    except StopIteration:
        _pass_ended(follow, begun)
        raise
    begun.batches += 1
    begun.samples += follow.fetched.add(batch)
    trained = follow.step_calls > begun.steps_before and follow.config.sync_at_epoch_end
    if trained and begun.batches == _length(iterator) and _caller() in _COUNTING:
        follow.merge_after_step = True
    return batch


def _pass_ended(follow: takeover.Takeover, begun: _Pass) -> None:
    if follow.step_calls == begun.steps_before:
        follow.fetched.drop(begun.samples)
    elif not follow.config.sync_at_epoch_end:
        return
    elif _caller(4) in _AHEAD:
        follow.merge_after_step = True
    else:
        follow.merge_now()


def _length(iterator: Any) -> int:
    try:
        return len(iterator)
    except TypeError:
        return -1  # an IterableDataset that does not know


def _caller(depth: int = 3) -> str:
    """The package that asked the iterator for its next batch."""
    frame = sys._getframe(depth)  # over _iterator_next and the wrapper
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


# ---- samplers --------------------------------------------------------------------------------


def _distributed_iter(original: Callable[..., Any], sampler: Any) -> Any:
    follow = takeover.active()
    if follow is not None:
        follow.join_for_pass(all_ranks=True)
    return original(_split(sampler))


def _distributed_len(original: Callable[..., int], sampler: Any) -> int:
    """Scripts plan their learning rates by it before they train: then by the nodes expected."""
    return original(_split(sampler))


def _split(sampler: Any) -> Any:
    """A copy that splits over all ranks of all members; the sampler itself if there is no need."""
    follow = takeover.active()
    shards = follow.shards() if follow is not None else None
    if follow is None or shards is None or sampler.num_replicas != follow.config.world_size:
        return sampler
    _, _, first, total = shards
    if total == sampler.num_replicas:
        return sampler
    wide = copy.copy(sampler)
    DistributedSampler.__init__(
        wide,
        sampler.dataset,
        num_replicas=total,
        rank=first + sampler.rank,
        shuffle=sampler.shuffle,
        seed=sampler.seed,
        drop_last=sampler.drop_last,
    )
    wide.epoch = sampler.epoch
    return wide


_split_classes: set[type] = set()


def _split_random(kind: type) -> None:
    """Split a RandomSampler, or a subclass with an ``__iter__`` of its own, over the members."""
    if kind in _split_classes:
        return
    _split_classes.add(kind)
    if "__iter__" in vars(kind):
        _wrap(kind, "__iter__", _random_iter)
    if "__len__" in vars(kind):
        _wrap(kind, "__len__", _random_len)


def _random_iter(original: Callable[..., Iterator[int]], sampler: Any) -> Iterator[int]:
    share = _share(sampler.num_samples)
    if share is None:
        return original(sampler)
    slot, members, count = share
    return itertools.islice(original(sampler), slot, count * members, members)


def _random_len(original: Callable[..., int], sampler: Any) -> int:
    count = original(sampler)
    share = _share(count)
    return count if share is None else share[2]


def _share(count: int) -> tuple[int, int, int] | None:
    """(slot, members, samples for each member); None: not split."""
    follow = takeover.active()
    shards = follow.shards() if follow is not None else None
    if shards is None or shards[1] == 1 or count < shards[1]:
        return None
    return shards[0], shards[1], count // shards[1]
