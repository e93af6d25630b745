"""What the database knows of single versions: their records, put together again, and what they cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select

from deltavc import canonical
from deltavc.lineage.database import chunks
from deltavc.lineage.ingest import read_files
from deltavc.lineage.names import BRANCHES
from deltavc.lineage.records import VersionRecord
from deltavc.lineage.tables import edges, layouts, metrics, parents, ref_entries, versions


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """A version and what is known beyond its record.

    branch: where it was committed, or None when no branch was ever at it.
    num_lanes: lanes of all its tensors. changed_lanes: lanes that its commit wrote, or None when its edge is gone.
    stored_bytes: what its commit added to the store in packs and files.
    weights: whether there is an edge to it; without one, its weights were not kept.
    """

    id: str
    record: VersionRecord
    branch: str | None
    num_lanes: int
    changed_lanes: int | None
    stored_bytes: int
    weights: bool


def commit_costs(edges: Iterable[tuple[bool, int, int]]) -> tuple[int | None, int]:
    """Lanes changed by a commit (None when no edge tells any more), and bytes that its edges added.

    Args:
        edges: those that were written with it, in the order of their ids: whether from nothing, changes, new bytes.
    """
    changed: int | None = None
    stored = 0
    for snapshot, changes, new_bytes in edges:
        stored += new_bytes
        if not snapshot or changed is None:  # a snapshot beside a delta says nothing of what changed
            changed = changes
    return changed, stored


def load(db: Connection, pks: Sequence[int]) -> list[VersionInfo]:
    """Versions by their integer keys, in the order given; four queries for every 500 of them."""
    found: dict[int, VersionInfo] = {}
    for chunk in chunks(set(pks)):
        found |= _load_chunk(db, chunk)
    return [found[pk] for pk in pks]


def _load_chunk(db: Connection, pks: list[int]) -> dict[int, VersionInfo]:
    rows = db.execute(
        select(versions, layouts.c.id.label("layout_id"), layouts.c.num_lanes)
        .join(layouts, layouts.c.pk == versions.c.layout)
        .where(versions.c.pk.in_(pks))
    ).all()
    parent_ids = _parents(db, pks)
    metric_values = _metrics(db, pks)
    branches = _branches(db, pks)
    costs = _commit_costs(db, pks)
    with_edges = _with_edges(db, pks)
    return {
        row.pk: VersionInfo(
            id=row.id,
            record=VersionRecord(
                parents=tuple(parent_ids[row.pk]),
                layout=row.layout_id,
                fingerprint=row.fingerprint,
                step=row.step,
                message=row.message,
                author=row.author,
                time=row.time,
                metrics=metric_values[row.pk],
                meta=canonical.loads(row.meta.encode()),
                files=read_files(row.files),
                source=None if row.source is None else canonical.loads(row.source.encode()),
            ),
            branch=branches.get(row.pk),
            num_lanes=row.num_lanes,
            changed_lanes=costs[row.pk][0],
            stored_bytes=costs[row.pk][1] + row.new_file_bytes,
            weights=row.pk in with_edges,
        )
        for row in rows
    }


def _parents(db: Connection, pks: list[int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = defaultdict(list)
    rows = (
        select(parents.c.version, versions.c.id)
        .join(versions, versions.c.pk == parents.c.parent)
        .where(parents.c.version.in_(pks))
        .order_by(parents.c.version, parents.c.place)
    )
    for version, parent in db.execute(rows):
        found[version].append(parent)
    return found


def _metrics(db: Connection, pks: list[int]) -> dict[int, dict[str, float | str]]:
    found: dict[int, dict[str, float | str]] = defaultdict(dict)
    rows = select(metrics.c.version, metrics.c.name, metrics.c.value, metrics.c.special)
    for version, name, value, special in db.execute(rows.where(metrics.c.version.in_(pks)).order_by(metrics.c.name)):
        found[version][name] = special if value is None else _number(value)
    return found


def _number(value: float) -> float:
    """As the bucket's JSON gives it back: 3.0 is spelled 3 there."""
    return int(value) if value.is_integer() and abs(value) <= canonical.MAX_INTEGER else value


def _branches(db: Connection, pks: list[int]) -> dict[int, str]:
    """For each version the branch that was first at it."""
    rows = (
        select(ref_entries.c.new, ref_entries.c.ref)
        .where(ref_entries.c.new.in_(pks), ref_entries.c.ref.like(f"{BRANCHES}%"))
        .order_by(ref_entries.c.moved_at.desc(), ref_entries.c.sequence.desc(), ref_entries.c.ref)
    )
    return {version: ref.removeprefix(BRANCHES) for version, ref in db.execute(rows)}


def _with_edges(db: Connection, pks: list[int]) -> set[int]:
    return set(db.execute(select(edges.c.target).where(edges.c.target.in_(pks)).distinct()).scalars())


def _commit_costs(db: Connection, pks: list[int]) -> dict[int, tuple[int | None, int]]:
    """What `commit_costs` says of each of these versions."""
    found: dict[int, list[tuple[bool, int, int]]] = defaultdict(list)
    rows = (
        select(edges.c.target, edges.c.base, edges.c.changes, edges.c.new_bytes)
        .where(edges.c.target.in_(pks), edges.c.origin == "commit")
        .order_by(edges.c.id)
    )
    for target, base, changes, new_bytes in db.execute(rows):
        found[target].append((base is None, changes, new_bytes))
    return {pk: commit_costs(found[pk]) for pk in pks}
