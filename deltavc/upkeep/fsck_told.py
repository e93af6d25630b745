"""What edges tell of fingerprints: along every edge, whether it adds up to its target's root. No weights are read.

An edge tells the fingerprints of the tensors that it changes. With those of its base they are all of its target's, and
their hash has to be the version's. Of two edges to one version both have to say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from deltavc import fingerprints
from deltavc.layout import Layout
from deltavc.lineage.records import EdgeRecord
from deltavc.upkeep.fsck_graph import Outline, Way
from deltavc.upkeep.fsck_report import Problem

Carried = Callable[[Layout, Layout], frozenset[str]]


def told(edge: EdgeRecord, layout: Layout) -> dict[str, int]:
    """The fingerprints that an edge tells, by name; `layout` is its target's."""
    pairs = zip(edge.changed, edge.fingerprints, strict=True)
    return {layout.tensors[place].name: int(value, 16) for place, value in pairs}


def check_told(
    tour: Iterable[Way],
    record: Callable[[Outline], EdgeRecord],
    layout: Callable[[str], Layout],
    carried: Carried,
    roots: Mapping[str, str],
) -> dict[str, Problem]:
    """Go through edges forwards, and return the problems of those that lie, by their ids.

    Args:
        tour: every edge, each where the fingerprints of its base were met before (`Graph.tour`).
        roots: the fingerprint that each version says it has.
    """
    ways = [way for way in tour if way.forward]
    # Kept until the last edge from there: on a tour few versions have one that is far off.
    waiting = Counter(way.source for way in ways)
    values: dict[str | None, dict[str, int]] = {None: {}}
    wrong: dict[str, Problem] = {}
    for way in ways:
        before = values.get(way.source)
        waiting[way.source] -= 1
        if not waiting[way.source]:
            values.pop(way.source, None)
        if before is None:
            continue  # reached backwards only, or over an edge that lies; a full check walks it
        edge = record(way.edge)
        target = layout(edge.layout)
        names = frozenset() if edge.base_layout is None else carried(layout(edge.base_layout), target)
        after = dict(before)
        fingerprints.follow(after, names, told(edge, target).items())
        root = roots.get(edge.target)  # None where the version's record cannot be read, which was told
        if root is not None and fingerprints.root(target, after) != root:
            said = "the fingerprints that it tells are not those of its target"
            wrong[edge.id] = Problem("wrong_edge", edge.key, said, (edge.target,))
        elif way.stays and waiting[edge.target]:
            values[edge.target] = after
    return wrong
