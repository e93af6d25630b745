"""What a repository lacks of a history that another one has: two views of buckets, compared.

    History    what refs of one repository lead to: versions, each after its parents, and the edges between them
    Stock      what the bucket of the other one lists
    Missing    what of the first is not in the second, version by version

Records are outlined here, since those of a long history would not fit into memory; they are read again when they are
carried.

A version that is there with a way to its weights is left as it is, whatever edges the way consists of: the other
repository may have compacted. An edge that was dropped there is dropped for good; where a version needs it again, it
comes as one that was added later, which is another record.
"""

from __future__ import annotations

import functools
import graphlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from deltavc.errors import MissingObject
from deltavc.lineage.bucket import Bucket, listed_edges, read_edge, read_version
from deltavc.lineage.drops import by_target
from deltavc.lineage.records import DROPS, EDGES, layout_key, version_key
from deltavc.store.objects import Store
from deltavc.store.transfers import Transfers


@dataclass(frozen=True, slots=True)
class Kept:
    """A pack or a file: the hash that its bytes have to have is part of its key."""

    key: str
    nbytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Version:
    """What a version names."""

    id: str
    parents: tuple[str, ...]
    layout: str
    files: tuple[Kept, ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """What an edge names. later: the id of the same edge as one that was added later."""

    id: str
    later: str
    target: str
    base: str | None
    packs: tuple[Kept, ...]
    layouts: tuple[str, ...]


@dataclass(frozen=True)
class History:
    """Versions by id, each after its parents; undropped edges by the version they lead to, from these and nothing.

    given_up: ids of the dropped edges of versions that have no weights.
    """

    versions: dict[str, Version]
    edges: dict[str, list[Edge]]
    given_up: dict[str, tuple[str, ...]]

    @functools.cached_property
    def reached(self) -> set[str]:
        """The versions that have a way to their weights."""
        return _spread(itertools.chain.from_iterable(self.edges.values()))

    def before(self, versions: Iterable[str]) -> set[str]:
        """These versions and all before them."""
        found: set[str] = set()
        waiting = list(versions)
        while waiting:
            if (version := waiting.pop()) not in found:
                found.add(version)
                waiting += self.versions[version].parents
        return found


@dataclass(frozen=True)
class Stock:
    """What a bucket lists: sizes by key of packs, files, versions and layouts; undropped edges; dropped ones."""

    sizes: Mapping[str, int]
    edges: Mapping[str, frozenset[str]]
    dropped: frozenset[str]

    def has(self, kept: Kept) -> bool:
        """Whether it has a pack or file, of the size that it should have."""
        return self.sizes.get(kept.key) == kept.nbytes

    def form(self, edge: Edge) -> str | None:
        """The id under which it has an edge, if it has."""
        there = self.edges.get(edge.target, frozenset())
        return edge.id if edge.id in there else edge.later if edge.later in there else None


@dataclass(frozen=True, slots=True)
class Missing:
    """What is missing of one version, in the order in which it has to be stored.

    edges: each with the id it is to have. given_up: ids of edges that come with their drops. record: whether its own
    is missing.
    """

    version: str
    objects: tuple[Kept, ...]
    layouts: tuple[str, ...]
    given_up: tuple[str, ...]
    edges: tuple[tuple[Edge, str], ...]
    record: bool

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
    versions: dict[str, Version] = {}
    edges: dict[str, list[Edge]] = {}
    wanted = set(heads)
    while wanted:
        new = _read_versions(store, transfers, wanted, versions)
        ids = [
            (target, edge) for target in new for edge in sorted(listed.get(target, set()) - dropped.get(target, set()))
        ]
        edges |= {target: [] for target in new}
        for (target, _), found in transfers.ahead(ids, lambda item: _edge(store, *item), lambda _: 0, 0):
            if found is not None:
                edges[target].append(found)
        wanted = _bases_needed(edges)
    within = {
        target: [edge for edge in into if edge.base is None or edge.base in versions] for target, into in edges.items()
    }
    order = graphlib.TopologicalSorter({version: known.parents for version, known in versions.items()}).static_order()
    without = versions.keys() - _spread(itertools.chain.from_iterable(within.values()))
    given_up = {target: tuple(sorted(dropped.get(target, set()) & listed.get(target, set()))) for target in without}
    return History({version: versions[version] for version in order}, within, given_up)


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
    present = (edge for into in wanted.edges.values() for edge in into if held.form(edge) is not None)
    named = {kept.key for edge in present for kept in edge.packs}
    recorded = (version for version in wanted.versions.values() if version_key(version.id) in held.sizes)
    named |= {kept.key for version in recorded for kept in version.files}
    found: list[Missing] = []
    counted: set[str] = set()  # what several versions need, packs, files and layouts, is carried with the first
    for version in wanted.versions.values():
        edges = list(_to_have(wanted.edges[version.id], held, version.id in needed))
        absent = tuple((edge, form) for edge, form in edges if held.form(edge) != form)
        kept = itertools.chain((kept for edge, _ in edges for kept in edge.packs), version.files)
        layouts = {version.layout, *(layout for edge, _ in absent for layout in edge.layouts)}
        lacking = {one.key: one for one in kept if not held.has(one) or one.key not in named}
        unknown = {layout for layout in layouts if layout_key(layout) not in held.sizes}
        part = Missing(
            version=version.id,
            objects=tuple(one for key, one in lacking.items() if key not in counted),
            layouts=tuple(sorted(unknown - counted)),
            given_up=wanted.given_up.get(version.id, ()) if version.id not in held.edges else (),
            edges=absent,
            record=version_key(version.id) not in held.sizes,
        )
        counted |= lacking.keys() | unknown
        if part.objects or part.layouts or part.given_up or part.edges or part.record:
            found.append(part)
    return found


def _reached(wanted: History, held: Stock, bucket: Bucket) -> set[str]:
    """The versions that have a way to their weights there, over the edges known here or over others."""
    known = [edge for into in wanted.edges.values() for edge in into if held.form(edge) is not None]
    reached = _spread(_whole(known, held))
    ids = {id for edge in known for id in (edge.id, edge.later)}
    others = [(v, id) for v in wanted.versions if v not in reached for id in held.edges.get(v, frozenset()) - ids]
    if not others:
        return reached
    read = (_edge(bucket, *other) for other in others)
    return _spread(_whole(itertools.chain(known, (edge for edge in read if edge is not None)), held))


def _whole(edges: Iterable[Edge], held: Stock) -> Iterator[Edge]:
    """Those of them that have all their packs."""
    return (edge for edge in edges if all(map(held.has, edge.packs)))


def _spread(edges: Iterable[Edge]) -> set[str]:
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
            waiting += [base for base in bases if base is not None and base in wanted.reached and base not in reached]
    return found


def _to_have(edges: Sequence[Edge], held: Stock, needed: bool) -> Iterator[tuple[Edge, str]]:
    """The edges, each in the form that it has there, or can have, if it is needed: one that was not dropped."""
    for edge in edges:
        forms = (form for form in (edge.id, edge.later) if form not in held.dropped)
        if (form := held.form(edge) or (next(forms, None) if needed else None)) is not None:
            yield edge, form


def _read_versions(store: Store, transfers: Transfers, wanted: Set[str], found: dict[str, Version]) -> list[str]:
    """Read versions and all those before them that are not found yet; their ids."""
    new: list[str] = []
    while wanted := wanted - found.keys():
        for version, read in transfers.ahead(sorted(wanted), lambda version: _version(store, version), lambda _: 0, 0):
            found[version] = read
            new.append(version)
        wanted = {parent for version in wanted for parent in found[version].parents}
    return new


def _bases_needed(edges: Mapping[str, list[Edge]]) -> set[str]:
    """Versions that others are only reached from: of another branch, as clean-up may leave it."""
    reached = _spread(edge for into in edges.values() for edge in into)
    cut_off = (edge for target, into in edges.items() if target not in reached for edge in into)
    return {edge.base for edge in cut_off if edge.base is not None and edge.base not in edges}


def _version(bucket: Bucket, version: str) -> Version:
    record = read_version(bucket, version)
    files = tuple(Kept(file.key, file.nbytes, file.id[:64]) for file in record.files.values())
    return Version(version, record.parents, record.layout, files)


def _edge(bucket: Bucket, target: str, edge: str) -> Edge | None:
    """An edge that was listed; None if it is gone since."""
    try:
        record = read_edge(bucket, target, edge)
    except MissingObject:
        return None
    return Edge(
        id=edge,
        later=replace(record, origin="compact").id,
        target=target,
        base=record.base,
        packs=tuple(Kept(use.key, use.nbytes, use.pack) for use in record.packs),
        layouts=tuple({record.layout, record.base_layout or record.layout}),
    )
