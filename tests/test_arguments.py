"""What a writer is told wrongly is refused before anything lands."""

import secrets

import pytest
import torch

import deltavc
from deltavc.errors import BranchMoved, UnknownRef

STATE = {"w": torch.arange(12.0)}


@pytest.fixture
def repo():
    with deltavc.init(f"memory://arguments-{secrets.token_hex(4)}") as repo:
        repo.commit(STATE, step=0)
        yield repo


@pytest.mark.parametrize("options", [{"keep": "gpu"}, {"on_busy": "drop"}, {"max_in_flight": 0}])
def test_options_that_a_writer_does_not_have_are_refused(repo, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        repo.writer("main", **options)


def test_a_misspelt_argument_is_refused(repo):
    with repo.writer("main") as writer, pytest.raises(TypeError, match="'metric'"):
        writer.commit(STATE, metric={"loss": 1.0})
    with pytest.raises(TypeError, match="'metric'"):
        repo.commit(STATE, metric={"loss": 1.0})
    assert [version.step for version in repo.log()] == [0]


@pytest.mark.parametrize("parent", ["nonsense", "ab" * 32])
def test_a_parent_that_is_not_there_is_refused(repo, parent):
    with repo.writer("main") as writer:
        with pytest.raises(UnknownRef):
            writer.commit(STATE, parents=[writer.version, parent])
        writer.commit(STATE, step=1)
    assert [version.step for version in repo.log()] == [1, 0]


def test_parents_are_refs_and_the_first_is_where_the_writer_is(repo):
    repo.branch("side", "main")
    side = repo.commit(STATE, branch="side", step=5)
    with repo.writer("main") as writer:
        merge = writer.commit(STATE, parents=["main", "side"])
        assert merge.parents == (repo.resolve("step:0"), side.id)
        with pytest.raises(BranchMoved):
            writer.commit(STATE, parents=["side"])
        with pytest.raises(BranchMoved):
            writer.commit(STATE, parents=[])


def test_one_pattern_may_be_a_string(repo):
    assert list(repo.checkout(tensors="w*")) == ["w"]


def test_a_negative_limit_is_refused(repo):
    for ask in (repo.log, repo.history, repo.reflog):
        with pytest.raises(ValueError, match="limit=-1"):
            ask("main", -1)
    assert [version.step for version in repo.history()] == [0]
