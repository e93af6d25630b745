"""A writer publishes nothing that clean-up may be about to delete, whatever stood still in between."""

import time

import pytest

from deltavc.errors import StoreUnavailable, TooLate
from deltavc.lineage.drops import DropRecord
from deltavc.lineage.records import EdgeRecord
from deltavc.lineage.settings import Policy
from deltavc.upkeep.composing import compose_path
from tests.faults import FaultyStore
from tests.upkeep.stores import ClockedStore, Meanwhile, drop, grown, opened, same_as_committed, state_at


@pytest.fixture
def store():
    return ClockedStore()


def set_grace(store, seconds):
    with opened(store) as other:
        other._settings.set(Policy(grace_seconds=seconds), "me", "why")


@pytest.mark.parametrize(("hours", "in_time"), [(11.9, True), (12.1, False)])
def test_what_is_older_than_half_the_grace_is_not_published(store, hours, in_time):
    slow = Meanwhile(store)
    with opened(slow) as repo, repo.writer() as writer:
        first = writer.commit(state_at(0), step=0)
        slow.before("now", lambda: store.wait(hours=hours))  # which is asked once the uploads are done
        if in_time:
            writer.commit(state_at(1), step=1)
        else:
            with pytest.raises(TooLate) as caught:
                writer.commit(state_at(1), step=1)
            assert caught.value.limit == 12 * 3600
            assert repo.resolve("main") == first.id
        writer.commit(state_at(2), step=2)
        assert same_as_committed(repo.checkout(), 2)


def test_a_shorter_grace_holds_from_the_moment_at_which_it_is_set(store):
    def meanwhile():
        store.wait(minutes=40)
        set_grace(store, 3600)

    slow = Meanwhile(store)
    with opened(slow) as repo, repo.writer() as writer:
        writer.commit(state_at(0))
        slow.before("now", meanwhile)
        with pytest.raises(TooLate):
            writer.commit(state_at(1))


def test_a_longer_grace_does_not_help_what_was_uploaded_under_a_shorter_one(store):
    def meanwhile():
        store.wait(minutes=40)
        set_grace(store, 10**6)

    set_grace(store, 3600)
    slow = Meanwhile(store)
    with opened(slow) as repo, repo.writer() as writer:
        writer.commit(state_at(0))
        slow.before("now", meanwhile)
        with pytest.raises(TooLate):
            writer.commit(state_at(1))
        slow.before("now", lambda: store.wait(hours=40))
        writer.commit(state_at(2))


@pytest.mark.parametrize("hours", [-30, 24 * 365])
def test_it_does_not_matter_that_the_store_has_another_time(store, hours):
    store.wait(hours=hours)
    with opened(store) as repo:
        grown(repo, 3)


def test_a_commit_asks_for_the_time_once(store):
    counted = Meanwhile(store)
    with opened(counted) as repo, repo.writer() as writer:
        writer.commit(state_at(0))
        asked = []
        counted.before("now", lambda: asked.append(1), again=True)
        for step in range(1, 4):
            writer.commit(state_at(step))
            assert len(asked) == step


def test_a_store_that_does_not_tell_its_time_fails_the_commit_and_not_the_writer(store):
    def down():
        raise StoreUnavailable(store.url, "now", "injected")

    slow = Meanwhile(store)
    with opened(slow) as repo, repo.writer() as writer:
        writer.commit(state_at(0))
        slow.before("now", down)
        with pytest.raises(StoreUnavailable):
            writer.commit(state_at(1))
        writer.commit(state_at(2))
        assert same_as_committed(repo.checkout(), 2)


def forget_what_was_never_committed(store):
    """What clean-up does to edges of versions that no entry leads to, and to their packs."""
    with opened(store) as stranger:
        known = {version.id for version in stranger.log(all=True)}
    for key in store.keys("edges/"):
        edge = EdgeRecord.parse(store.get(key))
        if edge.target not in known:
            drop(store, edge, why="uncommitted")
            for use in edge.packs:
                store.delete(use.key)


