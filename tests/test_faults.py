"""Every call of the store fails once, before it lands and after: a commit happens wholly or not at all."""

import contextlib
import itertools
import secrets
import threading

import pytest
import torch

import deltavc
from deltavc import opening
from deltavc.errors import (
    BranchMoved,
    CommitAbandoned,
    CommitInDoubt,
    DatabaseUnavailable,
    DeltavcError,
    StoreDenied,
    StoreFull,
    StoreUnavailable,
)
from deltavc.lineage import schema
from deltavc.lineage.database import open_database
from deltavc.lineage.index import Index
from deltavc.repo import Repo
from deltavc.store.objects import open_store
from deltavc.writer import WriterOptions
from tests.faults import WRITES, FaultyStore, failing_statements


def state_at(seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(40, 30, generator=generator).bfloat16(),
        "b": torch.randn(7, generator=generator),
        f"only.{seed % 2}": torch.full((3,), seed),
    }


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def repo():
    url = f"memory://faults-{secrets.token_hex(4)}"
    deltavc.init(url).close()
    store = FaultyStore(open_store(url))
    with opened(store) as repo:
        repo.store = store
        repo.again = lambda: deltavc.open(url)
        yield repo


def opened(store):
    """A repository on a store of our own."""
    repository_id = opening._read_marker(store)
    engine = open_database("sqlite://")
    schema.prepare(engine)
    return Repo(store, Index(engine, store, repository_id), repository_id)


def committed_steps(repo):
    """What a stranger with an empty database finds."""
    with repo.again() as fresh:
        found = {}
        for version in fresh.log("main"):
            assert same(fresh.checkout(version.id), state_at(version.step))
            found[version.step] = version.id
        return list(reversed(found))


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["commit", "commit_async"])
def test_a_commit_happens_wholly_or_not_at_all(repo, how, asynchronous):
    step = 0
    with repo.writer("main") as writer:
        writer.commit(state_at(0), step=0)
        expected = [0]
        for nth in itertools.count(1):
            step += 1
            with repo.store.failing(nth, how) as fired:
                try:
                    if asynchronous:
                        writer.commit_async(state_at(step), step=step).result()
                    else:
                        writer.commit(state_at(step), step=step)
                    committed = True
                except CommitInDoubt:
                    committed = None
                except DeltavcError:
                    committed = False
            writer.move("main") if committed is None else None
            found = committed_steps(repo)
            assert found in ([*expected, step], expected)
            if committed is not None:
                assert (found[-1] == step) == committed
            expected = found
            step += 1
            writer.commit(state_at(step), step=step)
            expected.append(step)
            assert committed_steps(repo) == expected
            if not fired:
                break
    assert nth > 5  # the fault did fire, at every store call a commit makes


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_first_commit_happens_wholly_or_not_at_all(how):
    for nth in itertools.count(1):
        url = f"memory://first-{secrets.token_hex(4)}"
        deltavc.init(url).close()
        store = FaultyStore(open_store(url))
        with opened(store) as repo, store.failing(nth, how) as fired:
            try:
                repo.commit(state_at(1), step=1)
                committed = True
            except CommitInDoubt:
                committed = None
            except DeltavcError:
                committed = False
        with deltavc.open(url) as fresh:
            if "main" in fresh.branches():
                assert committed is not False
                assert same(fresh.checkout(), state_at(1))
            else:
                assert not committed
                fresh.commit(state_at(2), step=2)
                assert same(fresh.checkout(), state_at(2))
        if not fired:
            break
    assert nth > 5


@pytest.mark.parametrize("error", [StoreFull("memory://x", "put"), StoreDenied("memory://x", "put", "no")])
def test_a_full_or_forbidding_store_leaves_the_writer_usable(repo, error):
    with repo.writer("main") as writer:
        writer.commit(state_at(0), step=0)
        for nth in itertools.count(1):
            with repo.store.failing(nth, error, WRITES) as fired:
                try:
                    writer.commit(state_at(nth), step=nth)
                except type(error):
                    assert fired
                    assert writer.version == repo.version("main").id
                    writer.commit(state_at(nth), step=nth)
            if not fired:
                break
        assert nth > 3
    assert committed_steps(repo) == list(range(nth + 1))


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_rollback_moves_all_or_nothing(repo, how):
    with repo.writer("main") as writer:
        for step in range(3):
            writer.commit(state_at(step), step=step)
        for nth in itertools.count(1):
            writer.move("main")
            with repo.store.failing(nth, how) as fired:
                try:
                    writer.rollback("step:1", "test")
                except CommitInDoubt:
                    writer.move("main")
                except DeltavcError:
                    pass
            writer.move("main")
            head = repo.version("main").step
            assert head in (1, 2)
            if head == 1:
                writer.commit(state_at(2), step=2)
            assert committed_steps(repo) == [0, 1, 2]
            if not fired:
                break
    assert nth > 1


def test_in_doubt_is_settled_at_the_next_call_when_the_entry_landed(repo):
    with repo.writer("main") as writer:
        writer.commit(state_at(0), step=0)
        refs = lambda key: key.startswith("refs/")  # noqa: E731
        with repo.store.down("after", when=refs), pytest.raises(CommitInDoubt):
            writer.commit(state_at(1), step=1)
        writer.commit(state_at(2), step=2)
    assert committed_steps(repo) == [0, 1, 2]


