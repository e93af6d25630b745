"""A version is proven by its id, its objects and its weights; files by comparing them with it."""

import dataclasses
import shutil

import pytest
import torch

import deltavc
from deltavc.errors import BadCheckpoint, UnknownRef
from deltavc.lineage.records import VersionRecord, version_key
from tests import states
from tests.broken.make_broken import GOLDEN, VERSIONS, flipped


@pytest.fixture
def root(tmp_path):
    return shutil.copytree(GOLDEN, tmp_path / "repository")


@pytest.fixture
def repo(root):
    with deltavc.open(root) as repo:
        yield repo


@pytest.fixture
def small(tmp_path):
    """Three steps of a model with ties, and files beside it."""
    with deltavc.init(tmp_path / "small") as repo:
        tied = torch.randn(6, 4)
        state = {"a": tied, "b": tied, "c": states.random_bits("int8", (9,)), "d": torch.zeros(0)}
        for step in range(3):
            repo.commit(state, step=step, files={"config.json": b"%d" % step})
            state = states.stepped(state, step)
        yield repo


@pytest.mark.parametrize("message", VERSIONS)
@pytest.mark.parametrize("memory", [1 << 30, 100])
def test_every_version_is_proven_back_to_the_beginning(repo, message, memory):
    version = VERSIONS[message]
    found = repo.verify(version, memory=memory)
    assert found.ok
    assert found.weights
    assert found.num_versions == len(repo.log(version))
    assert found.num_tensors == sum(tensor["tie"] is None for tensor in repo.tensors(version))
    assert found.num_files == len(repo.version(version).files)


def test_without_weights_only_what_edges_tell_is_proven(root, repo):
    for path in (root / "packs").rglob("*.pack"):
        path.write_bytes(flipped(path.read_bytes(), 70))
    assert not repo.verify("main").ok
    found = repo.verify("main", weights=False)
    assert [problem.kind for problem in found.problems] == ["damaged_pack"]  # small packs are read whole
    assert not found.weights


def test_a_record_that_was_exchanged_anywhere_in_the_history_is_found(root, repo):
    assert repo.verify("main").ok  # and the database knows everything by now
    key = version_key(VERSIONS["sparse"])
    record = dataclasses.replace(VersionRecord.parse((root / key).read_bytes()), author="somebody else")
    (root / key).write_bytes(record.body)
    found = repo.verify("main")
    assert [(problem.kind, problem.key) for problem in found.problems] == [("damaged_version", key)]
    assert repo.verify(VERSIONS["first"]).ok  # which comes before it


@pytest.mark.parametrize("kind", ["packs", "layouts", "files", "versions"])
def test_what_is_gone_is_named(root, repo, kind):
    version = VERSIONS["first"]
    assert repo.verify(version).ok
    shutil.rmtree(root / kind)
    found = repo.verify(version)
    assert not found.ok
    assert {problem.kind for problem in found.problems} == {f"missing_{kind.removesuffix('s')}"}


def test_a_version_whose_edges_are_gone_has_no_path(root):
    shutil.rmtree(root / "edges" / VERSIONS["again"])
    with deltavc.open(root) as repo:
        (problem,) = repo.verify(VERSIONS["again"]).problems
        assert problem.kind == "no_path"
        assert "lost" in problem.what


def test_weights_that_the_policy_gave_up_are_not_called_lost(small):
    version = small.resolve("main~1")
    small.commit(small.checkout("main"), branch="main", snapshot=True)
    small.set_policy(deltavc.Policy(keep_last=1))
    assert version in small.expire().lost
    found = small.verify(version)
    assert not found.problems
    assert not found.ok
    assert not found.weights
    assert found.given_up.startswith(small._access(0).author)
    assert found.num_versions == 2


def test_an_unknown_version_is_no_problem_but_an_error(repo):
    with pytest.raises(UnknownRef):
        repo.verify("nowhere")


def test_what_was_checked_out_is_that_version_and_no_other(small, tmp_path):
    small.checkout("main~1", path=tmp_path / "out")
    found = small.match(tmp_path / "out", "main~1")
    assert found.ok
    assert (found.num_tensors, found.num_files) == (4, 1)
    found = small.match(tmp_path / "out", "main")
    assert {difference.name for difference in found.tensors} == {"a", "b", "c"}
    assert [difference.name for difference in found.files] == ["config.json"]
    assert small.match(small.checkout("main~1"), "main~1").ok


def test_ties_that_files_forgot_are_no_difference(small):
    state = dict(small.checkout("main"))
    assert small.match({**state, "b": state["a"].clone()}).ok
    assert small.match({name: tensor for name, tensor in state.items() if name != "b"}).ok
    assert not small.match({**state, "b": state["a"] + 1}).ok


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: state.pop("c"), "is missing"),
        (lambda state: state.update(c=state["c"].view(torch.uint8)), "is uint8, and int8 in the version"),
        (lambda state: state.update(c=state["c"].view(3, 3)), "has shape [3, 3], and [9] in the version"),
        (lambda state: state.update(c=state["c"] + 1), "has other values"),
        (lambda state: state.update(new=torch.ones(1)), "is not in the version"),
    ],
    ids=["missing", "dtype", "shape", "values", "new"],
)
def test_what_differs_is_named(small, change, said):
    state = dict(small.checkout("main"))
    change(state)
    ((difference,), ()) = (small.match(state).tensors, small.match(state).files)
    assert difference.name in ("c", "new")
    assert difference.what == said


def test_a_damaged_checkpoint_is_no_match_but_an_error(small, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"none")
    with pytest.raises(BadCheckpoint):
        small.match(tmp_path / "model.safetensors")
