"""What a repository lacks of a history that another one has: two views of buckets, compared.

    History    what refs of one repository lead to: versions, each after its parents, and the edges between them
    Stock      what the bucket of the other one lists
    Missing    what of the first is not in the second, version by version

A version that is there with a way to its weights is left as it is, whatever edges the way consists of: the other
repository may have compacted. An edge that was dropped there is dropped for good; where a version needs it again, it
comes as one that was added later, which is another record.
"""

from __future__ import annotations

import functools
import graphlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from deltavc.errors import MissingObject
from deltavc.layout import Layout
from deltavc.lineage.bucket import Bucket, listed_edges, read, read_edge, read_layout, read_version
from deltavc.lineage.drops import DropRecord, by_target
from deltavc.lineage.records import DROPS, EDGES, EdgeRecord, FileRef, PackUse, VersionRecord, drop_key, layout_key
from deltavc.store.objects import Store
from deltavc.store.transfers import Transfers


@dataclass(frozen=True)
class History:
    """Versions by id, each after its parents; undropped edges by the version they lead to, between these; layouts.

    given_up: of versions without weights, the edges that were dropped, with their drops.
    """

    versions: dict[str, VersionRecord]
    edges: dict[str, list[EdgeRecord]]
    layouts: dict[str, Layout]
    given_up: dict[str, list[tuple[EdgeRecord, DropRecord]]]

    @functools.cached_property
    def reached(self) -> set[str]:
        """The versions that have a way to their weights."""
        return _spread(itertools.chain.from_iterable(self.edges.values()))


@dataclass(frozen=True)
class Stock:
    """What a bucket lists: sizes by key of packs, files, versions and layouts; edges that were not dropped, and all."""

    sizes: Mapping[str, int]
    edges: Mapping[str, frozenset[str]]
    dropped: frozenset[str]

    def has(self, kept: PackUse | FileRef) -> bool:
        """Whether it has a pack or file, of the size that it should have."""
        return self.sizes.get(kept.key) == kept.nbytes


@dataclass(frozen=True)
class Missing:
    """What is missing of one version: objects and drops, which have to be stored first, then edges, then its record."""

    version: str
    objects: tuple[PackUse | FileRef, ...]
    layouts: tuple[Layout, ...]
    drops: tuple[DropRecord, ...]
    edges: tuple[EdgeRecord, ...]
    record: VersionRecord | None

    @property
    def nbytes(self) -> int:
        return sum(kept.nbytes for kept in self.objects)


def history(store: Store, transfers: Transfers, heads: Iterable[str]) -> History:
    """Read what versions lead to, from the bucket alone.

    Raises:
        MissingObject, CorruptObject: a record is gone or damaged.
        StoreError
    """
    listed = by_target(listed_edges(store, EDGES))
    dropped = by_target(listed_edges(store, DROPS))  # after the edges, as everywhere
    undropped = {target: ids - dropped.get(target, set()) for target, ids in listed.items()}
    versions: dict[str, VersionRecord] = {}
    edges: dict[str, list[EdgeRecord]] = {}
    wanted = set(heads)
    while wanted:
        _read_versions(store, transfers, wanted, versions)
        new = [(target, edge) for target in versions.keys() - edges.keys() for edge in undropped.get(target, ())]
        edges |= {target: [] for target in versions.keys() - edges.keys()}
        for (target, _), record in transfers.ahead(new, lambda item: _edge(store, *item), lambda _: 0, 0):
            if record is not None:
                edges[target].append(record)
        wanted = _bases_needed(edges)
    layouts = {record.layout: record.id for record in versions.values()}
    within = {
        target: sorted((edge for edge in into if edge.base is None or edge.base in versions), key=lambda edge: edge.id)
        for target, into in edges.items()
    }
    for edge in (edge for into in within.values() for edge in into):
        layouts |= {layout: edge.target for layout in (edge.layout, edge.base_layout) if layout is not None}
    found = transfers.ahead(layouts, lambda layout: read_layout(store, layout, layouts[layout]), lambda _: 0, 0)
    order = graphlib.TopologicalSorter({version: record.parents for version, record in versions.items()}).static_order()
    given_up: dict[str, list[tuple[EdgeRecord, DropRecord]]] = {}
    without = versions.keys() - _spread(itertools.chain.from_iterable(within.values()))
    lost = [(target, edge) for target in without for edge in sorted(dropped.get(target, set()))]
    for (target, _), pair in transfers.ahead(lost, lambda item: _given_up(store, *item), lambda _: 0, 0):
        given_up.setdefault(target, []).append(pair)
    return History({version: versions[version] for version in order}, within, dict(found), given_up)


def stock(store: Store) -> Stock:
    """List a bucket. Raises StoreError."""
    sizes = {item.key: item.nbytes for prefix in ("versions/", "layouts/") for item in store.list(prefix)}
    edges = by_target(listed_edges(store, EDGES))
    dropped = by_target(listed_edges(store, DROPS))
    for prefix in ("packs/", "files/"):  # after the edges: what these name cannot go before the drops are seen
        sizes |= {item.key: item.nbytes for item in store.list(prefix)}
    undropped = {target: frozenset(ids - dropped.get(target, set())) for target, ids in edges.items()}
    return Stock(sizes, undropped, frozenset(edge for ids in dropped.values() for edge in ids))