def test_in_doubt_is_settled_at_the_next_call_when_the_entry_was_lost(repo):
    with repo.writer("main") as writer:
        writer.commit(state_at(0), step=0)
        refs = lambda key: key.startswith("refs/")  # noqa: E731
        with repo.store.down("before", WRITES, when=refs), pytest.raises(CommitInDoubt):
            writer.commit(state_at(1), step=1)
        with repo.again() as other:
            other.commit(state_at(5), step=5)  # somebody else takes the place
        with pytest.raises(BranchMoved):
            writer.commit(state_at(2), step=2)
        writer.move("main")
        writer.commit(state_at(3), step=3)
    assert committed_steps(repo) == [0, 5, 3]


def test_commits_behind_a_failure_are_abandoned_and_the_base_goes_back(repo):
    with repo.writer("main", max_in_flight=3) as writer:
        writer.commit(state_at(0), step=0)
        gate = threading.Event()
        with repo.store.down("before", WRITES, when=lambda key: key.startswith("packs/") and gate.wait(30)):
            futures = [writer.commit_async(state_at(step), step=step, snapshot=False) for step in (1, 2, 3)]
            gate.set()
            errors = [future.exception() for future in futures]
        assert [type(error) for error in errors] == [StoreUnavailable, CommitAbandoned, CommitAbandoned]
        writer.commit(state_at(4), step=4)
    assert committed_steps(repo) == [0, 4]


def test_a_moved_branch_is_told_and_move_goes_on(repo):
    with repo.writer("main") as writer, repo.again() as other:
        writer.commit(state_at(0), step=0)
        other.commit(state_at(1), step=1)
        with pytest.raises(BranchMoved) as told:
            writer.commit(state_at(2), step=2)
        assert told.value.found == other.version("main").id
        with pytest.raises(BranchMoved):  # never reparents silently
            writer.commit(state_at(2), step=2)
        writer.move("main")
        writer.commit(state_at(2), step=2)
    assert committed_steps(repo) == [0, 1, 2]


def test_a_database_that_fails_at_any_statement_fails_no_commit_that_landed(repo):
    expected = []
    with repo.writer("main") as writer:
        for step in itertools.count():
            with failing_statements(repo._index.engine, step) as statements, contextlib.suppress(DatabaseUnavailable):
                writer.commit(state_at(step), step=step)
                expected.append(step)
            if expected[-1:] != [step]:
                writer.move("main")
            if step > 1 and len(statements) < step:
                break
    assert committed_steps(repo) == expected
    assert [version.step for version in repo.log()] == expected[::-1]
    assert step > 10


@pytest.mark.parametrize("how", ["move", "rollback"])
def test_a_database_that_fails_while_a_writer_moves_spoils_no_later_snapshot(repo, how):
    old = {"stays": torch.zeros(500), "changes": torch.zeros(500)}
    new = {"stays": torch.ones(500), "changes": torch.ones(500)}
    for number in itertools.count(1):
        branch = f"b{number}"
        first = repo.commit(old, branch=branch, parents=[])
        with repo.writer(branch) as writer:
            writer.commit(new, snapshot=True)
            if how == "move":
                repo.rollback(branch, first.id)
            with failing_statements(repo._index.engine, number) as statements, contextlib.suppress(DatabaseUnavailable):
                getattr(writer, how)(first.id)
            state = old | {"changes": torch.full((500,), float(number))}
            try:
                writer.commit(state, snapshot=True)
            except BranchMoved:
                writer.move(branch)
                writer.commit(state, snapshot=True)
        assert same(repo.checkout(branch), state)
        if len(statements) < number:
            break
    assert number > 5


def test_what_the_database_cannot_be_told_does_not_make_a_failure_of_a_commit_that_landed(repo, caplog):
    with repo.writer("main") as writer:
        writer.commit(state_at(0), step=0)
        with failing_statements(repo._index.engine):
            lost = writer.commit(state_at(1), step=1)
        key = f"versions/{lost.id[:2]}/{lost.id}.json"
        body = repo.store.get(key)
        repo.store.delete(key)
        writer.commit(state_at(2), step=2)  # to catch up, the database would have to read what is gone
        assert "the database is behind" in caplog.text
        writer.commit(state_at(3), step=3)
        repo.store.put(key, body)
        writer.commit(state_at(4), step=4)
    assert committed_steps(repo) == [0, 1, 2, 3, 4]
    assert [version.step for version in repo.log()] == [4, 3, 2, 1, 0]


def test_a_writer_opens_whatever_others_commit_meanwhile(repo):
    first = repo.commit(state_at(0), step=0)
    known, count = {first.id}, 0
    with repo.again() as other:

        def plan(name, args):
            nonlocal count
            count += 1
            if count == nth:
                known.add(other.commit(state_at(nth), step=nth).id)

        for nth in itertools.count(1):
            count, repo.store._plan = 0, plan
            writer = repo._open_writer("main", WriterOptions())
            repo.store._plan = None
            assert writer.version in known
            writer.close()
            if count < nth:
                break
    assert nth > 1


@pytest.mark.parametrize("name", ["w", "b"])
def test_a_base_damaged_in_memory_is_noticed_and_read_again(repo, name, caplog):
    with repo.writer("main") as writer:
        writer.commit(state_at(0), step=0)
        writer._base.lanes[name].view(-1)[3] ^= 4
        writer.commit(state_at(1), step=1)
        assert "read again" in caplog.text
        future = writer.commit_async(state_at(2), step=2)
        writer._base.lanes[name].view(-1)[3] ^= 4
        writer.commit(state_at(3), step=3)
        assert future.result().step == 2
    assert committed_steps(repo) == [0, 1, 2, 3]
