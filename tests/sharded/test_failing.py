"""A commit of many ranks happens on all of them or on none, wherever one of them fails, is late or dies."""

import os
import signal
import time

import pytest
import torch.distributed as dist

import deltavc
from deltavc import landing, packing
from deltavc.errors import CommitInDoubt, GroupBroken, PeerFailed
from deltavc.lineage.records import ref_prefix
from deltavc.lineage.refs import Refs
from deltavc.packing import Packs
from deltavc.ranks.council import Call
from deltavc.ranks.exchange import Exchange
from deltavc.sharded import outcome
from deltavc.sharded.commit import Part
from tests.faults import WRITES, faulty
from tests.replica.ranks import DIED, ends_of, fresh, in_ranks
from tests.replica.samples import small_state
from tests.sharded import parts
from tests.states import same, stepped
from tests.test_faults import opened

SIZE = 3
PATIENCE = 4.0
START = 60.0


@pytest.fixture
def repo(tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        yield repo


def state_at(step):
    state = small_state()
    for number in range(step):
        state = stepped(state, number + 1, 0.05)
    return state


class Rank:
    """A rank with a writer at step 0, which was committed with more patience: processes that start are slow."""

    def __init__(self, rank, url, timeout=PATIENCE, store=None, place=None):
        self.rank = rank
        self.repo = deltavc.open(url, **(place or {"db": "sqlite://"})) if store is None else opened(store)
        self.writer = self.repo.writer("main", group=dist.group.WORLD, timeout=START)
        self.first = self.commit(0).id
        if timeout != START:
            self.writer.close()
            self.writer = self.repo.writer("main", group=dist.group.WORLD, timeout=timeout)

    def commit(self, step):
        return self.writer.commit(parts.by_rows(self.rank, SIZE, state_at(step)), step=step)

    def report(self, error=None):
        """Where the rank is, and how its last call ended."""
        return self.writer.version, getattr(error, "kind", error and type(error).__name__), str(error)


def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def freeze():
    os.kill(os.getpid(), signal.SIGSTOP)


def at_step(step, end):
    """Let this process end at a step of its next commit."""
    vote, attend, decided, create, put = Call._vote, Call._attend, Call._decided, Refs.create, Packs._put

    def after(call, *args):
        call(*args)
        end()

    if step == "reading":
        packing.read = lambda *_, **__: end()
    elif step == "uploading":
        Packs._put = lambda *_: end()
    elif step == "uploaded":
        Packs._put = lambda *args: after(put, *args)
    elif step == "summing":
        Exchange.sum = lambda *_: end()
    elif step == "announced":
        Part.wait = lambda _: end()
    elif step == "voting":
        Call._vote = lambda call, *args: end() if call._final else vote(call, *args)
    elif step == "voted":
        Call._attend = lambda call, *args: end() if call._final else attend(call, *args)
        Call._decided = lambda call, *args: end() if call._final else decided(call, *args)
    elif step == "decided":
        landing.land = outcome.follow = lambda *_: end()
    elif step == "entry":
        Refs.create = lambda *args: after(create, *args)
    else:
        raise ValueError(step)


AFTER = ["decided", "entry"]


def ending(rank, url, step, victim, place=None):
    here = Rank(rank, url, place=place)
    if rank == victim:
        at_step(step, kill)
    begin = time.monotonic()
    found = here.report(ends_of(here.commit, 1))
    assert time.monotonic() - begin < 20
    assert ends_of(here.commit, 2) is not None
    assert here.report()[0] == found[0]
    return here.first, *found


def goes_on(repo, expected):
    """Whether the branch is at this step, whole, and is committed to from where it is."""
    assert repo.version("main").step == expected
    assert same(repo.checkout("main"), state_at(expected))
    assert not repo.fsck().problems
    repo.commit(state_at(5), step=5)
    assert same(repo.checkout("main"), state_at(5))


SOME = [
    *((step, 1, None) for step in ("reading", "summing")),
    *((step, 0, None) for step in AFTER),
    ("entry", 0, 0),
]
"""A step of a commit, the rank that dies there, and the rank that serves the process group's store, if any does."""

MORE = [
    *((step, 1, None) for step in ("uploading", "uploaded", "announced", "voting", "voted", "decided")),
    *((step, 0, None) for step in ("uploading", "announced", "voted")),
    *((step, 0, 0) for step in ("summing", "decided")),
]


@pytest.mark.parametrize(
    ("step", "victim", "host"), [*SOME, *(pytest.param(*each, marks=pytest.mark.long) for each in MORE)]
)
def test_ranks_that_survive_another_agree_with_the_branch(repo, step, victim, host):
    survive(repo, step, victim, host)


@pytest.mark.long
@pytest.mark.servers
@pytest.mark.parametrize(("step", "victim"), [("uploading", 1), ("uploaded", 1), ("summing", 2), ("entry", 0)])
def test_on_s3_and_postgresql_too_they_agree_with_the_branch(s3, postgres, step, victim):
    place = {"db": postgres.new_database(), "storage_options": s3.storage_options}
    with deltavc.init(s3.new_bucket(), **place) as repo:
        survive(repo, step, victim, None, place)


def survive(repo, step, victim, host, place=None):
    outcomes = in_ranks(SIZE, ending, repo.url, step, victim, place, host=host)
    assert outcomes[victim] == DIED
    firsts, versions, kinds, words = zip(*(found for found in outcomes if found != DIED), strict=True)
    head = repo.version("main")
    assert set(versions) == {head.id}
    if step != "voted":  # its vote may be the last one, which decides
        assert head.step == (1 if step in AFTER else 0)
    if head.step == 0:
        assert set(firsts) == {head.id}
        assert set(kinds) == {GroupBroken.kind}
        assert host is not None or all(f"without rank {victim}" in each for each in words)
    else:
        assert set(kinds) == {None}
    goes_on(repo, head.step)


def late(rank, url):
    here = Rank(rank, url)
    if rank == 1:
        time.sleep(2 * PATIENCE)
    begin = time.monotonic()
    missed = here.report(ends_of(here.commit, 1))
    took = time.monotonic() - begin
    if rank != 1:
        time.sleep(PATIENCE)
    return missed, took, here.commit(1).id, here.commit(2).id


def test_a_rank_that_is_late_stops_the_commit_and_the_next_one_is_made(repo):
    outcomes = in_ranks(SIZE, late, repo.url)
    for missed, took, *_ in outcomes:
        assert missed[1] == GroupBroken.kind
        assert "without rank 1" in missed[2]
        assert took < 3 * PATIENCE
    assert {found[2:] for found in outcomes} == {(repo.resolve("step:1"), repo.resolve("step:2"))}
    assert len(repo.log()) == 3
    goes_on(repo, 2)


def frozen(rank, url, pids):
    pids[rank] = os.getpid()
    here = Rank(rank, url)
    if rank == 0:
        create = Refs.create

        def freezing(*args):
            Refs.create = create
            freeze()
            return create(*args)

        Refs.create = freezing
    found = here.commit(1).id
    if rank == 1:
        os.kill(pids[0], signal.SIGCONT)
    time.sleep(0.5)
    return found, here.commit(2).id


def test_a_first_rank_that_freezes_before_the_entry_finds_it_made_when_it_thaws(repo):
    pids = fresh.Array("i", SIZE)
    outcomes = in_ranks(SIZE, frozen, repo.url, pids)
    assert set(outcomes) == {(repo.resolve("step:1"), repo.resolve("step:2"))}
    goes_on(repo, 2)


def in_doubt(rank, url, landed):
    store = faulty(url)
    here = Rank(rank, url, timeout=START, store=store)
    with store.down("after" if landed else "before", when=lambda key: key.startswith(ref_prefix("branches/main"))):
        error = ends_of(here.commit, 1)
    at = here.writer.version
    return error, at == here.first, here.commit(2).parents, here.first


@pytest.mark.parametrize("landed", [False, True], ids=["lost-request", "lost-response"])
def test_a_doubt_is_everybodys_and_is_settled_by_the_next_commit(repo, landed):
    for error, stays, parents, first in in_ranks(SIZE, in_doubt, repo.url, landed):
        assert isinstance(error, CommitInDoubt)
        assert stays
        assert parents == (error.version,)
        assert first != error.version
    assert [version.step for version in repo.log()] == [2, 1, 0]
    goes_on(repo, 2)


def store_fails(rank, url, nth, how):
    store = faulty(url)
    here = Rank(rank, url, timeout=START, store=store)
    if rank == 1:
        with store.failing(nth, how, WRITES) as fired:
            error = ends_of(here.commit, 1)
    else:
        fired, error = [], ends_of(here.commit, 1)
    committed = here.commit(2)
    return error, bool(fired), here.first, committed.parents


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_rank_whose_upload_fails_stops_all_and_the_next_commit_is_made(repo, how):
    outcomes = in_ranks(SIZE, store_fails, repo.url, 1, how)
    assert outcomes[1][1]  # it did fail
    for rank, (error, _, first, parents) in enumerate(outcomes):
        assert error.kind == ("store_unavailable" if rank == 1 else PeerFailed.kind)
        assert rank == 1 or (error.rank, error.failure) == (1, "store_unavailable")
        assert parents == (first,)
    goes_on(repo, 2)


def closed(rank, url):
    here = Rank(rank, url)
    here.writer.close()
    here.writer.close()
    return ends_of(here.commit, 1).kind


def test_a_closed_writer_says_so(repo):
    assert in_ranks(SIZE, closed, repo.url) == ["writer_closed"] * SIZE
