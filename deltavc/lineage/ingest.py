"""Rows from records: how what was read from the bucket, or just written to it, enters the database.

`insert` runs inside a writing transaction and adds what is not there yet, so it may be given the same records
twice, by any number of processes, in any order that has no gaps.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, delete, func, insert, select, update

from deltavc import canonical
from deltavc.layout import Layout
from deltavc.lineage.database import chunks
from deltavc.lineage.records import EdgeRecord, FileRef, RefEntry, VersionRecord
from deltavc.lineage.tables import (
    edge_packs,
    edges,
    layouts,
    metrics,
    packs,
    parents,
    ref_entries,
    refs,
    versions,
)

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that belong together: nothing in them refers to what is neither here nor in the database."""

    versions: Sequence[VersionRecord] = ()
    layouts: Sequence[Layout] = ()
    edges: Sequence[EdgeRecord] = ()
    entries: Sequence[RefEntry] = ()


class Behind(Exception):
    """The database lacks something that these records build on."""


class _Row(NamedTuple):
    """What is needed of a version to add its children."""

    pk: int
    depth: int
    jump: int
    jump_depth: int
    clock: int


_ROW = (versions.c.pk, versions.c.depth, versions.c.jump, versions.c.jump_depth, versions.c.clock)


def insert_batch(db: Connection, batch: Batch) -> None:
    """Add what the database does not have yet.

    Raises:
        Behind: a parent, base, layout, or the ref entry before is in neither; nothing should be committed.
    """
    _insert_layouts(db, batch.layouts)
    _Versions(db).insert(batch.versions)
    _insert_edges(db, batch.edges)
    _insert_entries(db, batch.entries)


def delete_edges(db: Connection, ids: Iterable[str]) -> None:
    """Remove edges, and packs that no other edge names; ids that are not there are ignored."""
    keys = keys_of(db, edges, ids)
    for chunk in chunks(keys.values()):
        used = set(db.execute(select(edge_packs.c.pack).where(edge_packs.c.edge.in_(chunk))).scalars())
        db.execute(delete(edge_packs).where(edge_packs.c.edge.in_(chunk)))
        db.execute(delete(edges).where(edges.c.pk.in_(chunk)))
        for some in chunks(used):
            still_used = select(edge_packs.c.pack).where(edge_packs.c.pack.in_(some))
            db.execute(delete(packs).where(packs.c.pk.in_(some), packs.c.pk.not_in(still_used)))


def keys_of(db: Connection, table: Table, ids: Iterable[str]) -> dict[str, int]:
    """Integer keys of those ids that the table has."""
    found: dict[str, int] = {}
    for chunk in chunks(sorted(set(ids))):
        rows = db.execute(select(table.c.id, table.c.pk).where(table.c.id.in_(chunk)))
        found.update((row.id, row.pk) for row in rows)
    return found


def _need(keys: dict[str, int], record_id: str) -> int:
    if record_id not in keys:
        raise Behind(record_id)
    return keys[record_id]


def _new_keys(db: Connection, table: Table) -> Iterator[int]:
    return count((db.execute(select(func.max(table.c.pk))).scalar() or 0) + 1)


