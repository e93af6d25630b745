"""Ranks: real processes, each of which holds a part of a model, and may die.

outcomes = in_ranks(3, work, *args)     # work(rank, *args) in each process: what it returned, or DIED
"""

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
import time
import traceback
from datetime import timedelta
from multiprocessing import connection

import torch
import torch.distributed as dist

import deltavc
from deltavc.bindings import sharded
from deltavc.errors import DeltavcError
from tests.states import same

# A server that has imported everything forks the processes of these tests: they start at once, and single-threaded.
fresh = multiprocessing.get_context("forkserver")
fresh.set_forkserver_preload(["tests.replica.ranks", "tests.replica.warm"])

PATIENCE = 120
"""Seconds; what takes longer hangs."""

DIED = "died"


def in_ranks(size, work, *args, host=None):
    """Run work(rank, *args) in a process for each rank of a process group of gloo.

    Args:
        host: the rank that serves the store of the process group; None for a process that outlives them, as torchrun's.

    Returns:
        What each returned; DIED for one that ended without a word. Raises what one raised.
    """
    with contextlib.ExitStack() as stack:
        store = None
        if host is None:
            store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        port = _free_port() if store is None else store.port
        ends = []
        for rank in range(size):
            here, there = fresh.Pipe(duplex=False)
            process = fresh.Process(target=_main, args=(there, rank, size, port, host, work, args))
            process.start()
            stack.callback(_end, process)
            there.close()
            ends.append(here)
        return _heard(ends)


def held_by(rank, size, state):
    """What a rank holds of `small_state`, and its bindings.

    embed by rows, weight by columns, norm on all ranks, scale on the last one alone.
    """
    live = {
        "embed_rows": state["embed"].chunk(size)[rank].clone(),
        "weight_columns": state["weight"].chunk(size, 1)[rank].clone(),
        "norm": state["norm"].clone(),
    }
    if rank == size - 1:
        live["scale"] = state["scale"].clone()
    bindings = {
        "embed": sharded(live["embed_rows"], state["embed"].shape, 0, rank, size),
        "weight": sharded(live["weight_columns"], state["weight"].shape, 1, rank, size),
    }
    return live, bindings


class Rank:
    """A rank of a group, with a database of its own, at the first of some versions."""

    def __init__(self, rank, size, url, versions, timeout=20.0, **options):
        self.rank, self.size = rank, size
        self.versions = versions
        self.told = []
        self.live, self.bindings = held_by(rank, size, versions[next(iter(versions))])
        self._repo = deltavc.open(url, db="sqlite://")
        self._open = dict(bindings=self.bindings, timeout=timeout, **options)

    def hook(self, applied):
        self.told.append(applied.version)

    def __enter__(self):
        options = {"on_apply": lambda applied: self.hook(applied)} | self._open
        self.group = self._repo.replica_group(self.live, next(iter(self.versions)), **options)
        return self.group, self

    def __exit__(self, *_):
        self.group.close()
        self._repo.close()

    def is_at(self, version):
        """Whether the live tensors are what this rank holds of a version, bit for bit."""
        return same(self.live, held_by(self.rank, self.size, self.versions[version])[0])

    def report(self, error=None):
        """Where the rank is: the version it serves, or None; how a call ended; whether its weights and hook agree."""
        served = None
        with contextlib.suppress(DeltavcError), self.group.reading() as version:
            served = version
            assert self.is_at(version)
            assert not self.told or self.told[-1] == version
        return served, getattr(error, "kind", error and type(error).__name__), str(error)


def ends_of(call, *args):
    """How a call ended: the error, or None."""
    try:
        call(*args)
    except Exception as error:
        return error
    return None


@contextlib.contextmanager
def reading_all_the_time(group):
    """Note when (monotonic clock, the same in all processes) which version was read, over and over."""
    seen, stop = [], threading.Event()

    def read():
        while not stop.is_set():
            with contextlib.suppress(DeltavcError), group.reading() as version:
                seen.append((version, time.monotonic()))
            time.sleep(0)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield seen
    finally:
        stop.set()
        reader.join()


class _Raised:
    def __init__(self, trace):
        self.trace = trace


def _main(there, rank, size, port, host, work, args):
    torch.set_num_threads(1)
    patience = timedelta(seconds=PATIENCE)
    store = dist.TCPStore("127.0.0.1", port, None, rank == host, patience, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=patience)
    try:
        outcome = work(rank, *args)
    except BaseException:
        outcome = _Raised(f"on rank {rank}: {traceback.format_exc()}")
    there.send(outcome)
    if rank == host:
        signal.pause()  # the others may need the store still; the test ends this process
    os._exit(0)


def _heard(ends):
    """What every rank says, in whatever order they do."""
    outcomes = {}
    while len(outcomes) < len(ends):
        ready = connection.wait([end for end in ends if end not in outcomes], PATIENCE)
        assert ready, "a rank hangs"
        for end in ready:
            try:
                outcomes[end] = end.recv()
            except EOFError:
                outcomes[end] = DIED
            if isinstance(outcomes[end], _Raised):
                raise AssertionError(outcomes[end].trace)
    return [outcomes[end] for end in ends]


def _end(process):
    process.kill()
    process.join()


def _free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
