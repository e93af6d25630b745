"""Versions, logs, branches, tags and moves, as the repository tells of them."""

import datetime
import math

import pytest
import torch

import deltavc
from deltavc.errors import AmbiguousRef, BadRefName, BranchMoved, RefExists, UnknownRef

STATE = {"w": torch.arange(12.0)}


def state(number):
    return {"w": torch.arange(12.0) + number}


@pytest.fixture
def repo(tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        yield repo


def ids(versions):
    return [version.id for version in versions]


def test_a_version_is_told_the_same_by_its_commit_the_database_and_the_bucket(repo):
    metrics = {
        "loss": 0.25,
        "nan": math.nan,
        "up": math.inf,
        "down": -math.inf,
        "step": 3,
        "t": torch.tensor(1.5, requires_grad=True),
    }
    meta = {"lr": 1e-6, "nested": [{"a": None}, True, "é\u2028"], "big": 2**53 - 1}
    with repo.writer() as writer:
        first = writer.commit(state(0), step=-1, author="somebody", files={"rng": b"123"})
        told = writer.commit(
            state(1), "message\nwith lines and \0", step=10**12, metrics=metrics, meta=meta, files={"rng": b"123"}
        )
        snapshot = writer.commit(state(2), snapshot=True)
    assert (first.author, first.step, first.branch, first.parents) == ("somebody", -1, "main", ())
    assert (told.message, told.meta, told.files) == ("message\nwith lines and \0", meta, {"rng": 3})
    assert told.parents == (first.id,)
    assert (told.num_lanes, told.changed_lanes) == (12, 12)
    assert math.isnan(told.metrics["nan"])
    assert {name: value for name, value in told.metrics.items() if name != "nan"} == {
        "loss": 0.25,
        "up": math.inf,
        "down": -math.inf,
        "step": 3.0,
        "t": 1.5,
    }
    assert abs(told.time - datetime.datetime.now(datetime.UTC)) < datetime.timedelta(minutes=5)
    assert {"read", "diff", "encode", "upload", "index"} <= told.timings.keys()
    with deltavc.open(repo.url, db="sqlite://") as fresh:
        for version in (first, told, snapshot):
            for where in (repo, fresh):
                assert where.version(version.id).as_json() == version.as_json()
        assert fresh.stats() == repo.stats()
        assert fresh.stats().pack_bytes + fresh.stats().file_bytes == sum(
            version.stored_bytes for version in fresh.log()
        )


def test_logs_are_newest_first_and_take_ranges(repo):
    versions = [repo.commit(state(number), step=number) for number in range(6)]
    repo.branch("side", "main~2")
    side = repo.commit(state(50), branch="side", step=50)
    merge = repo.commit(state(60), parents=["main", "side"])
    everything = [merge, side, *reversed(versions)]
    assert ids(repo.log(first_parent=True)) == ids([merge, *reversed(versions)])
    assert sorted(ids(repo.log())) == sorted(ids(everything))
    assert ids(repo.log("main~1", limit=2)) == ids([versions[5], versions[4]])
    assert ids(repo.log("side..main~1")) == ids([versions[5], versions[4]])
    assert ids(repo.log("main~1..side")) == [side.id]
    assert repo.log("main..side") == []
    assert ids(repo.log("step:1..main~3")) == ids([versions[3], versions[2]])
    assert repo.log(limit=0) == []
    repo.rollback("main", "step:0", reason="all bad")
    assert ids(repo.log()) == [versions[0].id]
    assert sorted(ids(repo.log(all=True))) == sorted(ids(everything))
    assert merge.parents == (versions[5].id, side.id)
    assert repo.resolve(f"{merge.id[:8]}^2") == side.id


def test_a_rollback_keeps_everything_and_says_why(repo):
    versions = [repo.commit(state(number), step=number, metrics={"loss": number}) for number in range(4)]
    moved = repo.rollback("main", "step:1", reason="reward collapse")
    assert (moved.id, moved.branch) == (versions[1].id, "main")
    after = repo.commit(state(9), step=2)
    assert after.parents == (versions[1].id,)
    log = repo.reflog()
    assert [(entry.old, entry.new, entry.why) for entry in log[:2]] == [
        (versions[1].id, after.id, "commit"),
        (versions[3].id, versions[1].id, "reward collapse"),
    ]
    assert repo.reflog(limit=1) == log[:1]
    assert [entry.sequence for entry in log] == [6, 5, 4, 3, 2, 1]
    assert repo.resolve("main@{2}") == versions[3].id
    assert repo.resolve("step:2") == after.id  # the abandoned one is not in the history
    assert repo.resolve("worst:loss") == versions[1].id
    assert repo.resolve(versions[3].id[:10]) == versions[3].id
    for missing in ("step:3", "best:reward", "step:x", "other@step:1"):
        with pytest.raises(UnknownRef):
            repo.resolve(missing)


def test_tags_never_move_and_branches_do(repo):
    first, second = repo.commit(state(0)), repo.commit(state(1))
    repo.tag("v1", "main~1")
    for _ in range(2):
        with pytest.raises(RefExists) as raised:
            repo.tag("v1", "main")
        assert (raised.value.what, raised.value.name, raised.value.at) == ("tag", "v1", first.id)
    with pytest.raises(RefExists):
        repo.branch("v1", "main")
    with pytest.raises(RefExists):
        repo.tag("main")
    with pytest.raises(RefExists):
        repo.branch("main")
    with pytest.raises(UnknownRef):
        repo.rollback("v1", to="main")
    with pytest.raises(UnknownRef):
        repo.commit(state(2), branch="v1")
    assert repo.tags() == {"v1": first.id}
    assert repo.resolve("v1") == repo.resolve("tags/v1") == first.id
    repo.delete_tag("v1")
    assert repo.tags() == {}
    repo.tag("v1")
    assert repo.resolve("v1") == second.id


def test_a_deleted_branch_is_gone_and_its_versions_are_not(repo):
    repo.commit(state(0))
    repo.branch("side")
    lost = repo.commit(state(1), branch="side")
    repo.delete_branch("side")
    assert repo.branches().keys() == {"main"}
    for use in (repo.resolve, repo.delete_branch, repo.checkout, repo.writer):
        with pytest.raises(UnknownRef):
            use("side")
    assert torch.equal(repo.checkout(lost.id)["w"], state(1)["w"])
    assert lost.id in ids(repo.log(all=True))
    assert repo.reflog("side")[0].new is None
    again = repo.commit(state(2), branch="side", parents=[lost.id])
    assert again.parents == (lost.id,)
    assert repo.resolve("side") == again.id


def test_a_commit_to_a_deleted_branch_does_not_begin_another_history(repo):
    first = repo.commit(state(0))
    repo.delete_branch("main")
    with pytest.raises(UnknownRef, match="it was deleted"):
        repo.commit(state(1))
    repo.branch("main", "main@{1}")
    assert repo.commit(state(1)).parents == (first.id,)


def test_a_branch_starts_where_it_is_told_to(repo):
    first = repo.commit(state(0))
    with pytest.raises(UnknownRef, match=r"repo\.branch"):
        repo.commit(state(1), branch="other")
    orphan = repo.commit(state(1), branch="other", parents=[])
    assert orphan.parents == ()
    child = repo.commit(state(2), branch="third", parents=["main"])
    assert child.parents == (first.id,)
    assert repo.branches() == {"main": first.id, "other": orphan.id, "third": child.id}
    for name in ("", "a..b", "x~1", "-x", "abcd", "HEAD", "a b", "tags/x", "a" * 201, "\udc80"):
        with pytest.raises(BadRefName):
            repo.branch(name)
    with pytest.raises(UnknownRef):
        repo.branch("fourth", "nowhere")


def test_a_branch_that_moved_is_a_conflict_and_a_move_goes_on(repo):
    first = repo.commit(state(0))
    with repo.writer() as writer:
        other = repo.commit(state(1))
        with pytest.raises(BranchMoved) as raised:
            writer.commit(state(2))
        error = raised.value
        assert (error.kind, error.exit_code) == ("branch_moved", 11)
        assert error.facts() == {"branch": "main", "expected": first.id, "found": other.id}
        assert "w.move" in error.hint
        assert (writer.version, repo.resolve("main")) == (first.id, other.id)
        with pytest.raises(BranchMoved):
            writer.rollback(first.id)
        live = state(7)
        writer.move("main", into=live)
        assert torch.equal(live["w"], state(1)["w"])
        assert writer.commit(state(2)).parents == (other.id,)
    with pytest.raises(BranchMoved):
        repo.commit(state(3), parents=["main~1"])
    assert len(repo.log(all=True)) == 3


def test_prefixes_that_fit_several_versions_list_them(repo):
    with repo.writer() as writer:
        versions = [writer.commit(STATE, step=number).id for number in range(20)]
    known = repo.resolve(versions[0][:16])
    assert known == versions[0]
    with pytest.raises(UnknownRef, match="no version's id"):
        repo.resolve("0123456789abcdef")
    repo.commit(STATE, step=5, message="again")
    with pytest.raises(AmbiguousRef) as raised:
        repo.resolve("step:5")
    assert len(raised.value.candidates) == 2
    with pytest.raises(UnknownRef) as unknown:
        repo.resolve("mian")
    assert unknown.value.candidates == ("main",)
