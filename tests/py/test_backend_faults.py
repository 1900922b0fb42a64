"""What must not hang and must not pass silently: ranks that die, stop, fork or give up."""

from __future__ import annotations

import datetime
import os
import pathlib
import signal
import socket
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run

HOSTS = pytest.mark.parametrize("hosts", [1, 2, 3], ids=["shm", "mixed", "tcp"])


def fails(call: Any, *words: str) -> str:
    """The text of the error that ``call`` raises; every one of ``words`` is in it."""
    with pytest.raises(RuntimeError) as caught:
        call()
    text = str(caught.value)
    assert all(word in text for word in words), text
    return text


@HOSTS
@pytest.mark.parametrize("count", [1, 100, 3000000])
def test_a_killed_rank_is_named_and_nobody_waits_for_the_timeout(hosts: int, count: int) -> None:
    def body(rank: int, world: int) -> None:
        tensor = torch.ones(count)
        for _ in range(3):
            dist.all_reduce(tensor)
        if rank == 2:
            time.sleep(0.1)  # the others wait inside the call
            os.kill(os.getpid(), signal.SIGKILL)
        fails(lambda: dist.all_reduce(tensor), "rank 2")
        fails(lambda: dist.broadcast(tensor, 0), "rank 2")  # and so for every later call
        fails(lambda: dist.all_reduce(tensor, async_op=True).wait(), "rank 2")

    run(body, 3, timeout_s=300, hosts=hosts, lost=(2,))


@HOSTS
def test_a_rank_killed_between_calls_is_noticed_at_the_next(hosts: int) -> None:
    def body(rank: int, world: int) -> None:
        dist.all_reduce(torch.ones(5))
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.3)
        fails(lambda: dist.all_gather([torch.ones(1)] * 3, torch.ones(1)), "rank 0")

    run(body, 3, timeout_s=300, hosts=hosts, lost=(0,))


@HOSTS
def test_a_rank_killed_amid_asynchronous_calls_fails_all_of_them(hosts: int) -> None:
    def body(rank: int, world: int) -> None:
        tensors = [torch.ones(300000) for _ in range(20)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        if rank == 1:
            works[2].wait()
            os.kill(os.getpid(), signal.SIGKILL)
        outcomes = []
        for work, tensor in zip(works, tensors, strict=True):
            try:
                work.wait()
                outcomes.append(True)
                assert (tensor == 3).all()  # success is never a lie
            except RuntimeError as error:
                outcomes.append(False)
                assert "rank 1" in str(error)
        assert outcomes == sorted(outcomes, reverse=True)
        last = dist.all_reduce
        fails(lambda: last(torch.ones(1)), "rank 1")
        failed = [work for work, done in zip(works, outcomes, strict=True) if not done]
        for work in failed:
            assert work.is_completed()
            assert not work.is_success()
            fails(lambda work=work: work.get_future().wait(), "rank 1")

    run(body, 3, timeout_s=300, hosts=hosts, lost=(1,))


@HOSTS
def test_messages_fail_when_the_other_rank_is_killed(hosts: int) -> None:
    def body(rank: int, world: int) -> None:
        dist.barrier()
        if rank == 0:
            works = [dist.irecv(torch.empty(10), 2), dist.irecv(torch.empty(1000000), 2)]
            works.append(dist.isend(torch.empty(1000000), 2))
            for work in works:
                assert work is not None
                fails(work.wait, "rank 2")
            fails(lambda: dist.recv(torch.empty(3)), "rank 2")  # from any
        elif rank == 2:
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)

    run(body, 3, timeout_s=300, hosts=hosts, lost=(2,))


@HOSTS
def test_a_stopped_rank_releases_the_others_at_the_timeout(hosts: int) -> None:
    def body(rank: int, world: int) -> None:
        dist.all_reduce(torch.ones(5))
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        fails(lambda: dist.all_reduce(torch.ones(5)), "rank 1", "all_reduce", "Timed out")

    run(body, 3, timeout_s=1.5, hosts=hosts, lost=(1,))


@HOSTS
def test_a_receive_that_nobody_answers_times_out_alone(hosts: int) -> None:
    def body(rank: int, world: int) -> None:
        if rank == 0:
            fails(lambda: dist.recv(torch.empty(5), 1, tag=3), "rank 1", "Timed out")
        else:
            time.sleep(2.5)
        dist.barrier()

    run(body, 2, timeout_s=2, hosts=hosts)


def test_what_has_no_meaning_is_refused_before_anything_moves() -> None:
    def body(rank: int, world: int) -> None:
        fails(lambda: dist.all_reduce(torch.ones(3), op=dist.ReduceOp.BXOR), "BXOR", "float32")
        with pytest.raises(RuntimeError, match=r"(?i)sparse"):
            dist.broadcast(torch.eye(3).to_sparse(), 0)
        dist.barrier()  # the group is as good as before

    run(body, 2)


