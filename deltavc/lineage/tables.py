"""The tables of the index: what the bucket holds, in the form in which it is asked about.

    layouts <── versions ──< parents            versions form a graph
                   │  └────< metrics            one row a value
                   ├───────< edges >──< packs   how their weights are reached, and by which objects
                   └───────< ref_entries >── refs

Rows have integer keys, given in an order in which parents come before children; ids are unique texts.

Every version keeps its depth (edges to the root along first parents) and a `jump` to an ancestor further
back, chosen so that any ancestor along first parents is O(log n) steps away: the skew-binary jump pointers
of E. W. Myers, "An applicative random-access stack" (Information Processing Letters 17, 1983). `clock` is
its time in microseconds, moved past its parents' where clocks disagreed, as in git's corrected commit
dates; ordered by it, children come before parents.
"""

from __future__ import annotations

from typing import Any

import zstandard
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Key = BigInteger().with_variant(Integer, "sqlite")
"""Integer keys; in SQLite only a column declared INTEGER is the row id itself."""

Id = String(64).with_variant(String(64, collation="C"), "postgresql")
"""Ids, ordered by their digits whatever the database's locale, so that prefixes are ranges."""


class Prose(TypeDecorator[str]):
    r"""Text that people wrote. PostgreSQL cannot hold NUL in a text, so it is written as `\0`, and `\` as `\\`."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else value.replace("\\", "\\\\").replace("\0", "\\0")

    def process_result_value(self, value: str | None, dialect: Any) -> str | None:
        if value is None or "\\" not in value:
            return value
        return "\\".join(part.replace("\\0", "\0") for part in value.split("\\\\"))


class Compressed(TypeDecorator[bytes]):
    """Stored JSON as zstd with a checksum, so that a damaged row is an error when it is read."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: bytes | None, dialect: Any) -> bytes | None:
        return None if value is None else zstandard.ZstdCompressor(write_checksum=True).compress(value)

    def process_result_value(self, value: bytes | None, dialect: Any) -> bytes | None:
        return None if value is None else zstandard.decompress(value)


repository = Table("repository", metadata, Column("id", Text, primary_key=True))

layouts = Table(
    "layouts",
    metadata,
    Column("pk", Key, primary_key=True, autoincrement=False),
    Column("id", Id, nullable=False, unique=True),
    Column("num_lanes", BigInteger, nullable=False),
    Column("nbytes", BigInteger, nullable=False),
    Column("body", Compressed, nullable=False),
)

versions = Table(
    "versions",
    metadata,
    Column("pk", Key, primary_key=True, autoincrement=False),
    Column("id", Id, nullable=False, unique=True),
    Column("parent", Key, ForeignKey("versions.pk")),  # the first one
    Column("depth", BigInteger, nullable=False),
    Column("jump", Key, ForeignKey("versions.pk"), nullable=False),  # a root's is itself
    Column("jump_depth", BigInteger, nullable=False),
    Column("clock", BigInteger, nullable=False),
    Column("layout", Key, ForeignKey("layouts.pk"), nullable=False),
    Column("fingerprint", Id, nullable=False, index=True),
    Column("step", BigInteger, index=True),
    Column("message", Prose, nullable=False),
    Column("author", Prose, nullable=False),
    Column("time", String(27), nullable=False),
    Column("meta", Text, nullable=False),  # canonical JSON, as are files and source
    Column("files", Text, nullable=False),
    Column("source", Text),
    Column("new_file_bytes", BigInteger, nullable=False),  # of files that no parent names
    Index(None, "clock", "id"),
)

parents = Table(
    "parents",
    metadata,
    Column("version", Key, ForeignKey("versions.pk"), primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("parent", Key, ForeignKey("versions.pk"), nullable=False),
)

metrics = Table(
    "metrics",
    metadata,
    Column("version", Key, ForeignKey("versions.pk"), primary_key=True),
    Column("name", Prose, primary_key=True),
    Column("value", Double),  # NULL unless finite
    Column("special", String(9)),  # NaN, Infinity or -Infinity
    Index(None, "name", "value"),
)

edges = Table(
    "edges",
    metadata,
    Column("pk", Key, primary_key=True, autoincrement=False),
    Column("id", Id, nullable=False, unique=True),
    Column("base", Key, ForeignKey("versions.pk"), index=True),
    Column("target", Key, ForeignKey("versions.pk"), nullable=False, index=True),
    Column("reversible", Boolean, nullable=False),
    Column("nbytes", BigInteger, nullable=False),
    Column("changes", BigInteger, nullable=False),
    Column("origin", String(16), nullable=False),
    Column("new_bytes", BigInteger, nullable=False),  # of packs written for it
    Column("body", Compressed, nullable=False),
)

packs = Table(
    "packs",
    metadata,
    Column("pk", Key, primary_key=True, autoincrement=False),
    Column("id", Id, nullable=False, unique=True),
    Column("nbytes", BigInteger, nullable=False),
)

edge_packs = Table(
    "edge_packs",
    metadata,
    Column("edge", Key, ForeignKey("edges.pk"), primary_key=True),
    Column("pack", Key, ForeignKey("packs.pk"), primary_key=True, index=True),
)

refs = Table(
    "refs",
    metadata,
    Column("name", Text, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("version", Key, ForeignKey("versions.pk")),  # NULL when deleted
)

ref_entries = Table(
    "ref_entries",
    metadata,
    Column("ref", Text, ForeignKey("refs.name"), primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("old", Key, ForeignKey("versions.pk")),
    Column("new", Key, ForeignKey("versions.pk"), index=True),
    Column("who", Prose, nullable=False),
    Column("moved_at", String(27), nullable=False),
    Column("why", Prose, nullable=False),
    Column("write_id", String(32), nullable=False),
)