def missing(wanted: History, held: Stock, bucket: Bucket, settled: Set[str]) -> list[Missing]:
    """What the bucket whose stock this is lacks of a history, version by version, each after its parents.

    A pack or file that is there, and that nothing there names, is put again: clean-up may be about to take it.

    Args:
        settled: versions that refs there lead to. Where they have no edges any more, these were given up, and come
            again only if others need them.

    Raises:
        CorruptObject: an edge there is damaged.
        StoreError
    """
    reached = _reached(wanted, held, bucket)
    needed = _needed(wanted, reached, settled)
    present = [edge for into in wanted.edges.values() for each in into for edge in _forms(each) if _is_in(edge, held)]
    named = {use.key for edge in present for use in edge.packs}
    named |= {
        file.key for record in wanted.versions.values() if record.key in held.sizes for file in record.files.values()
    }
    found = []
    for version, record in wanted.versions.items():
        edges = () if version in reached else tuple(_to_have(wanted.edges[version], held, version in needed))
        absent = tuple(edge for edge in edges if not _is_in(edge, held))
        kept: Iterator[PackUse | FileRef] = itertools.chain((u for e in edges for u in e.packs), record.files.values())
        objects = {one.key: one for one in kept if not held.has(one) or one.key not in named}
        ids = {record.layout, *(id for edge in absent for id in (edge.layout, edge.base_layout) if id is not None)}
        layouts = tuple(wanted.layouts[id] for id in sorted(ids) if layout_key(id) not in held.sizes)
        let_go = wanted.given_up.get(version, []) if version not in held.edges else []
        lacks_record = record.key not in held.sizes
        if objects or layouts or absent or let_go or lacks_record:
            found.append(
                Missing(
                    version=version,
                    objects=tuple(objects.values()),
                    layouts=layouts,
                    drops=tuple(drop for _, drop in let_go),
                    edges=(*absent, *(edge for edge, _ in let_go)),
                    record=record if lacks_record else None,
                )
            )
    return found


def _reached(wanted: History, held: Stock, bucket: Bucket) -> set[str]:
    """The versions that have a way to their weights there, over the edges known here or over others."""
    known = [edge for into in wanted.edges.values() for each in into for edge in _forms(each) if _is_in(edge, held)]
    reached = _spread(edge for edge in known if _is_whole(edge, held))
    ids = {edge.id for edge in known}
    others = [(v, id) for v in wanted.versions if v not in reached for id in held.edges.get(v, frozenset()) - ids]
    if not others:
        return reached
    read = (_edge(bucket, *other) for other in others)
    all_known = itertools.chain(known, (edge for edge in read if edge is not None))
    return _spread(edge for edge in all_known if _is_whole(edge, held))


def _spread(edges: Iterable[EdgeRecord]) -> set[str]:
    """Targets of edges that go on from one another, and from nothing."""
    onward: defaultdict[str | None, list[str]] = defaultdict(list)
    for edge in edges:
        onward[edge.base].append(edge.target)
    reached: set[str] = set()
    waiting = list(onward[None])
    while waiting:
        if (version := waiting.pop()) not in reached:
            reached.add(version)
            waiting += onward[version]
    return reached


def _needed(wanted: History, reached: Set[str], settled: Set[str]) -> set[str]:
    """The versions that have to get a way there: those that are new, and those that their ways go through."""
    waiting = [version for version in wanted.reached if version not in reached and version not in settled]
    found: set[str] = set()
    while waiting:
        if (version := waiting.pop()) not in found:
            found.add(version)
            bases = (edge.base for edge in wanted.edges[version])
            waiting += [b for b in bases if b is not None and b in wanted.reached and b not in reached]
    return found


def _to_have(edges: Iterable[EdgeRecord], held: Stock, needed: bool) -> Iterator[EdgeRecord]:
    """The edges in the form in which they can be there, the first that was not dropped; or only those that are."""
    for edge in edges:
        forms = (form for form in _forms(edge) if form.id not in held.dropped and (needed or _is_in(form, held)))
        if (form := next(forms, None)) is not None:
            yield form


def _forms(edge: EdgeRecord) -> tuple[EdgeRecord, ...]:
    """An edge as it is, and as one that was added later."""
    return (edge,) if edge.origin == "compact" else (edge, replace(edge, origin="compact"))


def _is_whole(edge: EdgeRecord, held: Stock) -> bool:
    return all(map(held.has, edge.packs))


def _is_in(edge: EdgeRecord, held: Stock) -> bool:
    return edge.id in held.edges.get(edge.target, frozenset())


def _read_versions(store: Store, transfers: Transfers, wanted: Set[str], found: dict[str, VersionRecord]) -> None:
    """Read versions and all those before them."""
    while wanted := wanted - found.keys():
        found |= transfers.ahead(sorted(wanted), lambda version: read_version(store, version), lambda _: 0, 0)
        wanted = {parent for version in wanted for parent in found[version].parents}


def _bases_needed(edges: Mapping[str, list[EdgeRecord]]) -> set[str]:
    """Versions that others are only reached from: of another branch, as clean-up may leave it."""
    reached = _spread(edge for into in edges.values() for edge in into)
    cut_off = (edge for target, into in edges.items() if target not in reached for edge in into)
    return {edge.base for edge in cut_off if edge.base is not None and edge.base not in edges}


def _given_up(bucket: Bucket, target: str, edge: str) -> tuple[EdgeRecord, DropRecord]:
    drop = read(bucket, drop_key(target, edge), DropRecord.parse, target)
    return read_edge(bucket, target, edge), drop


def _edge(bucket: Bucket, target: str, edge: str) -> EdgeRecord | None:
    try:
        return read_edge(bucket, target, edge)
    except MissingObject:
        return None  # gone since it was listed
