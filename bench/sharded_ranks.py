"""Ranks to measure: processes of gloo groups that count what they ask for while they commit and check out."""

from __future__ import annotations

import collections
import contextlib
import functools
import multiprocessing
import os
import socket
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sqlalchemy import event
from sqlalchemy.engine import Engine

import deltavc
from deltavc import opening
from deltavc.lanes import lanes
from deltavc.ranks import exchange
from deltavc.ranks.clerk import Clerk

DENSITY = 0.005
"""Of the elements that change in a step."""

PATIENCE = 300

KINDS = ("large", "many")
"""Of states: one of many bytes, one of many tensors. Each has a repository of its own."""


# --- counters, on each rank ---


class Counters:
    """What this process has asked for since it was started."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()

    def install(self) -> None:
        """Count from now on."""
        counts = self.counts
        open_store = opening.open_store
        opening.open_store = lambda *args: CountingStore(open_store(*args), counts)
        event.listen(Engine, "before_cursor_execute", lambda *_: counts.update(statements=1))
        ask, gloo = Clerk.ask, exchange.ProcessGroupGloo

        def asking(clerk: Clerk, question: Any, *args: Any) -> Any:
            if getattr(question, "__name__", "") == "connect":  # which needs the store itself
                return ask(clerk, question, *args)
            return ask(clerk, lambda store: question(CountingKeys(store, counts)), *args)

        class CountingGloo(gloo):  # type: ignore[misc, valid-type]
            def allreduce(self, *args: Any) -> Any:
                counts.update(sums=1)
                return super().allreduce(*args)

            def allgather(self, *args: Any) -> Any:
                counts.update(gathers=1)
                return super().allgather(*args)

        Clerk.ask = asking  # type: ignore[method-assign, assignment]
        exchange.ProcessGroupGloo = CountingGloo


class CountingKeys:
    """Passes everything on to the process group's store, and counts requests."""

    def __init__(self, store: Any, counts: collections.Counter[str]) -> None:
        self._store = store
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        self._counts.update(questions=1)
        return getattr(self._store, name)


class CountingStore:
    """Passes everything on to an object store, and counts requests and their bytes."""

    def __init__(self, store: Any, counts: collections.Counter[str]) -> None:
        self._store = store
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return functools.partial(self._call, name, found) if name in ("get", "put", "create", "stat", "list") else found

    def _call(self, name: str, call: Any, *args: Any) -> Any:
        result = call(*args)
        self._counts[{"create": "put"}.get(name, name)] += 1
        if args[0].startswith("packs/"):
            self._counts[f"{name}_packs"] += 1
        if name == "get":
            self._counts["get_bytes"] += len(result)
        elif name in ("put", "create"):
            self._counts["put_bytes"] += len(args[1])
        return result


def received(store_port: int) -> dict[str, int]:
    """Bytes that came in on this process's TCP connections, by whether they lead to the process group's store."""
    found = {"store_bytes": 0, "gloo_bytes": 0}
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as each:
                if each.family not in (socket.AF_INET, socket.AF_INET6) or each.type != socket.SOCK_STREAM:
                    continue
                port = each.getpeername()[1]
                info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # closed meanwhile, or not connected
            continue
        (nbytes,) = struct.unpack_from("Q", info, 128)  # tcpi_bytes_received of linux/tcp.h
        found["store_bytes" if port == store_port else "gloo_bytes"] += nbytes
    return found


# --- the work of a rank ---


