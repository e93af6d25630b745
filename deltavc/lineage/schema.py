"""The schema's life: made in an empty database, checked when one is opened, upgraded when somebody asks.

Opening never migrates. Revisions are numbered (0001, 0002, ...) and live in `deltavc.migrations`; the one a
database is at stands in its table `deltavc_schema`.
"""

from __future__ import annotations

import importlib.resources

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    insert,
    inspect,
    select,
)

from deltavc.errors import DatabaseUnavailable, SchemaOutdated, SchemaTooNew
from deltavc.lineage.database import reading, redact, writing
from deltavc.lineage.tables import metadata

REVISION = "0001"
"""The revision that `tables` describes."""

REVISION_TABLE = "deltavc_schema"

_revision = Table(  # as Alembic makes it
    REVISION_TABLE,
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{REVISION_TABLE}_pkc"),
)


def prepare(engine: Engine) -> None:
    """Make an empty database ready, and check one that is not.

    Raises:
        SchemaOutdated, SchemaTooNew: it was made by another release.
        DatabaseUnavailable: it cannot be reached, or holds tables of something else.
    """
    with reading(engine) as db:
        found = _found(db)
    if found is None:
        create(engine)
    else:
        _compare(engine, found)


def create(engine: Engine) -> None:
    """Make the newest schema in a database that has none of its tables; one made meanwhile is checked.

    Raises what `prepare` raises.
    """
    with writing(engine) as db:
        found = _found(db)
        if found is None:
            if taken := sorted(set(inspect(db).get_table_names()) & set(metadata.tables)):
                raise DatabaseUnavailable(redact(engine), f"it holds tables of something else: {', '.join(taken)}")
            metadata.create_all(db)
            _revision.create(db)
            db.execute(insert(_revision).values(version_num=REVISION))
            return
    _compare(engine, found)


def check(engine: Engine) -> None:
    """Raise SchemaOutdated or SchemaTooNew unless the database has the schema of this release."""
    with reading(engine) as db:
        found = _found(db)
    _compare(engine, found or "none")


def upgrade(engine: Engine) -> tuple[str | None, str]:
    """Bring the schema to this release's, in one transaction. Returns the revisions before and after.

    Raises:
        SchemaTooNew: it is newer already.
        DatabaseUnavailable: the database cannot be reached, or a migration failed; nothing was changed.
    """
    import alembic.command  # slow to import, and only needed here
    import alembic.config

    with writing(engine) as db:
        found = _found(db)
        if found is not None and found > REVISION:
            raise SchemaTooNew(redact(engine), found, REVISION)
        with importlib.resources.as_file(importlib.resources.files("deltavc.migrations")) as scripts:
            config = alembic.config.Config()
            config.set_main_option("script_location", str(scripts).replace("%", "%%"))
            config.attributes["connection"] = db
            config.attributes["revision_table"] = REVISION_TABLE
            alembic.command.upgrade(config, "head")
    return found, REVISION


def _found(db: Connection) -> str | None:
    if not inspect(db).has_table(REVISION_TABLE):
        return None
    return db.execute(select(_revision.c.version_num)).scalar()


def _compare(engine: Engine, found: str) -> None:
    if found == REVISION:
        return
    # Revisions are zero-padded numbers, so they compare as texts; "none" is a database without a schema.
    if found == "none" or found < REVISION:
        raise SchemaOutdated(redact(engine), found, REVISION)
    raise SchemaTooNew(redact(engine), found, REVISION)
