"""Copying histories between repositories: whole, verified, resumable, beside clean-up, never over other histories."""

import itertools
import random
import threading
import time
from dataclasses import replace

import pytest
import torch

import deltavc
from deltavc import Bounds, Policy, SnapshotPolicy
from deltavc.errors import (
    CorruptObject,
    DeltavcError,
    HistoriesDiffer,
    MissingObject,
    NoPath,
    RefExists,
    TooLate,
    UnknownRef,
)
from deltavc.lineage.bucket import read_version
from deltavc.store.objects import open_store
from tests.faults import WRITES, FaultyStore
from tests.states import generator, same
from tests.upkeep.stores import ClockedStore, opened

NUMBERS = itertools.count()


def state_at(step):
    """Any step's state from its number alone: 1 % of a matrix changes a step."""
    w = torch.randn(64, 64, generator=generator(1)).bfloat16()
    w.view(torch.int16).view(-1)[step % 100 :: 100] = step
    return {"w": w, "step": torch.tensor(step)}


def commit(repo, steps, branch="main"):
    with repo.writer(branch, keep="host", snapshots=SnapshotPolicy(max_edges=5)) as writer:
        for step in steps:
            writer.commit(state_at(step), step=step, metrics={"x": step}, files={"rng": b"%d" % step})


def memory():
    return f"memory://copy-{next(NUMBERS)}"


@pytest.fixture
def source():
    with deltavc.init(memory()) as repo:
        commit(repo, range(8))
        repo.branch("other", "step:3")
        commit(repo, (100, 101), "other")
        repo.tag("good", "step:2")
        yield repo


@pytest.fixture
def target():
    with deltavc.init(memory()) as repo:
        yield repo


def check(source, target, refs=("main", "other", "good"), full=True):
    """What refs lead to is the same in both, and whole, as somebody sees who only has the target."""
    with opened(target._store) as anew:
        for ref in refs:
            assert anew.resolve(ref) == source.resolve(ref)
            assert [version.id for version in anew.log(ref)] == [version.id for version in source.log(ref)]
            for version in anew.log(ref):
                if version.weights:
                    assert same(anew.checkout(version.id), state_at(version.step))
                assert anew.read_file(version.id, "rng") == b"%d" % version.step
        assert not anew.fsck(full=full).problems


def keys(repo, *prefixes):
    return {item.key for prefix in prefixes for item in repo._store.list(prefix)}


def test_what_versions_have_in_common_is_stored_once(source, target):
    store = FaultyStore(target._store)
    with opened(store) as watched:
        deltavc.copy(source, watched)
    stored = [
        key for name, key in store.calls if name in ("put", "put_path") and key.startswith(("layouts/", "packs/"))
    ]
    assert any(key.startswith("layouts/") for key in stored)
    assert len(stored) == len(set(stored))
    check(source, target)


def test_all_branches_and_tags_go_with_their_history_and_nothing_else(source, target):
    source.rollback("other", to="step:100", reason="x")
    source.set_policy(Policy(keep_last=50))
    done = deltavc.copy(source, target)
    assert {ref.name for ref in done.refs if ref.moved} == {"branches/main", "branches/other", "tags/good"}
    assert done.num_versions == 9
    check(source, target)
    assert "branch@step:101" not in target.branches()
    with pytest.raises(UnknownRef):
        target.resolve("other@step:101")
    assert target.policy() == Policy()
    assert target.id != source.id
    assert [entry.why for entry in target.reflog("main")] == [f"copied from {source.url}"]
    assert keys(target, "packs/") < keys(source, "packs/")


def test_some_refs_take_only_what_they_lead_to(source, target):
    deltavc.copy(source, target, ["good"])
    assert (target.branches(), list(target.tags())) == ({}, ["good"])
    assert len(keys(target, "versions/")) == 3
    deltavc.copy(source, target, ["main", "main"])
    check(source, target, ["good", "main"])
    with pytest.raises(UnknownRef, match="step:2"):
        deltavc.copy(source, target, ["step:2"])


def test_a_copy_that_runs_again_takes_what_is_new_and_follows_rollbacks(source, target):
    deltavc.copy(source, target)
    again = deltavc.copy(source, target)
    assert (again.num_versions, again.num_objects, [ref.moved for ref in again.refs]) == (0, 0, [False] * 3)
    commit(source, (8, 9))
    assert deltavc.copy(source, target, dry_run=True).num_versions == 2
    assert deltavc.copy(source, target).num_versions == 2
    source.rollback("main", to="step:5", reason="worse")
    commit(source, (60,))
    assert deltavc.copy(source, target).num_versions == 1
    check(source, target)
    assert [version.step for version in target.log()] == [60, 5, 4, 3, 2, 1, 0]


