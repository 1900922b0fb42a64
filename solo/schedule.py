"""The sync interval by step: ``"100"``, or stages such as ``"0:1,500:16,5000:100"``."""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass

from solo.errors import InvalidArgument

INTERVAL_MAX = 1_000_000_000


@dataclass(frozen=True)
class Schedule:
    """Steps between merges, by the step of the job at which the interval begins.

    Attributes:
        starts: first step of each stage; the first is 0, ascending.
        intervals: steps between merges from there on, each >= 1.
    """

    starts: tuple[int, ...]
    intervals: tuple[int, ...]

    @classmethod
    def parse(cls, text: str | int) -> Schedule:
        """Read ``"100"`` or ``"0:1,500:16"``.

        Raises:
            InvalidArgument: it is malformed; the text says what is wrong and how to write it.
        """
        stages = [part.strip() for part in str(text).split(",")]
        if len(stages) == 1 and ":" not in stages[0]:
            return cls((0,), (_count(stages[0], text, least=1),))
        starts: list[int] = []
        intervals: list[int] = []
        for stage in stages:
            start, colon, interval = stage.partition(":")
            if not colon:
                raise _fault(text, f"the stage {stage!r} has no STEP: before its interval")
            starts.append(_count(start, text, least=0))
            intervals.append(_count(interval, text, least=1))
        if starts[0] != 0:
            raise _fault(text, f"the first stage begins at step {starts[0]}, not at 0")
        if any(later <= earlier for earlier, later in itertools.pairwise(starts)):
            raise _fault(text, "its stages are not in ascending order of steps")
        return cls(tuple(starts), tuple(intervals))

    def at(self, step: int) -> int:
        """The interval that begins at ``step`` of the job.

        It is cut short where the next stage begins, so that a long interval before a short
        one does not swallow it.
        """
        stage = bisect.bisect_right(self.starts, step) - 1
        interval = self.intervals[stage]
        if stage + 1 < len(self.starts):
            interval = min(interval, self.starts[stage + 1] - step)
        return interval

    def __str__(self) -> str:
        if len(self.starts) == 1:
            return str(self.intervals[0])
        return ",".join(f"{s}:{i}" for s, i in zip(self.starts, self.intervals, strict=True))


def _count(word: str, text: str | int, *, least: int) -> int:
    try:
        value = int(word.strip())
    except ValueError:
        raise _fault(text, f"{word.strip()!r} is not a whole number") from None
    if not least <= value <= INTERVAL_MAX:
        raise _fault(text, f"{value} is not between {least} and {INTERVAL_MAX}")
    return value


def _fault(text: str | int, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"sync interval {str(text)!r}: {why}. Write a number of optimizer steps such as 100, "
        "or stages STEP:INTERVAL such as 0:1,500:16,5000:100"
    )
