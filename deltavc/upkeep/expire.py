"""Expire: what no kept version needs is dropped, once what is needed instead has been written and proven.

    what is kept? ── compose the runs ── what is kept now? ── drops ── is everything kept still reached?
                     (verified edges)    (others went on)     (records)  (if not: a snapshot)

Nothing is deleted here. A drop takes an edge away from whoever looks for a way; clean-up deletes its packs when the
drop is older than the grace. Somebody may make a branch or a tag at a version while its edges are being dropped: both
write first and look afterwards, so at least one of them sees the other, and the version gets a snapshot of its own.
A run that is killed has dropped only edges that nothing kept needed; the next one looks after it.

An edge to a version that was never committed, such as a killed writer leaves, is dropped once it is older than any
grace that ever held: no writer may commit it then.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from deltavc.access import Access
from deltavc.errors import CleanUpRefused, CorruptObject
from deltavc.lineage import choosing
from deltavc.lineage.bucket import edge_of, listed_edges
from deltavc.lineage.choosing import Outline
from deltavc.lineage.drops import EXPIRED, UNCOMMITTED, DropRecord
from deltavc.lineage.fields import now
from deltavc.lineage.records import DROPS, EDGES
from deltavc.lineage.settings import SettingsRef
from deltavc.upkeep.composing import Composer
from deltavc.upkeep.policy import kept
from deltavc.upkeep.rescue import Ways, rescue, stranded
from deltavc.upkeep.tree import Run, Tree

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """What was dropped, or would be.

    kept: versions that the policy keeps, with the rules that keep them. without: those of them without weights before.
    lost: versions that lose their weights. num_dropped: edges. num_composed: edges that take the place of others.
    composed_bytes: what these take; in a preview, at most about this. freed_bytes: of packs that clean-up may delete
    after the grace. num_uncommitted: edges of commits that never happened, which go as well.
    """

    dry_run: bool
    kept: dict[str, set[str]]
    without: list[str]
    lost: list[str]
    num_dropped: int
    num_composed: int
    composed_bytes: int
    freed_bytes: int
    num_uncommitted: int

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form."""
        return {
            "dry_run": self.dry_run,
            "kept": {version: sorted(rules) for version, rules in sorted(self.kept.items())},
            "without_weights": self.without,
            "lost": self.lost,
            "dropped_edges": self.num_dropped,
            "composed_edges": self.num_composed,
            "composed_bytes": self.composed_bytes,
            "freed_bytes": self.freed_bytes,
            "uncommitted_edges": self.num_uncommitted,
        }


def expire(access: Access, settings: SettingsRef, *, dry_run: bool = False, progress: Progress | None = None) -> Expiry:
    """Let versions that the policy does not keep lose their weights.

    Raises:
        CleanUpRefused: a branch is at a version without weights, or listings disagree; nothing was dropped.
        Corruption: something on the way to a version that is kept is damaged or gone, and nothing was dropped.
        TooLate, StoreError, DatabaseUnavailable: what was dropped until then stays dropped.
    """
    show = progress or (lambda doing, done, total: None)
    if access.refs.names() != access.refs.names():
        raise CleanUpRefused("two listings of the refs do not agree")
    uncommitted = _uncommitted(access, settings)
    before = _choose(access, settings)
    if dry_run:
        _check_heads(before)
        return _report(before, before.dispensable, before.jumps, uncommitted, dry_run=True)
    if ways := _stranded(access, before):  # by a run that was killed
        rescue(access, ways, before.edges.keys())
        before = _choose(access, settings)
    _check_heads(before)
    composed = _compose(access, before.runs, show)
    after = _choose(access, settings)
    doomed = after.spared(before.dispensable)
    far_first = {version: -place for place, version in enumerate(before.tree.entry)}
    order = sorted(doomed.values(), key=lambda edge: far_first.get(edge.target, 1))  # leave no edge without its base
    _drop(access, {edge.id: edge.target for edge in order}, EXPIRED, show)
    _drop(access, uncommitted, UNCOMMITTED, show)
    _look_after(access, settings, doomed)
    return _report(before, doomed, composed, uncommitted, dry_run=False)


@dataclass(frozen=True)
class _Choice:
    """What the policy keeps at one moment, where refs are then, and the edges that are there a moment later, by id."""

    kept: dict[str, set[str]]
    branches: dict[str, str]
    tagged: set[str]
    edges: dict[str, Outline]
    tree: Tree
    runs: list[Run]
    sizes: dict[str, int]

    @property
    def dispensable(self) -> dict[str, Outline]:
        """Edges that may go once the runs have been replaced, by id."""
        stay = {edge.id for edge in self.tree.needed(self.kept).values()}
        stay -= {edge.id for run in self.runs for edge in run.replaced}
        between = {None, *self.kept}
        stay |= {edge.id for edge in self.edges.values() if edge.target in self.kept and edge.base in between}
        stay |= _towards(self.kept.keys() - self.tree.entry.keys(), self.edges.values())
        return {edge: self.edges[edge] for edge in self.edges.keys() - stay}

    @property
    def jumps(self) -> list[Outline]:
        """Edges as they might be that take the place of the runs: no larger than these together."""
        return [
            Outline(f"{run.base} to {run.target}", run.start, run.target, run.nbytes, run.nbytes, ())
            for run in self.runs
        ]

    def spared(self, doomed: Mapping[str, Outline]) -> dict[str, Outline]:
        """Those of these edges without which everything that is kept now is still reached."""
        left = {edge: outline for edge, outline in doomed.items() if edge in self.edges}
        while True:
            remaining = Tree(outline for edge, outline in self.edges.items() if edge not in left)
            cut_off = (self.kept.keys() & self.tree.entry.keys()) - remaining.entry.keys()
            if not cut_off:
                return left
            for needed in self.tree.needed(cut_off).values():
                left.pop(needed.id, None)