def test_a_target_that_went_its_own_way_is_left_alone(source, target):
    deltavc.copy(source, target)
    commit(target, (50,))
    commit(source, (51,))
    before = keys(target, "")
    with pytest.raises(HistoriesDiffer, match="branch 'main' is at"):
        deltavc.copy(source, target)
    assert keys(target, "") == before
    target.branch("main2", "main")
    target.rollback("main", to="step:7", reason="follow the source")
    deltavc.copy(source, target)
    check(source, target)
    source.delete_tag("good")
    source.tag("good", "step:1")
    with pytest.raises(HistoriesDiffer, match="tag 'good'"):
        deltavc.copy(source, target)
    source.tag("main2", "main")
    with pytest.raises(RefExists, match="branch 'main2' exists"):
        deltavc.copy(source, target, ["main2"])
    with pytest.raises(ValueError, match="to itself"):
        deltavc.copy(source, source)


def test_a_target_that_went_on_stays_and_can_be_copied_back(source, target):
    deltavc.copy(source, target)
    commit(target, (8,))
    for key in sorted(keys(target, "packs/") & keys(source, "packs/"))[::2]:  # it lost them, and the source has them
        target._store.delete(key)
    back = deltavc.copy(source, target, ["main"])
    assert [(ref.version, ref.moved) for ref in back.refs] == [(target.resolve("main"), False)]
    assert target.version().step == 8
    deltavc.copy(target, source, ["main"])
    assert source.version().step == 8


def test_it_goes_on_after_a_failure_at_any_write_and_a_ref_never_leads_to_what_is_not_there(source):
    for nth in itertools.count(1, 13):
        store = FaultyStore(ClockedStore())
        with opened(store) as target:
            with store.failing(nth, "before" if nth % 2 else "after", names=WRITES) as fired:
                try:
                    deltavc.copy(source, target)
                except DeltavcError:
                    assert fired
            check(source, target, [*target.branches(), *target.tags()], full=False)
            deltavc.copy(source, target)
            check(source, target, full=False)
        if not fired:
            break
    assert nth > 40


def test_an_interrupted_copy_carries_little_again(source, monkeypatch):
    monkeypatch.setattr("deltavc.interchange.carrying.GROUP_VERSIONS", 2)
    store = FaultyStore(ClockedStore())
    with opened(store) as target:
        with store.failing(40, KeyboardInterrupt(), names=WRITES), pytest.raises(KeyboardInterrupt):
            deltavc.copy(source, target)
        assert target.branches() == {}
        packs = keys(target, "packs/")
        assert packs
        store.calls.clear()
        deltavc.copy(source, target)
        again = {key for name, key in store.calls if name == "put" and key in packs}
        assert len(again) <= 2


def test_what_is_damaged_or_gone_is_named_and_no_ref_moves(source, target):
    some = sorted(keys(source, "packs/", "files/", "versions/", "layouts/"))
    for key in random.Random(3).sample(some, 12):
        body = source._store.get(key)
        source._store.put(key, body[:-1] + bytes([body[-1] ^ 1]))
        with pytest.raises(CorruptObject, match=key.rpartition("/")[2][:60]):
            deltavc.copy(source, target)
        source._store.delete(key)
        with pytest.raises(MissingObject, match=key.rpartition("/")[2][:60]):
            deltavc.copy(source, target)
        source._store.put(key, body)
        assert target.branches() == {}
    deltavc.copy(source, target)
    check(source, target)


@pytest.mark.parametrize("nbytes", [0, 10**15])
def test_a_version_that_lies_about_a_file_is_found_out(source, target, nbytes):
    record = read_version(source._store, source.resolve("main"))
    lie = replace(record, files={"rng": replace(record.files["rng"], nbytes=nbytes)})
    source._store.put(lie.key, lie.body)
    source._refs.move("branches/lie", None, lie.id, "somebody", "")
    with pytest.raises(CorruptObject, match="not what its name says"):
        deltavc.copy(source, target, ["lie"])
    assert target.branches() == {}


def test_what_a_copy_lost_it_gets_back(source, target):
    deltavc.copy(source, target)
    for key in sorted(keys(target, "packs/", "files/", "layouts/"))[::3]:
        target._store.delete(key)
    deltavc.copy(source, target)
    check(source, target)