class Rank:
    """One of the ranks: a state by rows, and what it is asked to do with it."""

    def __init__(self, rank: int, size: int, port: int, url: str) -> None:
        self.rank, self.size, self.port = rank, size, port
        self.counters = Counters()
        self.counters.install()
        database = None if rank == 0 else "none"
        self.repos = {kind: deltavc.open(f"{url}-{kind}", db=database) for kind in KINDS}
        self.writer: Any = None

    def start(self, kind: str, nbytes: int, tensors: int) -> dict[str, float]:
        """Make a state, and commit it for the first time."""
        self.state = rows_of(self.rank, self.size, nbytes, tensors)
        if self.writer is not None:
            self.writer.close()
        self.repo = self.repos[kind]
        self.writer = self.repo.writer("main", group=dist.group.WORLD, timeout=PATIENCE)
        self.number = 0
        return self.commit()

    def commit(self) -> dict[str, float]:
        """Change the state, and commit it."""
        if self.number:
            step(self.state, self.number)
        self.number += 1
        return self._measured(lambda: self.writer.commit(self.state, step=self.number).timings["exchange"])

    def checkout(self, ref: str) -> dict[str, float]:
        """Check a version out into what this rank holds."""
        into = {
            name: deltavc.Shard(torch.zeros_like(part.tensor), part.global_shape, part.offsets)
            for name, part in self.state.items()
        }
        group = dist.group.WORLD
        return self._measured(
            lambda: self.repo.checkout(ref, into=into, group=group, timeout=PATIENCE).timings["exchange"]
        )

    def _measured(self, work: Any) -> dict[str, float]:
        dist.barrier()
        before, counts = received(self.port), self.counters.counts.copy()
        wall, cpu = time.perf_counter(), time.process_time()
        exchanged = work()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        time.sleep(0.05)  # the hint at the newest ref entry is written beside it
        after = received(self.port)
        found = {name: self.counters.counts[name] - counts[name] for name in self.counters.counts}
        return {"wall": wall, "cpu": cpu, "exchange": exchanged} | found | {k: after[k] - before[k] for k in after}


def rows_of(rank: int, size: int, nbytes: int, tensors: int) -> dict[str, deltavc.Shard]:
    """A rank's rows of bf16 weights; the same whole for any number of ranks that divides 8."""
    columns = 1024 if nbytes // tensors >= 1 << 14 else 16
    count = max(8, nbytes // 2 // tensors // columns // 8 * 8)
    each = count // size
    state = {}
    for number in range(tensors):
        parts = []
        for part in range(8 // size):
            generator = torch.Generator().manual_seed(number * 8 + rank * (8 // size) + part)
            parts.append((torch.randn(count // 8, columns, generator=generator) * 0.02).bfloat16())
        state[f"model.layers.{number:03d}.mlp.weight"] = deltavc.Shard(
            torch.cat(parts), (count, columns), (rank * each, 0)
        )
    return state


def step(state: dict[str, deltavc.Shard], number: int) -> None:
    """Move a share of the elements by one ULP; other ones each time."""
    for part in state.values():
        bits = lanes(part.tensor).view(-1)
        every = min(round(1 / DENSITY), len(bits))
        bits[number * 37 % every :: every] += 1 if number % 2 else -1


def serve(rank: int, size: int, port: int, url: str, pipe: Any) -> None:
    """Do what is asked for, until nothing more is."""
    torch.set_num_threads(1)
    patience = timedelta(seconds=PATIENCE)
    store = dist.TCPStore("127.0.0.1", port, None, False, patience)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=patience)
    here = Rank(rank, size, port, url)
    while (asked := pipe.recv()) is not None:
        pipe.send(getattr(here, asked[0])(*asked[1:]))
    os._exit(0)


# --- groups of ranks ---


class Group:
    """Processes that are the ranks of one group."""

    def __init__(self, size: int, folder: Path) -> None:
        fresh = multiprocessing.get_context("forkserver")
        fresh.set_forkserver_preload(["deltavc.sharded.opening", "deltavc.kernels.cpu", "sqlalchemy"])
        url = str(folder / f"{size}")
        for kind in KINDS:
            deltavc.init(f"{url}-{kind}").close()
        self.size = size
        self._store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        self._pipes = []
        self._processes = []
        for rank in range(size):
            here, there = fresh.Pipe()
            process = fresh.Process(target=serve, args=(rank, size, self._store.port, url, there), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def ask(self, *what: Any) -> list[dict[str, float]]:
        """Have all ranks do something; what each measured."""
        for pipe in self._pipes:
            pipe.send(what)
        return [pipe.recv() for pipe in self._pipes]

    def end(self) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # it has failed, and said so
                pipe.send(None)
        for process in self._processes:
            process.join(10)
            process.kill()


@contextmanager
def groups(sizes: Sequence[int]) -> Iterator[list[Group]]:
    """Groups of so many ranks each, which live until the block ends."""
    with tempfile.TemporaryDirectory(prefix="deltavc-bench-") as name:
        found = [Group(size, Path(name)) for size in sizes]
        try:
            yield found
        finally:
            for group in found:
                group.end()
