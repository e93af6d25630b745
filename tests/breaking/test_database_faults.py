"""Every SQL statement and every COMMIT fails once, before or after it took effect, in everything that writes.

After a SELECT, a lost answer is the same as a lost request.
"""

import contextlib
import itertools

import psycopg
import pytest
from sqlalchemy import event

import deltavc
from deltavc import opening
from deltavc.errors import DeltavcError
from tests.breaking.once import each, fail_once, hows, names, numbers
from tests.breaking.operations import OPERATIONS, after_init, attempt
from tests.breaking.tally import count
from tests.breaking.template import template
from tests.faults import failing_statements

NEVER = 10**9


def num_statements(name, how):
    """How many statements an operation runs when nothing fails."""
    _, repo = template(name).copy()
    with repo, failing_statements(repo._index.engine, NEVER, how) as tried:
        assert attempt(OPERATIONS[name], repo) is None
        return len(tried)


@each
@hows
@names
def test_what_meets_one_statement_that_fails_is_done_or_not_and_can_be_repeated(name, how, every):
    for nth in numbers(name, num_statements(name, how), every):
        fail_once(name, lambda repo, store, nth=nth: failing_statements(repo._index.engine, nth, how))
        count(statements=1)


@contextlib.contextmanager
def connection_lost(engine, admin, nth):
    """Let PostgreSQL end the connection before its nth statement; yields those that were tried."""
    tried = []

    def end(connection, cursor, statement, *_):
        tried.append(statement)
        if len(tried) == nth:
            with psycopg.connect(admin, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s, 10000)", [cursor.connection.info.backend_pid])

    event.listen(engine, "before_cursor_execute", end)
    try:
        yield tried
    finally:
        event.remove(engine, "before_cursor_execute", end)


@pytest.mark.long
@pytest.mark.servers
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "every"), [("commit", 8), ("rollback", 8), ("expire", 8), ("gc", 8), ("reindex", 1)])
def test_what_loses_its_connection_to_postgresql_is_done_or_not_and_can_be_repeated(name, every, postgres):
    admin = postgres.new_database().replace("+psycopg", "")
    for nth in numbers(name, num_statements(name, "before"), every):
        fail_once(
            name,
            lambda repo, store, nth=nth: connection_lost(repo._index.engine, admin, nth),
            database=postgres.new_database(),
        )
        count(statements=1)


@hows
@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.long)])
def test_init_that_meets_one_statement_that_fails_can_be_repeated(tmp_path, monkeypatch, how, every):
    open_database = opening.open_database
    for nth in itertools.count(1, every):
        url = str(tmp_path / str(nth))
        with contextlib.ExitStack() as stack, monkeypatch.context() as patch:
            tried = []

            def opened(place, stack=stack, tried=tried, nth=nth):
                engine = open_database(place)
                tried.append(stack.enter_context(failing_statements(engine, nth, how)))
                return engine

            patch.setattr(opening, "open_database", opened)
            with contextlib.suppress(DeltavcError):
                deltavc.init(url).close()
        count(operations=1, statements=len(tried[0]) >= nth)
        after_init(url)
        if len(tried[0]) < nth:
            break
    assert nth > 10
