"""Processes stopped past the grace, right before every moment at which something takes effect, and resumed.

    stopped ── a day and more goes by ── others commit, expire and collect, twice ── resumed

What was stopped must publish nothing that clean-up has deleted, and delete nothing that others have come to need.
"""

import itertools
import signal
import time

import pytest

import deltavc
from tests.breaking.boundaries import Child
from tests.breaking.operations import OPERATIONS, commit
from tests.breaking.tally import count
from tests.breaking.template import template_on_disk
from tests.breaking.whole import check, compare, lineage, without_weights
from tests.upkeep.stores import state_at

GRACE = 2
"""Seconds, by the settings, so that a process can be stopped for longer by its own clock too."""

STOPPED = [name for name in OPERATIONS if name not in ("policy", "repair", "delete")]

pytestmark = pytest.mark.usefixtures("clocked")


def run(tell, name, url):
    with deltavc.open(url) as repo:
        try:
            OPERATIONS[name].run(repo)
            tell("done")
        except deltavc.DeltavcError as error:
            tell(error.kind)


def clean_up(url, store):
    """What a day of others does."""
    store.wait(hours=30)
    with deltavc.open(url, "sqlite://") as other:
        commit(other, 12, "others", parents=["side"])
        other.expire()
        other.gc()
    store.wait(hours=30)
    with deltavc.open(url, "sqlite://") as other:
        other.expire()
        other.gc()


@pytest.mark.parametrize("every", [13, pytest.param(2, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
@pytest.mark.parametrize("name", STOPPED)
def test_what_is_stopped_past_the_grace_at_any_moment_publishes_nothing_that_is_gone(name, every, tmp_path, directory):
    made = template_on_disk(name, directory)
    for nth in itertools.count(1 + len(name) % min(4, every), every):
        store = made.copy(tmp_path / str(nth))
        with deltavc.open(store.url) as repo:
            repo.set_policy(deltavc.Policy(keep_last=2, grace_seconds=GRACE))
        child = Child(nth, signal.SIGSTOP, store.url, run, name, store.url)
        count(stops=child.stopped, **{"commits" if name.startswith("commit") else "operations": 1})
        stopped = child.stopped
        if stopped:
            began = time.monotonic()
            clean_up(store.url, store)
            if "/refs/" in child.moment:  # about to publish: it asks no clock but its own any more
                time.sleep(max(0, GRACE / 2 + 0.2 - (time.monotonic() - began)))
            child.resume()
        told = child.told()
        check_heads(store, made, told)
        if not stopped:
            break


def check_heads(store, made, told):
    """The repository is whole, and branches and tags are where they were or where the operation moves them."""
    with deltavc.open(store.url, "sqlite://") as repo:
        check(repo)
        found = lineage(repo)
        branches = {name: step for name, step in found.branches.items() if name != "others"}
        assert branches in (made.before.branches, made.after.branches), told
        assert found.tags in (made.before.tags, made.after.tags)
        heads = {*found.branches.values(), *found.tags.values()}
        without = without_weights(repo)
        count(lost=len(without & heads))
        assert not without & heads
        commit(repo, 30)
        repo.expire()
        store.wait(hours=30)
    with deltavc.open(store.url, "sqlite://") as repo:
        repo.gc()
        check(repo)
        compare(repo.checkout(), state_at(30))
