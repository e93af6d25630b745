"""An exception at any line of a rank's code leaves all ranks at one version, and all can go on together."""

import contextlib
import itertools
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch.distributed as dist

from deltavc.errors import DeltavcError
from deltavc.ranks import council as councils
from deltavc.ranks.council import Council
from deltavc.replica import group as groups
from deltavc.replica import live as live_version
from deltavc.replica import swaps
from deltavc.replica.opening_group import open_group
from deltavc.store.transfers import DEFAULT_MEMORY
from tests.replica.ranks import held_by
from tests.replica.samples import line_of
from tests.states import same

SOURCES = {module.__file__ for module in (councils, groups, live_version, swaps)}
SIZE = 2


class Interrupt(BaseException):
    """What is raised in the middle of everything."""


class Injector:
    """Raises at the nth line that the threads it is on run of the group's code, once it is armed."""

    def __init__(self, nth):
        self.left = nth
        self.armed = False
        self.where = None

    def trace(self, frame, event, _):
        if frame.f_code.co_filename not in SOURCES:
            return None
        if self.armed and event == "line":
            self.left -= 1
            if self.left == 0:
                self.armed = False
                self.where = f"{frame.f_code.co_name}:{frame.f_lineno}"
                raise Interrupt(self.where)
        return self.trace


@contextlib.contextmanager
def ranks(repo, version, state, injector, told):
    """The ranks of a group, as threads of this process; what the last one's own thread runs is traced."""
    store = dist.HashStore()
    parts = [held_by(rank, SIZE, state) for rank in range(SIZE)]

    def opened(rank):
        live, bindings = parts[rank]
        council = Council(dist.PrefixStore("group", store), rank, SIZE, 1.0)
        found = open_group(
            repo._access(DEFAULT_MEMORY), council, live, version, bindings, (), on_apply=told[rank].append
        )
        if rank == SIZE - 1:
            found._worker.submit(lambda: sys.settrace(injector.trace)).result()
        return found

    with ThreadPoolExecutor(SIZE) as pool:
        made = list(pool.map(opened, range(SIZE)))
        try:
            yield made, [live for live, _ in parts], partial(_on_all, pool, made)
        finally:
            for each in made:
                each.close()


def _on_all(pool, made, call):
    """How a call ended on each rank: what it returned or raised."""
    futures = [pool.submit(call, group) for group in made]
    return [future.exception() or future.result() for future in futures]


def go(group, version, injector):
    group.stage(version).wait()
    injector.armed = True
    return group.apply()


@pytest.mark.long
def test_an_exception_at_any_line_of_a_rank_leaves_all_at_one_version(tmp_path):
    reached = set()
    with line_of(tmp_path / "repo", 2) as (repo, versions):
        first, last = versions
        for nth in itertools.count(1):
            injector = Injector(nth)
            told = [[] for _ in range(SIZE)]
            with ranks(repo, first, versions[first], injector, told) as (made, live, every):
                ended = every(partial(go, version=last, injector=injector))
                injector.armed = False
                served = set()
                for rank, group in enumerate(made):
                    with contextlib.suppress(DeltavcError), group.reading() as version:
                        served.add(version)
                        assert same(live[rank], held_by(rank, SIZE, versions[version])[0]), injector.where
                        assert not told[rank] or told[rank][-1].version == version, injector.where
                assert len(served) <= 1, (injector.where, ended)
                assert made[0].state != "unusable", injector.where
                ended = every(lambda group: group.move(first, allow_long_pause=True))
                for rank, group in enumerate(made):
                    assert group.version == first, (injector.where, ended)
                    assert same(live[rank], held_by(rank, SIZE, versions[first])[0])
            if injector.where is None:
                break
            reached.add(injector.where)
    assert len(reached) > 60
