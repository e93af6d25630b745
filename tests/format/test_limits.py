"""What a record could not be read back with is refused before anything lands."""

import pytest
import torch

import deltavc
from deltavc.canonical import MAX_NESTING
from deltavc.errors import BadMetadata
from deltavc.lineage.records import MAX_METRIC_NAME


@pytest.fixture
def repo(tmp_path):
    with deltavc.init(tmp_path / "repository") as repo:
        repo.commit({"weight": torch.ones(3)})
        yield repo


def nested(levels):
    """Lists within lists, `levels` levels in all."""
    value = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    "told",
    [
        {"metrics": {"m" * (MAX_METRIC_NAME + 1): 1}},
        {"metrics": {"": 1}},
        {"author": 12},
        {"meta": {"deep": nested(MAX_NESTING)}},
        {"meta": {"integer": 2**53}},
        {"message": "\ud800"},
    ],
    ids=["long metric", "unnamed metric", "author", "nesting", "integer", "surrogate"],
)
def test_a_commit_that_no_version_can_hold_is_refused(repo, told):
    before = repo.resolve("main")
    with pytest.raises(BadMetadata):
        repo.commit({"weight": torch.zeros(3)}, **told)
    assert repo.resolve("main") == before
    assert len(repo.reflog()) == 1


def test_a_reason_that_no_entry_can_hold_is_refused(repo):
    with pytest.raises(BadMetadata):
        repo.rollback("main", "main", reason=12)
    assert len(repo.reflog()) == 1


def test_what_is_just_allowed_is_read_back_from_the_bucket(repo, tmp_path):
    told = {
        "metrics": {"m" * MAX_METRIC_NAME: -0.0},
        "meta": {
            "deep": nested(MAX_NESTING - 1),
            "integer": 2**53 - 1,
            "float": 2.0**53,
            "\ue000": 1e21,
            "\U0001f600": 1,
        },
        "message": "\x00\n\u2028",
        "author": "\u00e9",
    }
    version = repo.commit({"weight": torch.zeros(3)}, **told)
    with deltavc.open(tmp_path / "repository", db="sqlite://") as other:
        found = other.version("main")
        assert (found.id, found.meta, found.message) == (version.id, told["meta"], told["message"])
