"""Repositories whose weights are made up: objects of the lineage are real, packs are names only."""

import itertools
import secrets
from dataclasses import dataclass

from sqlalchemy import select

from deltavc.canonical import content_id
from deltavc.layout import Layout, TensorSpec
from deltavc.lineage import schema
from deltavc.lineage.database import open_database, reading
from deltavc.lineage.drops import DropRecord
from deltavc.lineage.index import Index
from deltavc.lineage.records import EdgeRecord, FileRef, PackUse, RefEntry, VersionRecord, layout_key
from deltavc.lineage.refs import Refs
from deltavc.lineage.tables import edge_packs, edges, layouts, metrics, packs, parents, ref_entries, refs, versions

LAYOUT = Layout.of([TensorSpec("a", "bfloat16", (100, 10)), TensorSpec("b", "float32", (7,))])
_counter = itertools.count()


def version(parents=(), **fields):
    """A version like no other."""
    number = next(_counter)
    fields.setdefault("time", f"2026-01-02T03:{number // 60 % 60:02d}:{number % 60:02d}.{number // 3600:06d}Z")
    fields.setdefault("fingerprint", content_id(secrets.token_bytes(8)))
    return VersionRecord(parents=tuple(parents), layout=LAYOUT.id, **fields)


def edge(base, target, nbytes=1000, changes=100, reversible=True, origin="commit", shared=()):
    """An edge in one new pack; `shared` are packs of older edges that it uses one frame of."""
    uses = (PackUse(content_id(secrets.token_bytes(8)), nbytes, (0, 10, 20)),)
    uses += tuple(PackUse(use.pack, use.nbytes, use.index, (0,)) for use in shared)
    return EdgeRecord(
        base=base,
        target=target,
        layout=LAYOUT.id,
        base_layout=LAYOUT.id if base else None,
        packs=uses,
        changed=(0, 1),
        fingerprints=("0" * 16, "f" * 16),
        reversible=reversible and base is not None,
        nbytes=nbytes,
        changes=changes,
        origin=origin,
    )


@dataclass(frozen=True)
class Commit:
    """What one commit wrote."""

    entry: RefEntry
    version: VersionRecord
    edges: tuple

    @property
    def id(self):
        return self.version.id

    def record(self, index):
        index.record([self.entry], [self.version], self.edges, [LAYOUT])


class Writer:
    """Commits to one ref of a bucket as a writer does: objects first, then the move."""

    def __init__(self, bucket, ref="branches/main"):
        self.bucket = bucket
        self.refs = Refs(bucket)
        self.ref = ref
        self.known = self.refs.newest(ref)

    def commit(self, merge=(), snapshot=False, **fields):
        head = self.known.new if self.known else None
        made = version([*([head] if head else []), *merge], **fields)
        made_edges = [edge(head, made.id)] if head else []
        if snapshot or not head:
            made_edges.append(edge(None, made.id, nbytes=50_000, changes=1007))
        self.bucket.put(layout_key(LAYOUT.id), LAYOUT.body)
        self.bucket.put(made.key, made.body)
        for item in made_edges:
            self.bucket.put(item.key, item.body)
        return Commit(self.move(made.id, "commit"), made, tuple(made_edges))

    def add(self, base, target, **fields):
        """Another edge to a version, as compact writes them."""
        made = edge(base, target, origin="compact", **fields)
        self.bucket.put(made.key, made.body)
        return made

    def drop(self, *edges):
        for item in edges:
            record = DropRecord.of(item, "somebody", "expire")
            assert self.bucket.create(record.key, record.body)

    def move(self, new, why="moved"):
        self.known = self.refs.move(self.ref, self.known, new, "somebody", why)
        return self.known


def file(nbytes):
    return FileRef(f"{content_id(secrets.token_bytes(8))}-{secrets.token_hex(16)}", nbytes)


def open_index(url, bucket):
    engine = open_database(url)
    schema.prepare(engine)
    return Index(engine, bucket, "a repository")


def contents(index):
    """Every row of the database, with ids where rows refer to each other, in no particular order."""
    jump, parent, old, new = (versions.alias() for _ in range(4))
    base, target = versions.alias(), versions.alias()
    plain = [column for column in versions.c if column.name not in ("pk", "parent", "jump", "layout")]
    edge_columns = [column for column in edges.c if column.name not in ("pk", "base", "target")]
    queries = {
        "layouts": select(layouts.c.id, layouts.c.num_lanes, layouts.c.nbytes, layouts.c.body),
        "versions": select(*plain, parent.c.id, jump.c.id, layouts.c.id)
        .outerjoin(parent, parent.c.pk == versions.c.parent)
        .join(jump, jump.c.pk == versions.c.jump)
        .join(layouts, layouts.c.pk == versions.c.layout),
        "parents": select(versions.c.id, parents.c.place, parent.c.id)
        .join(versions, versions.c.pk == parents.c.version)
        .join(parent, parent.c.pk == parents.c.parent),
        "metrics": select(versions.c.id, metrics.c.name, metrics.c.value, metrics.c.special).join(
            versions, versions.c.pk == metrics.c.version
        ),
        "edges": select(*edge_columns, base.c.id, target.c.id)
        .outerjoin(base, base.c.pk == edges.c.base)
        .join(target, target.c.pk == edges.c.target),
        "packs": select(packs.c.id, packs.c.nbytes, edges.c.id)
        .outerjoin(edge_packs, edge_packs.c.pack == packs.c.pk)
        .outerjoin(edges, edges.c.pk == edge_packs.c.edge),
        "refs": select(refs.c.name, refs.c.sequence, versions.c.id).outerjoin(
            versions, versions.c.pk == refs.c.version
        ),
        "ref_entries": select(
            ref_entries.c.ref,
            ref_entries.c.sequence,
            ref_entries.c.who,
            ref_entries.c.moved_at,
            ref_entries.c.why,
            ref_entries.c.write_id,
            old.c.id,
            new.c.id,
        )
        .outerjoin(old, old.c.pk == ref_entries.c.old)
        .outerjoin(new, new.c.pk == ref_entries.c.new),
    }
    with reading(index.engine) as db:
        return {name: sorted(map(repr, db.execute(query).all())) for name, query in queries.items()}