def _choose(access: Access, settings: SettingsRef) -> _Choice:
    """Learn what there is now, and what of it the policy keeps."""
    access.index.catch_up_all()
    access.index.refresh()
    policy = settings.newest()
    found = kept(access.index, policy, access.store.now())
    branches = access.index.branches()
    tagged = set(access.index.tags().values()) if policy.keep_tagged else set()
    edges = {edge.id: edge for edge in choosing.outlines(access.index)}  # last: others commit meanwhile
    tree = Tree(edges.values())
    return _Choice(found, branches, tagged, edges, tree, tree.runs(found.keys()), choosing.pack_sizes(access.index))


def _compose(access: Access, runs: list[Run], show: Progress) -> list[Outline]:
    """Write an edge in the place of each run, proven."""
    made = []
    with Composer(access) as composer:
        for number, run in enumerate(runs):
            show("composing", number, len(runs))
            made.append(Outline.of(composer.compose(run.start, run.target)))
    show("composing", len(runs), len(runs))
    return made


def _drop(access: Access, edges: Mapping[str, str], why: str, show: Progress) -> None:
    """Record drops of edges, given by id with their targets, as good as in order, and let the index forget them."""

    def record(edge: str) -> None:
        drop = DropRecord(edge, edges[edge], access.author, now(), why)
        access.store.create(drop.key, drop.body)  # one that is there already does as well

    done = access.transfers.ahead(edges, record, lambda edge: 0, 0)
    for number, _ in enumerate(done, 1):
        show("dropping", number, len(edges))
    access.index.drop(list(edges))


def _look_after(access: Access, settings: SettingsRef, doomed: Mapping[str, Outline]) -> None:
    """See whether something was needed after all: others have moved refs, or dropped other edges, meanwhile."""
    if not doomed:
        return
    now = _choose(access, settings)
    if ways := _stranded(access, now):
        rescue(access, ways, now.edges.keys())


def _stranded(access: Access, choice: _Choice) -> Ways:
    """What is kept, or has a branch or a tag at it, and has lost its way to drops."""
    return stranded(access, choice.kept.keys() | choice.tagged, choice.tree.entry.keys())


def _check_heads(choice: _Choice) -> None:
    """Refuse to drop anything while a branch is at a version without weights: what looks useless may repair it."""
    for branch, version in choice.branches.items():
        if version not in choice.tree.entry:
            raise CleanUpRefused(f"branch {branch!r} is at version {version}, whose weights cannot be reached")


def _uncommitted(access: Access, settings: SettingsRef) -> dict[str, str]:
    """Edges, with their targets, that no commit will ever lead to."""
    try:
        grace = max(settings.policy(number).grace for number in range(settings.follow() + 1))
    except CorruptObject as error:
        log.warning("edges of commits that never happened stay: how long a commit could take is not known: %s", error)
        return {}
    before = access.store.now() - grace
    old = {item.key for item in access.store.list(EDGES) if item.modified < before}
    found = [edge_of(key) for key in old]
    dropped = {edge for _, edge in listed_edges(access.store, DROPS)}
    access.index.catch_up_all()  # last: a commit that led to one of them has landed before they were listed
    known = choosing.committed(access.index)
    return {edge: target for target, edge in filter(None, found) if target not in known and edge not in dropped}


def _towards(versions: Iterable[str], edges: Iterable[Outline]) -> set[str]:
    """Edges over which versions without a way might be reached again, if damage elsewhere is repaired."""
    into: dict[str, list[Outline]] = defaultdict(list)
    for edge in edges:
        into[edge.target].append(edge)
    found: set[str] = set()
    waiting = list(versions)
    while waiting:
        for edge in into[waiting.pop()]:
            if edge.id not in found:
                found.add(edge.id)
                waiting += [] if edge.base is None else [edge.base]
    return found


def _report(
    before: _Choice,
    doomed: Mapping[str, Outline],
    composed: list[Outline],
    uncommitted: Mapping[str, str],
    dry_run: bool,
) -> Expiry:
    staying = [edge for edge in before.edges.values() if edge.id not in doomed]
    reached = Tree([*staying, *composed]).entry.keys()
    freed = {pack for edge in doomed.values() for pack in edge.packs}
    freed -= {pack for edge in (*staying, *composed) for pack in edge.packs}
    return Expiry(
        dry_run=dry_run,
        kept=before.kept,
        without=sorted(before.kept.keys() - before.tree.entry.keys()),
        lost=sorted(before.tree.entry.keys() - reached),
        num_dropped=len(doomed),
        num_composed=len(composed),
        composed_bytes=sum(edge.nbytes for edge in composed),
        freed_bytes=sum(before.sizes.get(pack, 0) for pack in freed),
        num_uncommitted=len(uncommitted),
    )
