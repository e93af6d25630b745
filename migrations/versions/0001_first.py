"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
content_id = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table("repository", sa.Column("id", sa.Text(), nullable=False), _primary("repository", "id"))
    op.create_table(
        "layouts",
        sa.Column("pk", key, nullable=False, autoincrement=False),
        sa.Column("id", content_id, nullable=False),
        sa.Column("num_lanes", sa.BigInteger(), nullable=False),
        sa.Column("nbytes", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        _primary("layouts", "pk"),
        _unique("layouts", "id"),
    )
    op.create_table(
        "versions",
        sa.Column("pk", key, nullable=False, autoincrement=False),
        sa.Column("id", content_id, nullable=False),
        sa.Column("parent", key),
        sa.Column("depth", sa.BigInteger(), nullable=False),
        sa.Column("jump", key, nullable=False),
        sa.Column("jump_depth", sa.BigInteger(), nullable=False),
        sa.Column("clock", sa.BigInteger(), nullable=False),
        sa.Column("layout", key, nullable=False),
        sa.Column("fingerprint", content_id, nullable=False),
        sa.Column("step", sa.BigInteger()),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("time", sa.String(27), nullable=False),
        sa.Column("meta", sa.Text(), nullable=False),
        sa.Column("files", sa.Text(), nullable=False),
        sa.Column("source", sa.Text()),
        sa.Column("new_file_bytes", sa.BigInteger(), nullable=False),
        _primary("versions", "pk"),
        _unique("versions", "id"),
        _foreign("versions", "parent", "versions.pk"),
        _foreign("versions", "jump", "versions.pk"),
        _foreign("versions", "layout", "layouts.pk"),
    )
    for columns in (["fingerprint"], ["step"], ["clock", "id"]):
        _index("versions", *columns)
    op.create_table(
        "parents",
        sa.Column("version", key, nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("parent", key, nullable=False),
        _primary("parents", "version", "place"),
        _foreign("parents", "version", "versions.pk"),
        _foreign("parents", "parent", "versions.pk"),
    )
    op.create_table(
        "metrics",
        sa.Column("version", key, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Double()),
        sa.Column("special", sa.String(9)),
        _primary("metrics", "version", "name"),
        _foreign("metrics", "version", "versions.pk"),
    )
    _index("metrics", "name", "value")
    op.create_table(
        "edges",
        sa.Column("pk", key, nullable=False, autoincrement=False),
        sa.Column("id", content_id, nullable=False),
        sa.Column("base", key),
        sa.Column("target", key, nullable=False),
        sa.Column("reversible", sa.Boolean(), nullable=False),
        sa.Column("nbytes", sa.BigInteger(), nullable=False),
        sa.Column("changes", sa.BigInteger(), nullable=False),
        sa.Column("origin", sa.String(16), nullable=False),
        sa.Column("new_bytes", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        _primary("edges", "pk"),
        _unique("edges", "id"),
        _foreign("edges", "base", "versions.pk"),
        _foreign("edges", "target", "versions.pk"),
    )
    _index("edges", "base")
    _index("edges", "target")
    op.create_table(
        "packs",
        sa.Column("pk", key, nullable=False, autoincrement=False),
        sa.Column("id", content_id, nullable=False),
        sa.Column("nbytes", sa.BigInteger(), nullable=False),
        _primary("packs", "pk"),
        _unique("packs", "id"),
    )
    op.create_table(
        "edge_packs",
        sa.Column("edge", key, nullable=False),
        sa.Column("pack", key, nullable=False),
        _primary("edge_packs", "edge", "pack"),
        _foreign("edge_packs", "edge", "edges.pk"),
        _foreign("edge_packs", "pack", "packs.pk"),
    )
    _index("edge_packs", "pack")
    op.create_table(
        "refs",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("version", key),
        _primary("refs", "name"),
        _foreign("refs", "version", "versions.pk"),
    )
    op.create_table(
        "ref_entries",
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("old", key),
        sa.Column("new", key),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("moved_at", sa.String(27), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("write_id", sa.String(32), nullable=False),
        _primary("ref_entries", "ref", "sequence"),
        _foreign("ref_entries", "ref", "refs.name"),
        _foreign("ref_entries", "old", "versions.pk"),
        _foreign("ref_entries", "new", "versions.pk"),
    )
    _index("ref_entries", "new")


def _primary(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def _unique(table: str, column: str) -> sa.UniqueConstraint:
    return sa.UniqueConstraint(column, name=f"uq_{table}_{column}")


def _foreign(table: str, column: str, to: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [to], name=f"fk_{table}_{column}")


def _index(table: str, *columns: str) -> None:
    op.create_index("_".join(["ix", table, *columns]), table, list(columns))
