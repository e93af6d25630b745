"""What marks mean in a real database: suspects, merge bases, contradictions, versions without weights."""

import secrets

import pytest

from deltavc.bisect.inquiry import standing
from deltavc.bisect.marks import Marks
from deltavc.bisect.search import Found, Try, Undecided
from deltavc.errors import BadMergeBase, DatabaseNeeded, MarksContradict, UnknownRef
from deltavc.lineage.descent import descent, outside
from deltavc.lineage.lazy import LazyIndex
from deltavc.store import open_store
from tests.lineage.samples import Writer, open_index


@pytest.fixture
def bucket():
    store = open_store(f"memory://{secrets.token_hex(8)}")
    store.prepare()
    return store


@pytest.fixture
def index(bucket):
    made = open_index("sqlite://", bucket)
    yield made
    made.engine.dispose()


@pytest.fixture
def v(bucket, index):
    """Ids by name:    v0 ─ v1 ─ v2 ─ v3 ─ v4 ─ v5 main
    f2 and f3 come from v1, and v5 merges f3.   └─ f2 ─ f3 ──────┘
    """
    main, fork = Writer(bucket), Writer(bucket, "branches/fork")
    ids = {}

    def commit(name, writer, **told):
        made = writer.commit(**told)
        made.record(index)
        ids[name] = made.id

    commit("v0", main)
    commit("v1", main)
    index.record([fork.move(ids["v1"])])
    for name, writer in (("v2", main), ("f2", fork), ("v3", main), ("f3", fork), ("v4", main)):
        commit(name, writer)
    commit("v5", main, merge=[ids["f3"]])
    return ids


def marks(v, *entries):
    """Marks of names: "v1:good v4:bad"."""
    found = Marks()
    for entry in entries:
        name, _, verdict = entry.partition(":")
        found = found.adding(verdict, [v[name]])
    return found


def names(v, ids):
    of = {version: name for name, version in v.items()}
    return {of[version] for version in ids}


def test_suspects_are_what_leads_to_the_bad_one_and_to_no_good_one(index, v):
    assert names(v, standing(index, marks(v, "v1:good", "v5:bad")).suspects) == {"v2", "f2", "v3", "f3", "v4", "v5"}
    assert names(v, standing(index, marks(v, "v1:good", "f3:good", "v5:bad")).suspects) == {"v2", "v3", "v4", "v5"}
    assert names(v, standing(index, marks(v, "v4:bad")).suspects) == {"v0", "v1", "v2", "v3", "v4"}


def test_parents_come_before_children(index, v):
    found = descent(index, [v["v5"]])
    assert set(found.parents) == set(v.values())
    seen = set()
    for version, parents in found.parents.items():
        assert seen.issuperset(parents)
        seen.add(version)
    assert found.parents[v["v5"]] == (v["v4"], v["f3"])
    assert outside(index, [v["v2"], v["f2"], v["v4"]], v["v4"]) == [v["f2"]]


def test_one_suspect_is_the_first_bad_one(index, v):
    assert standing(index, marks(v, "v3:good", "v4:bad")).choice == Found(v["v4"])


def test_a_good_version_on_another_branch_has_the_fork_tried_first(index, v):
    found = standing(index, marks(v, "f3:good", "v4:bad"))
    assert found.choice == Try(v["v1"], 3, 1, merge_base=True)
    assert names(v, found.suspects) == {"v2", "v3", "v4"}
    assert standing(index, marks(v, "f3:good", "v4:bad", "v1:good")).choice.version in (v["v2"], v["v3"])


def test_a_fork_that_comes_before_another_good_version_is_known_to_be_good(index, v):
    assert not standing(index, marks(v, "f3:good", "v2:good", "v4:bad")).choice.merge_base


def test_a_bad_fork_ends_the_search(index, v):
    with pytest.raises(BadMergeBase) as caught:
        standing(index, marks(v, "f3:good", "v4:bad", "v1:bad"))
    assert (caught.value.merge_base, caught.value.good) == (v["v1"], (v["f3"],))
    assert caught.value.exit_code == 3


def test_a_fork_that_was_skipped_is_taken_to_be_good_and_that_is_told(index, v):
    found = standing(index, marks(v, "f3:good", "v4:bad", "v1:skip"))
    assert found.doubts == (v["v1"],)
    assert not found.choice.merge_base


@pytest.mark.parametrize("entries", [("v4:good", "v1:bad"), ("v3:good", "v3:bad", "v3:good", "v1:bad")])
def test_good_after_bad_is_a_contradiction(index, v, entries):
    with pytest.raises(MarksContradict) as caught:
        standing(index, marks(v, *entries))
    assert caught.value.bad == v["v1"]


def test_a_later_mark_takes_the_place_of_an_earlier_one(index, v):
    found = marks(v, "v0:good", "v5:bad", "v2:bad", "v2:good")
    assert (found.bad, found.good) == (v["v5"], [v["v0"], v["v2"]])
    assert v["v2"] not in standing(index, found).suspects


def test_versions_without_weights_are_not_tried(index, v):
    index.drop([edge.id for name in ("v2", "v3") for edge in index.edges_into(v[name])])
    found = standing(index, marks(v, "v1:good", "v5:bad", "f3:good"))
    assert found.choice.version == v["v4"]
    assert names(v, found.unkept) == {"v2", "v3"}
    left = standing(index, marks(v, "v1:good", "v4:bad"))
    assert left.choice == Undecided((v["v2"], v["v3"], v["v4"]))


def test_without_a_database_that_is_what_is_said(bucket, v):
    with pytest.raises(DatabaseNeeded):
        standing(LazyIndex(bucket, "memory://bisect"), marks(v, "v1:good", "v4:bad"))


def test_unknown_versions_are_errors(index, v):
    with pytest.raises(UnknownRef):
        standing(index, Marks().adding("bad", ["0" * 64]))
