"""A tour checks every edge once, from where it starts, and walks little twice."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from deltavc.upkeep.fsck_graph import Graph, Outline


def outline(number, base, target, cost=1, reversible=True):
    base = None if base is None else str(base)
    return Outline(f"e{number}", base, str(target), "layout", reversible and base is not None, cost, cost, (0, 0))


@st.composite
def graphs(draw):
    """Histories with side branches, edges that skip, snapshots, edges that cannot be walked back, and lost ones."""
    length = draw(st.integers(1, 25))
    edges = [(None, 0)]
    for target in range(1, length):
        kinds = st.lists(st.one_of(st.none(), st.integers(0, target - 1)), max_size=3)
        edges += [(base, target) for base in draw(kinds)]
    return [
        outline(number, base, target, draw(st.integers(1, 9)), draw(st.booleans()))
        for number, (base, target) in enumerate(edges)
    ]


def walked(graph, tour, start=None):
    """Follow a tour as a walker does: the moves that it makes, and where it is after each."""
    at, moves = start, []
    for way in tour:
        if way.source is not None:
            for between in graph.between(at, way.source):
                assert between.source in (at, None)
                at = between.to
                moves.append(between)
            assert at == way.source
        moves.append(way)
        at = way.to if way.stays else at
    return moves


@given(graphs(), st.data())
def test_a_tour_takes_every_edge_that_can_be_reached_once_and_no_other(edges, data):
    graph = Graph(edges)
    needed = {edge.id for edge in edges if data.draw(st.booleans())}
    tour = graph.tour(needed)
    reached = {None, *graph.reached}
    assert Counter(way.edge.id for way in tour) == {
        edge.id: 1 for edge in edges if edge.id in needed and edge.base in reached and edge.target in reached
    }
    walked(graph, tour)


@given(graphs())
def test_what_is_reached_is_what_walks_from_nothing_lead_to(edges):
    reached, forwards = {None}, {None}
    for _ in edges:
        reached |= {edge.target for edge in edges if edge.base in reached}
        reached |= {edge.base for edge in edges if edge.target in reached and edge.reversible}
        forwards |= {edge.target for edge in edges if edge.base in forwards}
    graph = Graph(edges)
    assert set(graph.reached) == reached - {None}
    assert set(graph.forwards) == forwards - {None}


@given(graphs())
def test_edges_are_walked_forwards_wherever_something_leads_forwards(edges):
    graph = Graph(edges)
    for way in graph.tour({edge.id for edge in edges}):
        if not way.forward:
            assert way.to not in graph.forwards


def test_a_chain_with_skips_and_snapshots_is_walked_once():
    edges = [outline(0, None, 0, 50)]
    edges += [outline(step, step - 1, step) for step in range(1, 200)]
    edges += [outline(1000 + step, step - 16, step, 5) for step in range(16, 200, 16)]
    edges += [outline(2000 + step, None, step, 60) for step in range(50, 200, 50)]
    graph = Graph(edges)
    moves = walked(graph, graph.tour({edge.id for edge in edges}))
    assert len(moves) == len(edges)


def test_side_branches_are_walked_before_the_trunk_and_back_once():
    edges = [outline(0, None, 0, 50)]
    edges += [outline(step, step - 1, step) for step in range(1, 100)]
    for step in range(10, 100, 10):
        edges += [outline(step * 1000 + n, step if n == 0 else step * 1000 + n - 1, step * 1000 + n) for n in range(3)]
    graph = Graph(edges)
    moves = walked(graph, graph.tour({edge.id for edge in edges}))
    assert len(moves) == len(edges) + 9 * 3


def test_an_interrupted_check_starts_from_the_nearest_snapshot():
    edges = [outline(0, None, 0, 50)]
    edges += [outline(step, step - 1, step) for step in range(1, 200)]
    edges.append(outline(2000, None, 150, 60))
    graph = Graph(edges)
    moves = walked(graph, graph.tour({"e180", "e181"}))
    assert len(moves) == 1 + 29 + 2
