"""A reader whose way was cleaned up meanwhile looks for another one, once."""

import pytest

from deltavc.errors import MissingObject, NoPath
from tests.faults import FaultyStore
from tests.upkeep.stores import ClockedStore, drop, grown, opened, same_as_committed, state_at


@pytest.fixture
def store():
    return ClockedStore()


@pytest.fixture
def repo(store):
    """A reader who knows six versions, snapshots at 0 and 3. `replaced` are the edges that the second one replaces."""
    with opened(store) as writes, opened(store) as repo:
        repo.ids = grown(writes, 6, snapshots=(3,))
        repo.all = [edge for version in repo.ids for edge in repo.edges(version)]
        repo.replaced = [edge for edge in repo.all if edge.target in repo.ids[:3] or edge.base == repo.ids[2]]
        repo.snapshot = next(edge for edge in repo.all if edge.target == repo.ids[3] and edge.base is None)
        repo._index.drop([repo.snapshot.id])  # so that it plans the long way
        yield repo


def clean_up(store, edges):
    drop(store, *edges)
    for edge in edges:
        for use in edge.packs:
            store.delete(use.key)


USES = {
    "checkout": lambda repo, ref: repo.checkout(ref),
    "writer": lambda repo, ref: repo.writer().move(ref),
    "diff": lambda repo, ref: repo.diff("main", ref),
}


@pytest.mark.parametrize("use", USES)
def test_a_way_that_was_cleaned_up_is_planned_again(repo, store, use):
    clean_up(store, repo.replaced)
    assert USES[use](repo, repo.ids[3])
    assert same_as_committed(repo.checkout(repo.ids[5]), 5)


def test_what_others_added_is_found_where_there_was_no_way(repo, store):
    repo._index.drop([edge.id for edge in repo.all])
    assert same_as_committed(repo.checkout(repo.ids[1]), 1)


def test_the_second_attempt_is_the_last(repo, store):
    clean_up(store, repo.all)
    faulty = FaultyStore(store)
    with opened(faulty) as reader:
        with pytest.raises(NoPath):
            reader.checkout("main")
        assert faulty.calls.count(("list", "edges/")) == 1


def test_the_first_error_stands_when_the_bucket_cannot_be_asked(repo, store):
    faulty = FaultyStore(store)
    with opened(faulty) as reader:
        reader.checkout("main")
        clean_up(store, repo.all)
        with faulty.down(names=("list",)), pytest.raises(MissingObject):
            reader.checkout("main")


def test_live_tensors_are_written_to_once_a_way_is_found(repo, store):
    clean_up(store, repo.replaced)
    live = state_at(0)
    repo.checkout(repo.ids[5], into=live)
    assert same_as_committed(live, 5)
