"""Compacting: every version can be reached within bounds, however long its history is.

    before     S ─ 1 ─ 2 ─ 3 ─ … ─ 700             700 deltas to walk
    after      S ═══ 256 ═══ 512 ═ 528 … ─ 700     edges that skip; what was there stays

Versions are looked at parents first. Where a way has too many edges, edges that skip are composed along it; where it
has too many bytes, or none of that helps, a snapshot is written. What is there already is used, so a run that was
interrupted goes on where it was. Every edge is proven before it is put, and nothing depends on it until then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from deltavc.access import Access
from deltavc.errors import Corruption, NoPath, TooLate
from deltavc.lineage.links import Link, links
from deltavc.upkeep import bundle
from deltavc.upkeep.composing import Composer
from deltavc.upkeep.ways import Bounds, Way, Ways, spans

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]


@dataclass
class Compacted:
    """What was written, or would be.

    num_edges, num_snapshots: edges that skip, and snapshots. nbytes: of their packs; estimated from above in a dry run.
    num_bundles: bundles of records. beyond: versions that still are beyond the bounds. failed: for versions to which
    an edge could not be made, why. damaged: those of them where damage was in the way; for others, such as an edge that
    took longer than half the grace, the next run tries again.
    """

    dry_run: bool
    num_edges: int = 0
    num_snapshots: int = 0
    nbytes: int = 0
    num_bundles: int = 0
    beyond: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form, as `--json` prints it."""
        return asdict(self)


def compact(access: Access, bounds: Bounds, *, dry_run: bool, progress: Progress) -> Compacted:
    """Make every version reachable within bounds, and bundle the records.

    Raises:
        StoreError, DatabaseUnavailable: what was written until then is of use.
        DatabaseNeeded
    """
    access.index.catch_up_all()
    access.index.refresh()
    done = Compacted(dry_run)
    with ExitStack() as stack:
        made = _Shortening(access, bounds, done, None if dry_run else stack.enter_context(Composer(access)))
        made.run(progress)
    if bundle.is_due(access):
        progress("writing bundles", 0, 0)
        done.num_bundles = 1 if dry_run else len(bundle.write(access))
    return done


class _Shortening:
    """One run over all versions."""

    def __init__(self, access: Access, bounds: Bounds, done: Compacted, composer: Composer | None) -> None:
        """`composer` makes edges; None only counts them."""
        self._access = access
        self._bounds = bounds
        self._done = done
        self._composer = composer
        self._links = links(access.index)
        self._ways = Ways(self._links)

    def run(self, progress: Progress) -> None:
        for number, version in enumerate(self._links.order):
            way = self._ways.look(version)
            if way is not None and way.is_long(self._bounds):
                way = self._skip(version, way)
            if way is not None and (way.is_long(self._bounds) or way.is_large(self._bounds)):
                way = self._add(None, version, way.snapshot) or way
                if way.is_long(self._bounds) or way.is_large(self._bounds):
                    self._done.beyond.append(version)
            progress("shortening ways", number + 1, len(self._links.order))

    def _skip(self, version: str, way: Way) -> Way:
        """Add edges that skip along the way to a version, until it is short enough or there are no more."""
        chain = self._ways.chain(version)
        for places in spans(chain, self._bounds.span):
            for start, end in places:
                base, target = chain[start], chain[end]
                if not self._ways.has(base, target):
                    self._add(base, target, self._ways.between(base, target))
            for one in chain[1:]:
                way = self._ways.look(one) or way
            if not way.is_long(self._bounds):
                break
        return way

    def _add(self, base: str | None, target: str, estimate: Link) -> Way | None:
        """Add an edge, or in a dry run one that would be as large as estimated; the way to its target then."""
        if target in self._done.failed:
            return None
        if self._composer is None:
            self._done.nbytes += estimate.nbytes
            link = Link(base, estimate.nbytes, estimate.changes)
        else:
            try:
                edge = self._composer.compose(base, target)
            except (Corruption, NoPath, TooLate) as error:
                log.warning("no edge to %s could be made: %s", target, error)
                self._done.failed[target] = str(error)
                if isinstance(error, Corruption):
                    self._done.damaged.append(target)
                return None
            self._done.nbytes += edge.new_bytes
            link = Link(base, edge.nbytes, edge.changes)
        if base is None:
            self._done.num_snapshots += 1
        else:
            self._done.num_edges += 1
        self._ways.add(target, link)
        return self._ways.look(target)