def test_versions_without_weights_stay_without_and_ways_over_other_branches_come_along(source, target):
    source.compact(Bounds(max_edges=2))
    source.set_policy(Policy(keep_last=1))
    lost = source.expire().lost
    assert lost
    deltavc.copy(source, target, ["main", "good"])
    check(source, target, ["main", "good"])
    weights = {version.id: version.weights for version in target.log()}
    assert weights == {version.id: version.weights for version in source.log()}
    untagged = Policy(keep_last=1, keep_tagged=False)
    source.set_policy(untagged)
    source.expire()
    deltavc.copy(source, target)
    with deltavc.init(memory()) as third:
        deltavc.copy(source, third)
        with pytest.raises(NoPath):
            third.checkout("good")


def test_what_the_targets_policy_gave_up_stays_given_up_unless_it_is_needed(source, target):
    deltavc.copy(source, target, ["main"])
    target.set_policy(Policy(keep_last=1))
    target.expire()
    given_up = {version.id for version in target.log() if not version.weights}
    assert given_up
    commit(source, (8,))
    deltavc.copy(source, target, ["main"])
    assert {version.id for version in target.log() if not version.weights} == given_up
    check(source, target, ["main"])
    deltavc.copy(source, target, ["other"])  # which begins at step 3
    check(source, target, ["main", "other"])


def test_an_interrupted_copy_that_clean_up_took_for_given_up_comes_again(source):
    store = FaultyStore(clocked := ClockedStore())
    with opened(store) as target:
        with store.down(names=("create",)), pytest.raises(DeltavcError):
            deltavc.copy(source, target)  # all is there but the refs
        clocked.wait(days=2)
        assert target.expire().num_uncommitted == len(keys(target, "edges/"))
        clocked.wait(days=2)
        assert target.gc().num_packs > 0
        assert not keys(target, "packs/")
        deltavc.copy(source, target)
        check(source, target)


def test_clean_up_that_listed_what_a_copy_puts_again_does_not_take_it(source):
    store = FaultyStore(clocked := ClockedStore())
    with opened(store) as target, opened(clocked) as beside:
        with store.down(names=("put",), when=lambda key: key.startswith("edges/")), pytest.raises(DeltavcError):
            deltavc.copy(source, target)
        assert (left := keys(target, "packs/"))
        clocked.wait(days=2)
        with store.held(names=("stat",)):
            cleaner = threading.Thread(target=target.gc)
            cleaner.start()
            while not any(name == "stat" for name, _ in store.calls):
                time.sleep(0.01)
            deltavc.copy(source, beside)
        cleaner.join()
        assert left <= keys(target, "packs/")
        check(source, target)


def test_a_copy_that_takes_longer_than_the_grace_looks_again_and_a_part_that_does_is_refused(source, monkeypatch):
    monkeypatch.setattr("deltavc.interchange.carrying.GROUP_VERSIONS", 2)
    store = FaultyStore(clocked := ClockedStore())
    with opened(store) as target:
        slow_packs = store.down(names=("put",), when=lambda key: key.startswith("packs/") and clocked.wait(hours=13))
        with pytest.raises(TooLate, match="a part of the copy"), slow_packs:
            deltavc.copy(source, target)
        with store.down(names=("put",), when=lambda key: key.startswith("versions/") and clocked.wait(hours=7)):
            deltavc.copy(source, target)
        check(source, target)


def test_what_nothing_names_any_more_is_put_again(source, target):
    (key, *_) = keys(source, "packs/")
    target._store.put(key, source._store.get(key))  # as a copy leaves it that was killed before its edges
    before = target._store.stat(key).modified
    deltavc.copy(source, target)
    assert target._store.stat(key).modified > before


def test_a_copy_may_be_between_kinds_of_stores(source, tmp_path):
    with deltavc.init(tmp_path / "there") as local:
        deltavc.copy(source, local)
        assert local.version().step == 7  # its database followed
        with deltavc.init(memory(), db="none") as back:
            deltavc.copy(local, back)
            check(source, back)


@pytest.mark.servers
def test_a_copy_to_s3_and_back_is_the_same(source, tmp_path, s3, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("deltavc.interchange.carrying.IN_MEMORY", 64 << 5)  # some of it goes through files
    url = f"{s3.new_bucket()}/run"
    with deltavc.init(url, storage_options=s3.storage_options) as bucket:
        assert deltavc.copy(source, bucket).num_versions == 10
        assert deltavc.copy(source, bucket).num_objects == 0
        with deltavc.init(tmp_path / "back") as back:
            deltavc.copy(bucket, back)
            check(source, back)
        assert open_store(url, s3.storage_options).url == bucket.url
