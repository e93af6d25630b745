"""The tail of a branch tells every move once, in order, with a database or without."""

import secrets

import pytest
import torch

import deltavc
from deltavc import opening
from deltavc.errors import UnknownRef
from deltavc.tail import _Looks
from tests.faults import faulty


@pytest.fixture
def repo(tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        commit(repo, 0)
        yield repo


def commit(repo, step, **told):
    return repo.commit({"x": torch.arange(9) + step}, step=step, **told)


@pytest.fixture(params=["database", "none"])
def looks(repo, tmp_path, request):
    """What somebody else sees of main, look by look, from its last two moves on."""
    db = "none" if request.param == "none" else f"sqlite:///{tmp_path}/other.db"
    with deltavc.open(tmp_path / "repo", db=db) as other:
        looks = _Looks(other._index, "branches/main", 2, 1.0)
        yield lambda: [(move.kind, move.version and move.version.step) for move in looks.look() or []]


def test_every_move_is_told_once_and_in_order(repo, looks):
    for step in (1, 2):
        commit(repo, step)
    assert looks() == [("committed", 1), ("committed", 2)]
    assert looks() == []
    repo.rollback("main", to="step:0", reason="worse")
    commit(repo, 3)
    repo.rollback("main", to="main@{2}")
    assert looks() == [("rolled_back", 0), ("committed", 3), ("rolled_back", 2)]
    repo.rollback("main", to="main@{1}")
    assert looks() == [("moved", 3)]
    repo.delete_branch("main")
    assert looks() == [("deleted", None)]
    repo.branch("main", "main@{2}")
    assert looks() == [("created", 2)]
    assert looks() == []


def test_a_move_there_and_back_between_two_looks_is_told(repo, looks):
    assert looks() == [("committed", 0)]
    commit(repo, 1)
    repo.rollback("main", to="step:0", reason="worse")
    assert looks() == [("committed", 1), ("rolled_back", 0)]


def test_many_moves_are_told_however_they_are_read(repo, looks, monkeypatch):
    monkeypatch.setattr("deltavc.tail._TOGETHER", 2)
    assert looks() == [("committed", 0)]
    for step in range(1, 6):
        commit(repo, step)
    assert [step for _, step in looks()] == [1, 2, 3, 4, 5]


def test_a_move_in_the_middle_of_a_look_is_told_once_and_hides_none(repo, tmp_path, monkeypatch):
    with deltavc.open(tmp_path / "repo") as other:  # with the same database
        looks = _Looks(other._index, "branches/main", 2, 1.0)
        assert len(looks.look()) == 1
        commit(repo, 1)
        head = other._index.head
        heads = []

        def then_somebody_commits(ref):
            heads.append(head(ref))
            if len(heads) == 2:  # the first is to catch up with
                commit(repo, 2)
            return heads[-1]

        monkeypatch.setattr(other._index, "head", then_somebody_commits)
        told = [move.version.step for move in looks.look()]
        assert told + [move.version.step for move in looks.look() or []] == [1, 2]


def test_a_look_at_a_branch_that_has_not_moved_is_one_request(repo, tmp_path, monkeypatch):
    store = faulty(str(tmp_path / "repo"))
    monkeypatch.setattr(opening, "open_store", lambda *args: store)
    for db in (f"sqlite:///{tmp_path}/third.db", "none"):
        with deltavc.open(tmp_path / "repo", db=db) as other:
            looks = _Looks(other._index, "branches/main", 0, 1.0)
            looks.look()
            store.calls.clear()
            assert looks.look() is None
            assert len(store.calls) == 1


def test_an_outage_loses_no_move(repo, tmp_path, monkeypatch, caplog):
    store = faulty(str(tmp_path / "repo"))
    monkeypatch.setattr(opening, "open_store", lambda *args: store)
    with deltavc.open(tmp_path / "repo", db="none") as other:
        tail = other.tail("main", 1, every=0.001)
        moves = iter(tail)
        assert next(moves).version.step == 0
        commit(repo, 1)
        for nth in range(1, 5):
            with store.failing(nth, "before") as fired:
                told = next(moves)
            assert fired
            assert told.version.step == nth
            commit(repo, nth + 1)
        tail.stop()
    assert "trying again until it is back" in caplog.text


def test_a_branch_that_is_none_and_numbers_that_are_none_are_refused(repo):
    repo.tag("v1")
    for branch in ("mian", "v1", "tags/v1", "step:0"):
        with pytest.raises((UnknownRef, deltavc.errors.BadRefName)):
            repo.tail(branch)
    with pytest.raises(ValueError, match="last=-1"):
        repo.tail(last=-1)
    with pytest.raises(ValueError, match="every=0"):
        repo.tail(every=0)


def test_a_tail_in_memory(tmp_path):
    with deltavc.init(f"memory://tail-{secrets.token_hex(4)}") as repo:
        commit(repo, 0)
        tail = repo.tail("branches/main", every=0.001)
        for move in tail:
            assert (move.kind, move.as_json()["version"]["step"]) == ("committed", 0)
            tail.stop()
