import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltavc.errors import NoPath, UnknownRef
from deltavc.lineage.database import writing
from deltavc.lineage.ingest import Batch, insert_batch
from deltavc.lineage.plan import cost, plan
from tests.lineage.samples import LAYOUT, edge, open_index, version


def fill(index, versions, edges):
    with writing(index.engine) as db:
        insert_batch(db, Batch(versions, [LAYOUT], edges))


def chain(index, length, snapshots=(0,)):
    """A line of versions, an edge each; returns their ids."""
    line, edges = [], []
    for place in range(length):
        line.append(version([line[-1].id] if line else []))
        if place:
            edges.append(edge(line[-2].id, line[-1].id))
        if place in snapshots:
            edges.append(edge(None, line[-1].id, nbytes=10_000_000))
    fill(index, line, edges)
    return [item.id for item in line]


def walked(found):
    """Where a plan leads, checking that its steps join."""
    at = found.start
    for step in found.steps:
        assert at == (step.edge.base if step.forward else step.edge.target)
        assert step.forward or step.edge.reversible
        at = step.to
    return at


def price(found):
    return sum(cost(step.edge.nbytes, step.edge.changes) for step in found.steps)


def cheapest(edges, held, target, forward_only):
    """Bellman-Ford over everything: slow and obvious."""
    best = {None: 0} | dict.fromkeys(held, 0)
    ways = [(item.base, item.target, cost(item.nbytes, item.changes)) for item in edges]
    if not forward_only:
        ways += [(item.target, item.base, cost(item.nbytes, item.changes)) for item in edges if item.reversible]
    for _ in range(len(ways) + 1):
        for source, to, price in ways:
            if source in best and best[source] + price < best.get(to, 1 << 80):
                best[to] = best[source] + price
    return best.get(target)


def test_a_plan_from_nothing_starts_at_a_snapshot(index):
    line = chain(index, 10, snapshots=(0, 6))
    found = plan(index, line[8])
    assert (found.start, found.target) == (None, line[8])
    assert [step.to for step in found.steps] == line[6:9]
    assert found.nbytes == 10_002_000
    assert found.changes == 300
    assert found.steps[0].edge in index.edges_into(line[6])
    assert found.steps[0].edge.base is None


def test_a_plan_goes_back_from_a_snapshot_behind(index):
    line = chain(index, 10, snapshots=(0, 6))
    found = plan(index, line[5])
    assert [(step.to, step.forward) for step in found.steps] == [(line[6], True), (line[5], False)]
    found = plan(index, line[5], forward_only=True)
    assert [(step.to, step.forward) for step in found.steps] == [(version, True) for version in line[:6]]


def test_a_plan_starts_from_what_is_held(index):
    line = chain(index, 10)
    assert plan(index, line[4], held=[line[4]]).steps == ()
    assert plan(index, line[4], held=[line[4]]).start == line[4]
    assert [step.to for step in plan(index, line[4], held=[line[2], line[9]]).steps] == line[3:5]
    assert [step.to for step in plan(index, line[4], held=[line[0], line[6]]).steps] == [line[5], line[4]]
    assert plan(index, line[4], held=[line[9]], forward_only=True).start is None
    assert plan(index, line[4], held=["0" * 64]).start is None


def test_a_plan_crosses_from_one_branch_to_another(index):
    line = chain(index, 6)
    side = version([line[2]])
    fill(index, [side], [edge(line[2], side.id)])
    found = plan(index, side.id, held=[line[5]])
    assert [(step.to, step.forward) for step in found.steps] == [
        (line[4], False),
        (line[3], False),
        (line[2], False),
        (side.id, True),
    ]


def test_an_edge_that_skips_many_is_taken(index):
    line = chain(index, 40)
    fill(index, [], [edge(line[0], line[32], nbytes=5000, origin="compact")])
    found = plan(index, line[34], held=[line[0]])
    assert [step.to for step in found.steps] == line[32:35]
    assert [step.to for step in plan(index, line[31], held=[line[0]]).steps] == [line[32], line[31]]


def test_a_chain_of_a_thousand_edges_is_found(index):
    line = chain(index, 2001, snapshots=(0,))
    found = plan(index, line[1000], held=[line[2000]])
    assert len(found.steps) == 1000
    assert walked(found) == line[1000]
    found = plan(index, line[2000])
    assert len(found.steps) == 2001
    assert walked(found) == line[2000]


def test_no_path_is_an_error(index):
    line = chain(index, 3, snapshots=())
    with pytest.raises(NoPath) as caught:
        plan(index, line[2])
    assert caught.value.version == line[2]
    assert plan(index, line[2], held=[line[0]]).start == line[0]
    with pytest.raises(UnknownRef):
        plan(index, "0" * 64)


def test_an_edge_that_cannot_be_reversed_is_walked_forwards_only(index):
    first, second = version(), version()
    fill(index, [first, second], [edge(first.id, second.id, reversible=False)])
    assert plan(index, second.id, held=[first.id]).steps[0].forward
    with pytest.raises(NoPath):
        plan(index, first.id, held=[second.id])


GRAPHS = st.integers(2, 12).flatmap(
    lambda count: st.tuples(
        st.just(count),
        st.lists(
            st.tuples(
                st.one_of(st.none(), st.integers(0, count - 1)),
                st.integers(0, count - 1),
                st.integers(0, 3_000_000),
                st.integers(0, 10_000_000),
                st.booleans(),
            ).filter(lambda item: item[0] != item[1]),
            max_size=30,
        ),
        st.sets(st.integers(0, count - 1), max_size=3),
        st.booleans(),
    )
)


@settings(suppress_health_check=[*settings.default.suppress_health_check, HealthCheck.function_scoped_fixture])
@given(graph=GRAPHS)
def test_plans_are_as_cheap_as_brute_force_finds(graph, bucket):
    count, ways, held, forward_only = graph
    index = open_index("sqlite://", bucket)
    made = [version() for _ in range(count)]
    edges = [
        edge(None if base is None else made[base].id, made[target].id, nbytes, changes, reversible)
        for base, target, nbytes, changes, reversible in ways
    ]
    fill(index, made, edges)
    held_ids = [made[place].id for place in held]
    for target in made:
        expected = cheapest(edges, held_ids, target.id, forward_only)
        try:
            found = plan(index, target.id, held_ids, forward_only=forward_only)
        except NoPath:
            assert expected is None
            continue
        assert price(found) == expected
        assert walked(found) == target.id
        assert found.start in {None, *held_ids}
        assert all(step.forward for step in found.steps) or not forward_only
    index.engine.dispose()
