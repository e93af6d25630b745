"""Trees of ways over any edges at all: what is kept is reached by what is needed, and by runs made into one edge."""

from hypothesis import given
from hypothesis import strategies as st

from deltavc.lineage.choosing import Outline
from deltavc.upkeep.tree import Tree

NUM = 12


@st.composite
def graphs(draw):
    """Edges among a few versions, cycles and duplicates among them; nothing is None."""
    ends = st.integers(0, NUM - 1)
    pairs = draw(st.lists(st.tuples(st.none() | ends, ends, st.integers(1, 100)), max_size=40))
    return [
        Outline(f"e{number}", None if base is None else f"v{base}", f"v{target}", cost, cost, (f"p{number}",))
        for number, (base, target, cost) in enumerate(pairs)
    ]


kept_sets = st.sets(st.integers(0, NUM - 1).map("v{}".format))


def reached(edges):
    """By definition: what some row of edges leads to from nothing."""
    found = {None}
    while more := {edge.target for edge in edges if edge.base in found} - found:
        found |= more
    return found - {None}


@given(graphs())
def test_a_tree_reaches_what_can_be_reached_by_ways_that_begin_at_nothing(edges):
    tree = Tree(edges)
    assert tree.entry.keys() == reached(edges)
    for version in tree.entry:
        way = tree.way(version)
        assert way[-1].base is None
        assert [edge.base for edge in way[:-1]] == [edge.target for edge in way[1:]]


@given(graphs(), kept_sets)
def test_what_is_needed_is_enough(edges, kept):
    tree = Tree(edges)
    assert reached(tree.needed(kept).values()) >= kept & tree.entry.keys()


@given(graphs(), kept_sets)
def test_an_edge_in_the_place_of_each_run_is_enough(edges, kept):
    tree = Tree(edges)
    needed = {edge.id: edge for edge in tree.needed(kept).values()}
    for run in tree.runs(kept):
        assert len(run.edges) > 1
        assert not {edge.target for edge in run.edges[:-1]} & kept
        for edge in run.replaced:
            del needed[edge.id]  # of one run alone
        needed[f"jump to {run.target}"] = Outline("jump", run.start, run.target, 1, 1, ())
    assert reached(needed.values()) >= kept & tree.entry.keys()
