import sqlite3

import pytest
import sqlalchemy
from alembic.config import Config
from alembic.script import ScriptDirectory

from deltavc.errors import DatabaseUnavailable, SchemaOutdated, SchemaTooNew
from deltavc.lineage import schema
from deltavc.lineage.database import open_database, reading, writing
from deltavc.lineage.tables import metadata


@pytest.fixture
def new_engine(new_database):
    made = []

    def make(url=None):
        made.append(open_database(url or new_database()))
        return made[-1]

    yield make
    for engine in made:
        engine.dispose()


def reflected(engine):
    """All that the database says about its tables."""
    inspector = sqlalchemy.inspect(engine)
    return {
        table: {
            "columns": [{**column, "type": repr(column["type"])} for column in inspector.get_columns(table)],
            "primary key": inspector.get_pk_constraint(table),
            "foreign keys": sorted(inspector.get_foreign_keys(table), key=str),
            "indexes": sorted(inspector.get_indexes(table), key=str),
            "unique": sorted(inspector.get_unique_constraints(table), key=str),
        }
        for table in sorted(inspector.get_table_names())
    }


def at_revision(engine, revision):
    with writing(engine) as db:
        db.execute(sqlalchemy.text(f"UPDATE {schema.REVISION_TABLE} SET version_num = :to"), {"to": revision})


def test_migrating_an_empty_database_gives_what_creating_gives(new_engine):
    created, migrated = new_engine(), new_engine()
    schema.prepare(created)
    assert schema.upgrade(migrated) == (None, schema.REVISION)
    assert reflected(created) == reflected(migrated)
    assert set(reflected(created)) == {*metadata.tables, schema.REVISION_TABLE}
    schema.check(migrated)
    assert schema.upgrade(migrated) == (schema.REVISION, schema.REVISION)


def test_the_newest_migration_is_the_revision_of_the_tables():
    import deltavc.migrations

    config = Config()
    config.set_main_option("script_location", deltavc.migrations.__path__[0])
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_heads() == [schema.REVISION]
    revisions = [script.revision for script in scripts.walk_revisions()]
    assert all(len(revision) == 4 and revision.isdigit() for revision in revisions)
    assert revisions == sorted(revisions, reverse=True)


def test_preparing_twice_changes_nothing(new_engine):
    engine = new_engine()
    schema.prepare(engine)
    before = reflected(engine)
    schema.prepare(engine)
    schema.create(engine)
    assert reflected(engine) == before


@pytest.mark.parametrize(("found", "error"), [("0000", SchemaOutdated), ("9999", SchemaTooNew)])
def test_a_database_of_another_release_is_refused_untouched(new_engine, found, error):
    engine = new_engine()
    schema.prepare(engine)
    at_revision(engine, found)
    for open_it in (schema.prepare, schema.check, schema.create):
        with pytest.raises(error) as caught:
            open_it(engine)
        assert caught.value.found == found
    assert "deltavc" in caught.value.hint
    if error is SchemaTooNew:
        with pytest.raises(SchemaTooNew):
            schema.upgrade(engine)


def test_a_database_without_a_schema_is_outdated_when_only_checked(new_engine):
    with pytest.raises(SchemaOutdated):
        schema.check(new_engine())


def test_tables_of_something_else_are_left_alone(new_engine):
    engine = new_engine()
    with writing(engine) as db:
        db.execute(sqlalchemy.text("CREATE TABLE versions (x INTEGER)"))
    with pytest.raises(DatabaseUnavailable, match="tables of something else: versions"):
        schema.prepare(engine)
    assert set(reflected(engine)) == {"versions"}


def test_a_failed_write_leaves_nothing(new_engine):
    def write_and_fail(db):
        db.execute(sqlalchemy.text("INSERT INTO repository VALUES ('x')"))
        raise RuntimeError

    engine = new_engine()
    schema.prepare(engine)
    with pytest.raises(RuntimeError), writing(engine) as db:
        write_and_fail(db)
    with reading(engine) as db:
        assert db.execute(sqlalchemy.text("SELECT * FROM repository")).all() == []


def test_sqlite_is_set_up_for_many_processes(tmp_path):
    engine = open_database(f"sqlite:///{tmp_path}/x.db")
    with reading(engine) as db:
        pragmas = {name: db.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "foreign_keys")}
        assert pragmas == {"journal_mode": "wal", "foreign_keys": 1}
        assert db.exec_driver_sql("PRAGMA busy_timeout").scalar() == 30_000
    engine.dispose()


def test_a_writer_waits_for_another_from_its_first_statement(tmp_path):
    engine = open_database(f"sqlite:///{tmp_path}/x.db")
    other = sqlite3.connect(tmp_path / "x.db", timeout=0)
    with writing(engine), pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    other.close()
    engine.dispose()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("not a url", "named by"),
        ("mysql://root:secret@host/x", "only sqlite"),
        ("sqlite:////nowhere/at/all/x.db", "unable to open"),
        ("postgresql://someone:secret@127.0.0.1:1/x", "refused"),
    ],
)
def test_a_database_that_cannot_be_reached_is_named_without_its_password(url, reason):
    with pytest.raises(DatabaseUnavailable) as caught:
        schema.prepare(open_database(url))
    assert reason in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(caught.value.facts())


def test_a_file_that_is_no_database_is_named(tmp_path):
    (tmp_path / "x.db").write_text("something else entirely" * 100)
    with pytest.raises(DatabaseUnavailable, match="not a database"):
        schema.prepare(open_database(f"sqlite:///{tmp_path}/x.db"))