@HOSTS
def test_abort_from_another_thread_frees_everybody(hosts: int) -> None:
    def body(rank: int, world: int) -> None:
        dist.barrier()
        if rank == 2:
            time.sleep(1)  # comes late, to a group that is no more
        elif rank == 0:
            threading.Timer(0.2, dist.group.WORLD.abort).start()
        fails(dist.barrier, "abort")

    run(body, 3, timeout_s=60, hosts=hosts)


@HOSTS
def test_a_new_group_works_after_the_old_one_broke(hosts: int, tmp_path: pathlib.Path) -> None:
    store = (tmp_path / "second").as_uri()

    def body(rank: int, world: int) -> None:
        fails(lambda: dist.all_reduce(torch.ones(3 + rank)), "rank 0", "rank 1")
        dist.destroy_process_group()
        dist.init_process_group("solo", init_method=store, rank=rank, world_size=world)
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2, 2, 2]

    run(body, 2, hosts=hosts)


def test_a_forked_child_is_told_that_the_group_is_not_its_own() -> None:
    def body(rank: int, world: int) -> None:
        dist.all_reduce(torch.ones(1))
        child = os.fork()
        if child == 0:
            try:
                dist.all_reduce(torch.ones(1))
            except RuntimeError as error:
                os._exit(7 if "fork" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        dist.all_reduce(torch.ones(1))  # the parent's is as before

    run(body, 2)


def test_a_rank_that_never_comes_is_named_at_init() -> None:
    def body(rank: int, world: int) -> None:
        if rank == 1:
            time.sleep(4)  # new_group is not called
            return
        seconds = datetime.timedelta(seconds=1)
        fails(lambda: dist.new_group([0, 1], timeout=seconds), "rank 1", "did not come")

    run(body, 2)


def test_a_monitored_barrier_names_who_is_missing() -> None:
    def body(rank: int, world: int) -> None:
        dist.monitored_barrier()
        if rank == 0:
            call = lambda: dist.monitored_barrier(timeout=0.3, wait_all_ranks=True)  # noqa: E731
            fails(call, "1, 2")
        dist.barrier()
        dist.monitored_barrier(wait_all_ranks=True)

    run(body, 3)


def open_things() -> tuple[int, int, int]:
    """Descriptors, threads and mappings of this process."""
    here = pathlib.Path("/proc/self")
    maps = [line for line in (here / "maps").read_text().splitlines() if "memfd:solo" in line]
    return len(list((here / "fd").iterdir())), len(list((here / "task").iterdir())), len(maps)


@pytest.mark.parametrize(("hosts", "rounds"), [(1, 1000), (2, 100)], ids=["shm", "tcp"])
def test_groups_that_come_and_go_leak_nothing(hosts: int, rounds: int) -> None:
    def use_one(group: Any) -> None:
        dist.all_reduce(torch.ones(3), group=group)
        dist.all_reduce(torch.ones(3), group=group, async_op=True).wait()
        if dist.get_rank() == 0:
            dist.send(torch.ones(3), 1, group=group)
        else:
            dist.recv(torch.empty(3), 0, group=group)
        dist.barrier(group=group)
        dist.destroy_process_group(group)

    def body(rank: int, world: int) -> None:
        for _ in range(3):
            use_one(dist.new_group([0, 1]))
        time.sleep(0.2)  # threads of a closed group end by themselves
        before = open_things()
        for _ in range(rounds):
            use_one(dist.new_group([0, 1]))
        time.sleep(0.2)
        assert open_things() == before

    run(body, 2, timeout_s=60, hosts=hosts)


def test_nothing_is_left_when_all_ranks_are_killed() -> None:
    def names() -> set[str]:
        sockets = pathlib.Path("/proc/net/unix").read_text().split()
        return {name for name in sockets if name.startswith("@solo-")} | {
            str(path) for path in pathlib.Path("/dev/shm").iterdir()
        }

    before = names()

    def body(rank: int, world: int) -> None:
        dist.all_reduce(torch.ones(1000000))
        os.kill(os.getpid(), signal.SIGSTOP)

    run(body, 2, lost=(0, 1))
    assert names() <= before


@HOSTS
def test_a_timeout_tells_what_else_was_under_way(hosts: int) -> None:
    def body(rank: int, world: int) -> None:
        dist.barrier()
        if rank == 0:
            first = dist.all_reduce(torch.ones(7), async_op=True)
            dist.all_reduce(torch.ones(5), async_op=True)  # between hosts it has begun
            dist.broadcast(torch.ones(11), 1, async_op=True)
            time.sleep(0.3)  # so that its own end comes later
            other = dist.irecv(torch.empty(6), 1, tag=5)
            assert first is not None
            assert other is not None
            words = [
                "all_reduce #2 of 7 float32",
                "waiting for rank 1",
                "receive from rank 1 of 24",
            ]
            behind = "all_reduce #3 of 5 float32, SUM, broadcast #4 of 11 float32"
            fails(first.wait, *words, f"behind it wait {behind}")
        else:
            time.sleep(3)

    run(body, 2, timeout_s=1, hosts=hosts)


def test_a_wait_of_its_own_length_ends_and_the_call_goes_on() -> None:
    def body(rank: int, world: int) -> None:
        if rank == 1:
            time.sleep(1)
        tensor = torch.ones(5)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        if rank == 0:
            with pytest.raises(RuntimeError, match=r"(?i)timed out"):
                work.wait(datetime.timedelta(milliseconds=100))
            assert not work.is_completed()
        work.wait()
        assert tensor.tolist() == [2] * 5
        assert work.is_completed()

    run(body, 2, timeout_s=60)


@HOSTS
@pytest.mark.parametrize("way", ["exit", "raise"])
def test_a_rank_that_ends_without_a_word_is_named(hosts: int, way: str) -> None:
    def body(rank: int, world: int) -> None:
        dist.all_reduce(torch.ones(5))
        if rank == 1:
            os._exit(0 if way == "exit" else 1)
        fails(lambda: dist.all_reduce(torch.ones(5)), "rank 1")

    run(body, 3, timeout_s=300, hosts=hosts, lost=(1,))


def test_the_interface_is_chosen_by_name() -> None:
    def body(rank: int, world: int) -> None:
        for name in ("lo", "127.0.0.1", "^nosuch0"):
            os.environ["SOLO_SOCKET_IFNAME"] = name
            group = dist.new_group([0, 1])
            tensor = torch.ones(3)
            dist.all_reduce(tensor, group=group)
            assert tensor.tolist() == [2, 2, 2]
        os.environ["SOLO_SOCKET_IFNAME"] = "nosuch0"
        fails(lambda: dist.new_group([0, 1], timeout=datetime.timedelta(seconds=2)), "nosuch0")

    run(body, 2, hosts=2)


def listening_ports() -> list[int]:
    """TCP ports on which this process listens."""
    inodes = set()
    for path in pathlib.Path("/proc/self/fd").iterdir():
        if path.is_symlink() and (link := str(path.readlink())).startswith("socket:["):
            inodes.add(link[8:-1])
    ports = []
    for table in ("tcp", "tcp6"):
        for line in (pathlib.Path("/proc/self/net") / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.append(int(fields[1].rsplit(":", 1)[1], 16))
    return ports


def test_strangers_on_the_port_are_turned_away_and_nobody_notices() -> None:
    def body(rank: int, world: int) -> None:
        ports = listening_ports()
        assert ports
        words = [b"", bytes(64), b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096)]
        strangers = []
        for word in words * len(ports):
            stranger = socket.create_connection(("127.0.0.1", ports[len(strangers) % len(ports)]))
            stranger.sendall(word)
            stranger.settimeout(0.01)
            strangers.append((word, stranger))
        tensor = torch.ones(300000)
        dist.all_reduce(tensor)
        if rank == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
        assert (tensor == world).all()
        turned_away = 0
        for word, stranger in strangers:
            for _ in range(1000 if word else 0):  # a silent one is waited for longer
                dist.barrier()
                try:
                    if not stranger.recv(4096):
                        break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
            else:
                continue
            turned_away += 1
        assert turned_away == 3 * len(ports)

    run(body, 2, hosts=2, timeout_s=60)


def available_bytes() -> int:
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [1, 2], ids=["shm", "tcp"])
def test_tensors_of_more_than_two_to_the_31_elements(hosts: int) -> None:
    if available_bytes() < 9 << 30:
        pytest.skip("needs 9 GiB of free memory")

    def body(rank: int, world: int) -> None:
        count = 2**31 + 4099
        tensor = torch.zeros(count, dtype=torch.int8)
        places = [0, 2**31 - 1, 2**31, count - 1]
        tensor[places] = rank + 1
        dist.all_reduce(tensor)
        assert tensor[places].tolist() == [3] * 4
        assert int(tensor.count_nonzero()) == 4
        tensor[places] = rank + 5
        dist.broadcast(tensor, 1)
        assert tensor[places].tolist() == [6] * 4

    run(body, 2, hosts=hosts)
