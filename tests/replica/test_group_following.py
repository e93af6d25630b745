"""A group that follows a ref is at one version at every safe point, comes to the newest, and goes around bad ones."""

import time

import pytest
import torch
import torch.distributed as dist

import deltavc
from deltavc.errors import GroupBroken, LayoutMismatch, PeerFailed, UnknownRef
from tests.faults import faulty
from tests.replica.ranks import Rank, ends_of, in_ranks
from tests.replica.samples import line_of, small_state
from tests.states import copied, stepped
from tests.test_faults import opened

SIZE = 3
EVERY = 0.02
PATIENCE = 3.0


@pytest.fixture
def line(tmp_path):
    """A repository with one version, and its state by id."""
    with line_of(tmp_path / "repo", 1) as (repo, versions):
        yield repo.url, versions


class Following(Rank):
    """A rank that follows main from the first version. `trainer` is there on rank 0."""

    def __init__(self, rank, url, versions, timeout=PATIENCE, store=None):
        super().__init__(rank, SIZE, url, versions, timeout)
        self.versions = dict(versions)
        self.trainer = deltavc.open(url, db="sqlite://") if rank == 0 else None
        if store is not None:
            self._repo = opened(store)
        self.heard = []

    def __enter__(self):
        super().__enter__()
        self.follower = self.group.follow("main" if self.rank == 0 else "", every=EVERY, on_error=self.heard.append)
        return self

    def commits(self, state, **told):
        """Have rank 0 commit a state, and all know it by the version's id."""
        box = [self.trainer.commit(state, **told).id if self.trainer else None]
        dist.broadcast_object_list(box)
        self.versions[box[0]] = copied(state)
        return box[0]

    def until(self, true, seconds=30):
        """Come to safe points, at which all are at one version, until all agree that something is so."""
        deadline = time.monotonic() + seconds
        met = []
        while True:
            applied = self.follower.safe_point()
            if applied is not None:
                assert applied.version == self.group.version
                assert self.is_at(applied.version)
                met.append(applied.version)
            at = [None] * SIZE
            dist.all_gather_object(at, (self.group.version, bool(true())))
            assert len({version for version, _ in at}) == 1
            if all(so for _, so in at):
                return met
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def comes_to(self, version):
        return self.until(lambda: self.group.version == version)


def forwards_and_back(rank, url, versions):
    with Following(rank, url, versions) as here:
        first = here.group.version
        state = stepped(here.versions[first], 1, 0.05)
        second = here.commits(state, step=1)
        assert here.comes_to(second) == [second]
        third = here.commits(stepped(state, 2, 0.05), step=2)
        here.comes_to(third)
        if here.trainer:
            here.trainer.rollback("main", to="step:0", reason="worse")
        assert here.comes_to(first)[-1] == first
        here.group.move(second)  # by hand; it goes its own way when the ref moves next
        for _ in range(20):
            assert here.follower.safe_point() is None
        fourth = here.commits(stepped(state, 3, 0.05), step=1)
        here.comes_to(fourth)
        here.group.verify()
        assert here.heard == []
        assert here.follower.error is None
        assert isinstance(ends_of(here.group.follow), RuntimeError)
        here.follower.close()
        assert not here.follower.running
        assert here.follower.safe_point() is None
        with here.group.follow(every=EVERY) as again:
            assert again.running
        error = ends_of(lambda: here.group.follow("no such branch"))
        return here.told, type(error), [first, second, third, first, second, fourth]


def test_a_group_goes_with_the_ref_forwards_and_back_and_is_at_one_version_at_every_safe_point(line):
    for rank, (told, error, expected) in enumerate(in_ranks(SIZE, forwards_and_back, *line)):
        assert told == expected[1:]
        assert error is (UnknownRef if rank == 0 else PeerFailed)


def around_a_bad_one(rank, url, versions):
    with Following(rank, url, versions) as here:
        here.commits({"other": torch.zeros(3)})
        here.until(lambda: here.heard)
        good = here.commits(stepped(small_state(), 1, 0.05))
        here.comes_to(good)
        assert here.follower.error is None
        refused = here.heard[:]
        if here.trainer:
            here.trainer.branch("other", good)
            here.trainer.delete_branch("main")
        here.until(lambda: not here.follower.running)
        return [type(error) for error in refused], type(here.follower.error), str(here.follower.error)


def test_a_version_that_cannot_be_reached_is_passed_over_and_the_end_of_the_branch_is_told_everywhere(line):
    for rank, (refused, end, words) in enumerate(in_ranks(SIZE, around_a_bad_one, *line)):
        assert refused == [LayoutMismatch]
        assert end is (UnknownRef if rank == 0 else PeerFailed)
        assert "main" in words


def with_an_outage(rank, url, versions):
    store = faulty(url)
    with Following(rank, url, versions, store=store) as here:
        if rank == 1:
            with store.down("before"):
                version = here.commits(stepped(small_state(), 1, 0.05))
                here.until(lambda: here.heard)
        else:
            version = here.commits(stepped(small_state(), 1, 0.05))
            here.until(lambda: here.heard)
        here.comes_to(version)
        return [getattr(error, "failure", error.kind) for error in here.heard]


def test_a_version_that_a_rank_cannot_read_for_now_is_tried_again(line):
    for kinds in in_ranks(SIZE, with_an_outage, *line):
        assert set(kinds) == {"store_unavailable"}


def left_alone(rank, url, versions, victim):
    with Following(rank, url, versions) as here:
        second = here.commits(stepped(small_state(), 1, 0.05))
        here.comes_to(second)
        dist.barrier()
        if rank == victim:
            return None
        begin = time.monotonic()
        error = None
        while error is None and time.monotonic() < begin + 3 * PATIENCE:
            error = ends_of(here.follower.safe_point)
        with here.group.reading() as version:
            assert here.is_at(version)
        return version == second, type(error), here.follower.running, time.monotonic() - begin


def test_when_rank_0_comes_to_no_safe_point_the_others_say_so_and_serve_on(line):
    for found in in_ranks(SIZE, left_alone, *line, 0)[1:]:
        assert found[:3] == (True, GroupBroken, False)
        assert found[3] < 2 * PATIENCE