def _insert_rows(db: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        db.execute(insert(table), rows)


def _insert_layouts(db: Connection, records: Sequence[Layout]) -> None:
    by_id = {record.id: record for record in records}
    known = keys_of(db, layouts, by_id)
    new = [record for record_id, record in by_id.items() if record_id not in known]
    rows = [
        {
            "pk": pk,
            "id": record.id,
            "num_lanes": record.num_lanes,
            "nbytes": record.nbytes,
            "body": record.body,
        }
        for pk, record in zip(_new_keys(db, layouts), new, strict=False)
    ]
    _insert_rows(db, layouts, rows)


class _Versions:
    """Adds versions, parents first, remembering the rows that pointers are computed from."""

    def __init__(self, db: Connection) -> None:
        self._db = db
        self._rows: dict[int, _Row] = {}

    def insert(self, records: Sequence[VersionRecord]) -> None:
        by_id = {record.id: record for record in records}
        keys = keys_of(self._db, versions, {*by_id, *(parent for record in records for parent in record.parents)})
        new = parents_first([record for record_id, record in by_id.items() if record_id not in keys])
        layout_keys = keys_of(self._db, layouts, {record.layout for record in new})
        files = self._files_of_parents(new, by_id)
        next_keys = _new_keys(self._db, versions)
        rows, parent_rows, metric_rows = [], [], []
        for record in new:
            pk = next(next_keys)
            parent_keys = [_need(keys, parent) for parent in record.parents]
            row = self._add(pk, parent_keys, microseconds(record.time))
            keys[record.id] = pk
            had = set().union(*(files[parent] for parent in record.parents))
            rows.append(
                {
                    **row._asdict(),
                    "id": record.id,
                    "parent": parent_keys[0] if parent_keys else None,
                    "layout": _need(layout_keys, record.layout),
                    "fingerprint": record.fingerprint,
                    "step": record.step,
                    "message": record.message,
                    "author": record.author,
                    "time": record.time,
                    "meta": canonical.dumps(record.meta).decode(),
                    "files": files_json(record.files),
                    "source": None if record.source is None else canonical.dumps(record.source).decode(),
                    "new_file_bytes": sum(file.nbytes for file in record.files.values() if file.id not in had),
                }
            )
            parent_rows += [
                {"version": pk, "place": place, "parent": parent} for place, parent in enumerate(parent_keys)
            ]
            metric_rows += [_metric_row(pk, name, value) for name, value in record.metrics.items()]
        _insert_rows(self._db, versions, rows)
        _insert_rows(self._db, parents, parent_rows)
        _insert_rows(self._db, metrics, metric_rows)

    def _add(self, pk: int, parent_keys: list[int], time: int) -> _Row:
        """Depth, jump and clock of a version from its parents'."""
        if not parent_keys:
            row = _Row(pk, 0, pk, 0, time)
        else:
            first = self._row(parent_keys[0])
            over = self._row(first.jump)
            clock = max(time, *(self._row(parent).clock + 1 for parent in parent_keys))
            if first.depth - first.jump_depth == first.jump_depth - over.jump_depth:
                row = _Row(pk, first.depth + 1, over.jump, over.jump_depth, clock)
            else:
                row = _Row(pk, first.depth + 1, first.pk, first.depth, clock)
        self._rows[pk] = row
        return row

    def _row(self, pk: int) -> _Row:
        if pk not in self._rows:
            found = self._db.execute(select(*_ROW).where(versions.c.pk == pk)).one()
            self._rows[pk] = _Row(*found)
        return self._rows[pk]

    def _files_of_parents(self, new: list[VersionRecord], by_id: dict[str, VersionRecord]) -> dict[str, set[str]]:
        """Ids of the files that each parent of these versions names."""
        found = {record_id: {file.id for file in record.files.values()} for record_id, record in by_id.items()}
        others = {parent for record in new for parent in record.parents if parent not in by_id}
        for chunk in chunks(others):
            stored = select(versions.c.id, versions.c.files).where(versions.c.id.in_(chunk))
            for version, files in self._db.execute(stored):
                found[version] = {file.id for file in read_files(files).values()}
        return found


def parents_first(records: Sequence[VersionRecord]) -> list[VersionRecord]:
    """The same versions, every one after those of its parents that are among them."""
    by_id = {record.id: record for record in records}
    ordered: dict[str, VersionRecord] = {}
    stack = list(reversed(records))
    while stack:
        record = stack[-1]
        waiting = [by_id[parent] for parent in record.parents if parent in by_id and parent not in ordered]
        if waiting:
            stack += waiting
        else:
            ordered[stack.pop().id] = record
    return list(ordered.values())


def microseconds(time: str) -> int:
    """A record's time as microseconds since 1970."""
    return (datetime.datetime.fromisoformat(time) - _EPOCH) // datetime.timedelta(microseconds=1)


def files_json(files: dict[str, FileRef]) -> str:
    """Files as their column keeps them."""
    return canonical.dumps({name: [file.id, file.nbytes] for name, file in files.items()}).decode()


def read_files(column: str) -> dict[str, FileRef]:
    """The files of a version from their column."""
    return {name: FileRef(*item) for name, item in canonical.loads(column.encode()).items()}


def _metric_row(pk: int, name: str, value: float | str) -> dict[str, Any]:
    special = isinstance(value, str)
    return {
        "version": pk,
        "name": name,
        "value": None if special else float(value),
        "special": value if special else None,
    }


def _insert_edges(db: Connection, records: Sequence[EdgeRecord]) -> None:
    by_id = {record.id: record for record in records}
    known = keys_of(db, edges, by_id)
    new = [record for record_id, record in by_id.items() if record_id not in known]
    ends = {end for record in new for end in (record.base, record.target) if end is not None}
    version_keys = keys_of(db, versions, ends)
    pack_sizes = {use.pack: use.nbytes for record in new for use in record.packs}
    pack_keys = keys_of(db, packs, pack_sizes)
    next_keys = _new_keys(db, packs)
    new_packs = {pack: next(next_keys) for pack in pack_sizes if pack not in pack_keys}
    _insert_rows(db, packs, [{"pk": pk, "id": pack, "nbytes": pack_sizes[pack]} for pack, pk in new_packs.items()])
    pack_keys |= new_packs
    rows, use_rows = [], []
    for pk, record in zip(_new_keys(db, edges), new, strict=False):
        rows.append(
            {
                "pk": pk,
                "id": record.id,
                "base": None if record.base is None else _need(version_keys, record.base),
                "target": _need(version_keys, record.target),
                "reversible": record.reversible,
                "nbytes": record.nbytes,
                "changes": record.changes,
                "origin": record.origin,
                "new_bytes": record.new_bytes,
                "body": record.body,
            }
        )
        use_rows += [{"edge": pk, "pack": pack_keys[pack]} for pack in sorted({use.pack for use in record.packs})]
    _insert_rows(db, edges, rows)
    _insert_rows(db, edge_packs, use_rows)


def _insert_entries(db: Connection, records: Sequence[RefEntry]) -> None:
    ends = {end for record in records for end in (record.old, record.new) if end is not None}
    keys = keys_of(db, versions, ends)
    for ref in sorted({record.ref for record in records}):
        mine = sorted((record for record in records if record.ref == ref), key=lambda record: record.sequence)
        known = db.execute(select(refs.c.sequence).where(refs.c.name == ref)).scalar()
        new = [record for record in mine if record.sequence > (known or 0)]
        if not new:
            continue
        if [record.sequence for record in new] != list(range((known or 0) + 1, new[-1].sequence + 1)):
            raise Behind(ref)
        last = {"sequence": new[-1].sequence, "version": None if new[-1].new is None else _need(keys, new[-1].new)}
        if known is None:
            db.execute(insert(refs).values(name=ref, **last))
        else:
            db.execute(update(refs).where(refs.c.name == ref).values(**last))
        _insert_rows(
            db,
            ref_entries,
            [
                {
                    "ref": ref,
                    "sequence": record.sequence,
                    "old": None if record.old is None else _need(keys, record.old),
                    "new": None if record.new is None else _need(keys, record.new),
                    "who": record.who,
                    "moved_at": record.when,
                    "why": record.why,
                    "write_id": record.write_id,
                }
                for record in new
            ],
        )
