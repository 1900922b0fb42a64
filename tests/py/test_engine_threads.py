"""solo._C.Engine by several threads at once: what is wrong raises, and nothing is freed twice."""

import math
import threading
from array import array
from collections.abc import Iterator

import pytest
from train_jobs import master

from solo import _C, errors

LAYOUT = [("weight", 4, _C.F32, _C.PARAM)]


class Node:
    def __init__(self, url: str) -> None:
        self.values = array("f", [1.0, 2.0, 3.0, 4.0])
        self.engine = _C.Engine(
            master_url=url, job_id="job", interval="1", outer="avg", codec="fp32", timeout_ms=10000
        )
        self.engine.attach(LAYOUT, [self.values.buffer_info()[0]])

    def submit(self) -> None:
        data = [self.values.buffer_info()[0]]
        self.engine.submit(data, self.values, samples=1, steps=1, lr_sum=0.0, final=False)


@pytest.fixture
def waits() -> Iterator[Node]:
    """A node whose merge waits for a second one that never comes."""
    with master(job_id="job") as url:
        node = Node(url)
        other = _C.Engine(master_url=url, job_id="job", node_rank=1, interval="1", outer="avg")
        values = array("f", [0.0] * 4)
        other.attach(LAYOUT, [values.buffer_info()[0]])
        while len(node.engine.members()) < 2:
            pass
        node.submit()
        yield node
        node.engine.close()
        other.close()


def test_only_one_thread_may_wait_for_a_merge(waits: Node) -> None:
    ended: list[BaseException] = []

    def wait() -> None:
        while not ended:
            try:
                waits.engine.wait(60.0)
            except errors.InUse:
                continue  # the other thread was looking just then
            except errors.SoloError as error:
                ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    with pytest.raises(errors.InUse):
        while waits.engine.wait(0.0) is None:
            pass
    waits.engine.close()
    thread.join()
    assert [type(error) for error in ended] == [errors.Closed]


def test_closing_ends_a_merge_that_nobody_waits_for(waits: Node) -> None:
    with pytest.raises(errors.Again):
        waits.submit()
    waits.engine.close()
    with pytest.raises(errors.Closed):
        waits.engine.wait(0.0)


@pytest.mark.parametrize("seconds", [0.0, -1.0, -math.inf, math.nan])
def test_a_wait_of_no_length_only_looks(waits: Node, seconds: float) -> None:
    assert waits.engine.wait(seconds) is None


def test_a_wait_without_end_ends_with_the_engine(waits: Node) -> None:
    ended: list[object] = []

    def wait() -> None:
        while not ended:
            try:
                ended.append(waits.engine.wait(math.inf))
            except errors.InUse:
                continue  # the other thread was looking just then
            except errors.SoloError as error:
                ended.append(type(error))

    thread = threading.Thread(target=wait)
    thread.start()
    with pytest.raises(errors.InUse):
        while not ended:
            waits.engine.wait(0.0)
    waits.engine.close()
    thread.join()
    assert ended == [errors.Closed]
