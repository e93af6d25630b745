"""Rescue: a snapshot for what was dropped too much.

    nothing ══x══> v0 ──x──> v1 ──> v2 <── main        x: dropped, and main moved there at that very moment
    nothing ═════════════════^                         a snapshot written from the packs, which are still there

Versions that are needed are never left without a way: where edges were dropped that turn out to be needed, the packs
they name are there for the grace, and a snapshot is made of them. Drops stay: what may be deleted only ever grows
older, and clean-up that is under way needs to know of nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from deltavc.access import Access
from deltavc.errors import MissingObject, ObjectMissing
from deltavc.lineage.backwards import Backwards
from deltavc.lineage.bucket import listed_edges, read, read_edge
from deltavc.lineage.drops import EXPIRED, DropRecord
from deltavc.lineage.plan import search
from deltavc.lineage.records import EdgeRecord, drop_key, drops_prefix, edges_prefix
from deltavc.lineage.surroundings import BucketSurroundings
from deltavc.upkeep.composing import Composer

log = logging.getLogger(__name__)

Ways = Mapping[str, list[EdgeRecord]]
"""A way to each of some versions, over edges that were dropped and others."""


def stranded(access: Access, wanted: Iterable[str], reached: Collection[str]) -> Ways:
    """Versions that are wanted and would have a way if edges had not been dropped, all objects of which are there.

    Args:
        reached: versions that have a way.

    Raises:
        CorruptObject, StoreError
    """
    found = {version: _way(access, version, reached) for version in sorted(set(wanted) - set(reached))}
    return {version: way for version, way in found.items() if way is not None}


def rescue(access: Access, ways: Ways, there: Collection[str]) -> None:
    """Write snapshots so that versions have a way again: one behind the last dropped edge of each way.

    Args:
        there: ids of edges that were not dropped.

    Raises:
        Corruption, TooLate, StoreError, DatabaseUnavailable
    """
    dropped = {edge.id: edge for way in ways.values() for edge in way if edge.id not in there}
    points = {next(edge.target for edge in reversed(way) if edge.id in dropped) for way in ways.values()}
    access.index.record([], edges=list(dropped.values()))  # so that a way can be planned over them
    try:
        with Composer(access) as composer:
            for version in sorted(points):
                log.warning("version %s is needed, and edges to it were dropped: writing a snapshot", version)
                composer.compose(None, version)
    finally:
        access.index.drop(dropped.keys())


def _way(access: Access, version: str, reached: Collection[str]) -> list[EdgeRecord] | None:
    around = BucketSurroundings(Backwards(lambda version: _edges_to(access, version), access.refs, {}), True)
    found = search(around, version, reached)
    if found is None:
        return None
    return [step.edge for step in around.steps(found[1])]


def _edges_to(access: Access, version: str) -> list[EdgeRecord]:
    """Every edge to a version, of dropped ones those that nothing had needed and whose packs are there still."""
    found = []
    dropped = {edge for _, edge in listed_edges(access.store, drops_prefix(version))}
    for _, edge in listed_edges(access.store, edges_prefix(version)):
        with suppress(MissingObject, ObjectMissing):  # taken back, or gone, since it was listed
            record = read_edge(access.store, version, edge)
            if edge in dropped:
                if read(access.store, drop_key(version, edge), DropRecord.parse).why != EXPIRED:
                    continue
                for use in record.packs:
                    access.store.stat(use.key)
            found.append(record)
    return found
