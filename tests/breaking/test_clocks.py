"""Clocks that are an hour wrong: each machine's against the store's, and against one another."""

import contextlib
import datetime
import itertools

import pytest

import deltavc
from deltavc import metadata
from deltavc.lineage import fields
from tests.breaking.operations import commit
from tests.breaking.tally import count
from tests.breaking.whole import check, without_weights
from tests.upkeep.stores import ClockedStore, opened


@contextlib.contextmanager
def machine(hours):
    """Act as a machine whose clock is wrong by this much."""

    class Wrong(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.now(tz) + datetime.timedelta(hours=hours)

    class Module:
        datetime = Wrong

        def __getattr__(self, name):
            return getattr(datetime, name)

    with pytest.MonkeyPatch.context() as patch:
        for module in (fields, metadata):
            patch.setattr(module, "datetime", Module())
        yield


@pytest.mark.parametrize("grace", [20 * 60, 24 * 3600], ids=["20min", "24h"])
@pytest.mark.parametrize(("store_ahead", "wrong"), [(0, (1, -1)), (1, (-1, 1)), (-1, (-1, 1))])
def test_machines_whose_clocks_are_an_hour_wrong_lose_nothing_and_keep_their_order(store_ahead, wrong, grace):
    store = ClockedStore()
    store.wait(hours=store_ahead)
    with opened(store) as one, opened(store) as other:
        one.set_policy(deltavc.Policy(keep_last=3, grace_seconds=grace))
        machines = itertools.cycle(zip((one, other), wrong, strict=True))
        for step, (repo, hours) in zip(range(8), machines, strict=False):
            with machine(hours):
                commit(repo, step)
                if step == 4:
                    repo.rollback("main", "main~1", "a test")
                    repo.tag("v1", "main~2")
            count(commits=1)
        with machine(wrong[0]):
            one.expire()
        with machine(wrong[1]):
            other.expire()
            other.gc()
        assert [version.step for version in one.log("main")] == [7, 6, 5, 3, 2, 1, 0]
        assert [entry.sequence for entry in one.reflog()] == list(range(9, 0, -1))
    store.wait(seconds=grace + 60)
    with opened(store) as repo:
        with machine(wrong[1]):
            repo.gc()
        check(repo)
        assert not without_weights(repo) & {7, 6, 5, 1}
        commit(repo, 9)


def test_a_clock_that_is_turned_an_hour_in_the_middle_of_a_commit_does_no_harm():
    for hours in (-1, 1):
        store = ClockedStore()
        with opened(store) as repo, repo.writer() as writer:
            commit(repo, 0)
            writer.move("main")
            for step in (1, 2, 3):
                store.wait(hours=hours)
                writer.commit(repo.checkout("main"), step=step)
                repo.gc()
        count(commits=4)
        with opened(store) as fresh:
            check(fresh)
            assert [version.step for version in fresh.log()] == [3, 2, 1, 0]
