import pytest

from deltavc import canonical
from deltavc.errors import BadPayload, NoPath
from deltavc.lineage.drops import MANY, DropRecord, Drops
from deltavc.lineage.plan import plan
from deltavc.lineage.records import drop_key
from tests.faults import FaultyStore
from tests.lineage.samples import Writer, contents, edge, version


def dropped_of(edge):
    return DropRecord.of(edge, "me", "damaged")


def test_a_drop_comes_back_as_it_was_written():
    made = dropped_of(edge(None, "1" * 64))
    assert DropRecord.parse(made.body) == made
    assert made.key == drop_key("1" * 64, made.edge)


@pytest.mark.parametrize("change", [{"edge": "x"}, {"when": "today"}, {"why": None}, {"more": 1}])
def test_what_no_writer_wrote_is_no_drop(change):
    fields = {name: getattr(dropped_of(edge(None, "1" * 64)), name) for name in DropRecord.__dataclass_fields__}
    with pytest.raises(BadPayload):
        DropRecord.parse(canonical.sealed(fields | change))
    with pytest.raises(BadPayload):
        DropRecord.parse(canonical.dumps(fields))  # no checksum


def test_dropped_edges_are_not_indexed(bucket, index):
    main = Writer(bucket)
    first, second = main.commit(), main.commit(snapshot=True)
    main.drop(second.edges[1])
    index.catch_up_all()
    assert index.edges_into(second.id) == [second.edges[0]]
    assert index.edges_into(first.id) == list(first.edges)


def test_refreshing_finds_what_others_added_and_dropped(bucket, new_index):
    index, fresh = new_index(), new_index()
    main = Writer(bucket)
    commits = [main.commit(snapshot=number == 2) for number in range(5)]
    index.catch_up_all()
    jump = main.add(commits[0].id, commits[4].id, shared=commits[1].edges[0].packs)
    main.drop(commits[1].edges[0], commits[2].edges[1])
    other = Writer(bucket, "branches/other").commit()  # not followed yet
    index.refresh()
    assert index.edges_into(commits[4].id) == sorted([commits[4].edges[0], jump], key=lambda item: item.id)
    assert index.edges_into(commits[1].id) == []
    index.catch_up_all()
    assert index.edges_into(other.id) == list(other.edges)
    fresh.catch_up_all()
    assert contents(index) == contents(fresh)
    before = contents(index)
    index.refresh()
    assert contents(index) == before


def test_a_drop_that_was_taken_back_is_forgotten(bucket, index):
    main = Writer(bucket)
    commit = main.commit()
    index.catch_up_all()
    before = contents(index)
    main.drop(*commit.edges)
    index.refresh()
    with pytest.raises(NoPath):
        plan(index, commit.id)
    bucket.delete(drop_key(commit.id, commit.edges[0].id))
    index.refresh()
    assert contents(index) == before


def test_edges_can_be_recorded_by_themselves(bucket, new_index):
    index, behind, fresh = new_index(), new_index(), new_index()
    main = Writer(bucket)
    first, _, third = main.commit(), main.commit(), main.commit()
    index.catch_up_all()
    jump = main.add(first.id, third.id)
    for some in (index, behind):  # one of them has never heard of the versions
        some.record([], edges=[jump])
        assert jump in some.edges_into(third.id)
    fresh.catch_up_all()
    assert contents(index) == contents(behind) == contents(fresh)


def test_packs_go_with_the_last_edge_that_names_them(bucket, index):
    main = Writer(bucket)
    first, second = main.commit(), main.commit()
    sharing = main.add(None, second.id, shared=first.edges[0].packs)
    index.catch_up_all()
    assert index.totals().num_packs == 3
    index.drop([first.edges[0].id])
    assert index.totals().num_packs == 3
    index.drop([sharing.id, "0" * 64])
    assert index.totals().num_packs == 1


def test_drops_cost_a_listing_per_version_or_one_for_all(bucket):
    counted = FaultyStore(bucket)
    drops = Drops(counted)
    gone = edge(None, version().id)
    record = dropped_of(gone)
    bucket.create(record.key, record.body)
    assert drops.of(gone.target) == {gone.id}
    for _ in range(3 * MANY):
        assert drops.of(version().id) == set()
    assert drops.of(gone.target) == {gone.id}
    assert len(counted.calls) == MANY + 1
