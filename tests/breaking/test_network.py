"""A trainer, clean-up and a sampler behind a network that loses, cuts, refuses and delays what passes through it."""

import time

import pytest

import deltavc
from deltavc.errors import CommitInDoubt, StoreUnavailable
from tests.breaking.operations import TIGHT, files_at, grow
from tests.breaking.tally import count
from tests.breaking.whole import check, lineage, without_weights
from tests.store.faults import FaultProxy
from tests.upkeep.stores import NO_SNAPSHOTS, state_at

pytestmark = pytest.mark.servers

FAULTS = ("503", "reset", "lost", "cut", "slow")


def again(call):
    """Do something again that the network did not let happen, as people would. What it gives."""
    for _ in range(10):
        try:
            return call()
        except (StoreUnavailable, CommitInDoubt):
            time.sleep(0.1)
    return call()


@pytest.mark.parametrize(
    ("every", "num_steps"), [(6, 4), pytest.param(3, 12, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_what_is_done_through_a_network_that_fails_is_done_once_and_exactly(s3, every, num_steps, tmp_path):
    url = s3.new_bucket() + "/repo"
    with FaultProxy(s3.endpoint) as proxy:
        proxy.fail_every(every, *FAULTS)
        behind = {"db": f"sqlite:///{tmp_path}/behind.db", "storage_options": proxy.options(s3.storage_options)}
        deltavc.init(url, **behind).close()
        with deltavc.open(url, **behind) as repo:
            grow(repo)
            with repo.writer(snapshots=NO_SNAPSHOTS) as writer:
                for step in range(100, 100 + num_steps):
                    again(lambda step=step: commit_once(repo, writer, step))
            again(lambda: repo.compact(TIGHT))
            again(repo.expire)
            again(repo.gc)
            again(repo.reindex)
            again(lambda: check(repo))
            behind_it = lineage(repo)
            count(commits=num_steps + 9, operations=5, requests=proxy.num_failed)
    with deltavc.open(url, "sqlite://", s3.storage_options) as repo:
        check(repo)
        assert lineage(repo) == behind_it
        assert behind_it.branches == {"main": 99 + num_steps, "side": 11}
        assert behind_it.steps == {0, 1, 2, 3, 4, 5, 10, 11, *range(100, 100 + num_steps)}
        assert not without_weights(repo) & {4, 11, 98 + num_steps, 99 + num_steps}
        assert [version.step for version in repo.log("main", limit=num_steps)] == [*range(100, 100 + num_steps)][::-1]


def commit_once(repo, writer, step):
    """Commit a step unless it is there: a doubt is settled by the writer at its next call."""
    writer.move("main")
    if repo.version("main").step != step:
        writer.commit(state_at(step), step=step, files=files_at(step))
