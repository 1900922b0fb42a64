"""Blocks of tensors in contiguous runs, against torch's own slices."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from solo._load.boxes import Box, whole


@st.composite
def blocks(draw: st.DrawFn) -> tuple[tuple[int, ...], Box, Box]:
    """The sizes of a tensor, and two blocks of it."""
    sizes = tuple(draw(st.lists(st.integers(1, 5), max_size=4)))

    def block() -> Box:
        offsets = tuple(draw(st.integers(0, size - 1)) for size in sizes)
        parts = tuple(
            draw(st.integers(1, size - at)) for size, at in zip(sizes, offsets, strict=True)
        )
        return Box(offsets, parts)

    return sizes, block(), block()


@given(blocks())
@settings(max_examples=300, deadline=None)
def test_runs_copy_what_two_blocks_share(case: tuple[tuple[int, ...], Box, Box]) -> None:
    sizes, source, target = case
    tensor = torch.arange(math.prod(sizes)).reshape(sizes)
    held = source.of(tensor).contiguous().flatten()
    wanted = torch.full((math.prod(target.sizes),), -1)
    common = source.common(target)
    if common is not None:
        runs = list(common.runs(source, target))
        assert len(runs) == max(1, common.run_count(source, target))
        for at, to, count in runs:
            assert (wanted[to : to + count] == -1).all()  # each element once
            wanted[to : to + count] = held[at : at + count]
    marked = torch.full(sizes, -1)
    source.of(marked).copy_(source.of(tensor))
    assert torch.equal(wanted.reshape(target.sizes), target.of(marked))


def test_a_block_that_is_whole_is_one_run() -> None:
    box = whole((3, 4, 5))
    assert list(box.runs(box, box)) == [(0, 0, 60)]
    rows = Box((1, 0, 0), (2, 4, 5))
    assert list(rows.runs(box, rows)) == [(20, 0, 40)]
    assert whole(()).run_count(whole(()), whole(())) == 1