def everything_is_there(store):
    with opened(store) as fresh:
        return all(same_as_committed(fresh.checkout(version.id), version.step) for version in fresh.log())


@pytest.mark.parametrize("taken", [False, True], ids=["untouched", "cleaned-up"])
def test_an_entry_that_landed_late_is_taken_back_if_clean_up_was_faster(store, taken):
    def stopped():
        time.sleep(1.7)  # more than half the grace
        if taken:
            forget_what_was_never_committed(store)

    slow = Meanwhile(store)
    with opened(slow) as repo, repo.writer() as writer:
        first = writer.commit(state_at(0), step=0)
        set_grace(store, 3)
        slow.before("create", stopped)
        if taken:
            with pytest.raises(TooLate):
                writer.commit(state_at(1), step=1)
            assert repo.resolve("main") == first.id
            assert "taken back" in repo.reflog()[0].why
        else:
            writer.commit(state_at(1), step=1)
        writer.commit(state_at(2), step=2)
        assert [version.step for version in repo.log()] == ([2, 0] if taken else [2, 1, 0])
    assert everything_is_there(store)


@pytest.mark.parametrize("landed", ["before", "after"], ids=["lost-request", "lost-answer"])
def test_a_doubt_that_is_settled_too_late_is_looked_at_and_not_tried_again(store, landed):
    faulty = FaultyStore(store)
    with opened(faulty) as repo, repo.writer() as writer:
        writer.commit(state_at(0), step=0)
        with faulty.down(landed, names=("create",)):
            assert writer.commit_async(state_at(1), step=1).exception() is not None
        store.wait(hours=30)
        if landed == "before":
            forget_what_was_never_committed(store)
        writer.commit(state_at(2), step=2)
        assert [version.step for version in repo.log()] == ([2, 1, 0] if landed == "after" else [2, 0])
    assert everything_is_there(store)


def test_a_doubt_that_landed_too_late_is_taken_back(store):
    slow = Meanwhile(store)
    with opened(slow) as repo, repo.writer() as writer:
        writer.commit(state_at(0), step=0)

        def lost():
            slow.before("create", unavailable, again=True)
            forget_what_was_never_committed(store)
            slow.after("create", unavailable)

        def unavailable():
            raise StoreUnavailable(store.url, "create", "injected")

        slow.before("create", lost)
        assert writer.commit_async(state_at(1), step=1).exception() is not None
        slow.quiet()
        store.wait(hours=30)
        writer.commit(state_at(2), step=2)
        assert [version.step for version in repo.log()] == [2, 0]
    assert everything_is_there(store)


@pytest.mark.parametrize("dropped", [False, True])
def test_frames_of_a_snapshot_that_was_dropped_are_not_used_again(store, dropped):
    def snapshot(step):
        writer.commit({"same": state_at(0)["w"], "other": state_at(step)["b"]}, snapshot=True)
        return next(edge for edge in repo.edges() if edge.base is None)

    with opened(store) as repo, repo.writer() as writer:
        old = snapshot(0)
        if dropped:
            record = DropRecord.of(old, "me", "expire")
            store.create(record.key, record.body)
        new = snapshot(1)
        assert {use.pack for use in new.packs}.isdisjoint(use.pack for use in old.packs) is dropped


@pytest.mark.parametrize("late", [False, True], ids=["before-the-check", "after-it"])
def test_a_composed_edge_is_not_published_late_either(store, late):
    def stopped():
        store.wait(hours=13)

    slow = Meanwhile(store)
    with opened(slow) as repo:
        ids = grown(repo, 5)
        set_grace(store, 3)
        edges = repo.edges(ids[4])
        if late:
            slow.after("now", lambda: slow.before("put", stopped))
        else:
            slow.before("now", stopped)
        with pytest.raises(TooLate):
            compose_path(repo._access(1 << 26), ids[0], ids[4])
        assert repo.edges(ids[4]) == edges
    assert everything_is_there(store)
