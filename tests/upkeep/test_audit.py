"""An audit says where a version comes from, what happened to it, and what is proven."""

import json

import pytest
import torch

import deltavc
from deltavc.errors import DatabaseNeeded, UnknownRef


@pytest.fixture
def repo(tmp_path):
    """Steps 0 to 3 on main, 2 and 3 rolled back, another 2 on top; step 1 is tagged; a branch from step 3, merged."""
    with deltavc.init(tmp_path / "repository") as repo:
        state = {"w": torch.zeros(8)}
        with repo.writer() as writer:
            for step in range(4):
                state["w"] = state["w"] + 1
                writer.commit(state, step=step, metrics={"loss": 1 / (step + 1)}, files={"rng": b"%d" % step})
            repo.branch("side")
            writer.rollback("step:1", "2 and 3 were bad")
            writer.commit({"w": state["w"] + 5}, step=2, message="another")
            repo.tag("v1", "step:1")
        yield repo


def moves(page):
    return [(move.what, move.entry.ref, move.entry.why) for move in page.moves]


def test_it_tells_who_when_and_from_what(repo):
    page = repo.audit()
    assert page.version.message == "another"
    assert [version.step for version in page.history] == [2, 1, 0]
    assert [version.metrics.get("loss") for version in page.history] == [None, 0.5, 1.0]
    assert page.num_ancestors == 2
    assert page.at == ("branches/main",)
    assert page.ok
    assert not page.verification.weights
    assert repo.audit(weights=True).verification.weights


def test_it_tells_which_branches_and_tags_have_it_and_how_they_moved(repo):
    page = repo.audit("v1")
    assert page.at == ("tags/v1",)
    assert set(page.contained_in) == {"branches/main", "branches/side", "tags/v1"}
    tagged = ("to", "tags/v1", "created at step:1")
    back = ("to", "branches/main", "2 and 3 were bad")
    assert moves(page) == [("to", "branches/main", "commit"), back, tagged]


def test_a_rollback_past_a_version_is_told_and_so_is_its_return(repo):
    two = repo.resolve("side~1")
    assert moves(repo.audit(two)) == [
        ("to", "branches/main", "commit"),
        ("out", "branches/main", "2 and 3 were bad"),
    ]
    assert repo.audit(two).contained_in == ("branches/side",)
    repo.rollback("main", "side", "they were not")
    assert moves(repo.audit(two))[-1] == ("in", "branches/main", "they were not")
    repo.delete_branch("side")
    assert moves(repo.audit(two))[-1] == ("out", "branches/side", "deleted")


def test_the_version_that_a_branch_was_rolled_back_from_was_left(repo):
    assert ("away", "branches/main", "2 and 3 were bad") in moves(repo.audit("side"))


def test_files_and_edges_are_listed_with_their_hashes(repo):
    page = repo.audit("v1")
    assert page.files == {"rng": (deltavc.canonical.content_id(b"1"), 1)}
    assert [edge.base for edge in page.edges] == [repo.resolve("step:0")]


def test_its_json_is_json(repo):
    told = json.loads(json.dumps(repo.audit("v1").as_json()))
    assert told["ok"]
    assert told["version"]["step"] == 1
    assert [step["step"] for step in told["history"]] == [1, 0]
    assert told["files"]["rng"]["nbytes"] == 1
    assert told["verification"]["num_versions"] == 2


def test_what_is_wrong_with_it_is_told(repo, tmp_path):
    for path in (tmp_path / "repository" / "packs").rglob("*.pack"):
        path.unlink()
    page = repo.audit()
    assert not page.ok
    assert [problem.kind for problem in page.verification.problems] == ["missing_pack"]


def test_an_unknown_version_is_an_error(repo):
    with pytest.raises(UnknownRef):
        repo.audit("nowhere")


def test_without_a_database_it_says_that_it_needs_one(repo, tmp_path):
    from deltavc.lineage.lazy import LazyIndex
    from deltavc.repo import Repo
    from deltavc.store.objects import open_store

    store = open_store(tmp_path / "repository")
    with Repo(store, LazyIndex(store, store.url), repo.id) as lazy:
        assert lazy.verify("v1").ok
        with pytest.raises(DatabaseNeeded):
            lazy.audit("v1")
