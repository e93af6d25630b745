"""A real store, or a real database, one call of which fails: before it lands, or after it landed, its answer lost."""

import contextlib
import itertools
import threading

from sqlalchemy import event

from deltavc.errors import StoreUnavailable
from deltavc.store.objects import open_store

WRITES = ("put", "create", "put_path", "delete")
LISTINGS = ("list", "prefixes")
READS = ("get", "get_path", "stat", "now", *LISTINGS)


class FaultyStore:
    """Passes everything on to a store, but for what `failing` or `losing_answers` says."""

    remote = False

    def __init__(self, store):
        self._store = store
        self._lock = threading.Lock()
        self._plan = None
        self.calls = []

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if name not in WRITES + READS:
            return found

        def call(*args, **kwargs):
            self.calls.append((name, args[0] if args else ""))
            plan = self._plan
            fail = plan is not None and plan(name, args)
            if fail == "before":
                raise StoreUnavailable(self.url, name, "injected, the request was lost")
            if isinstance(fail, BaseException):
                raise fail
            result = found(*args, **kwargs)
            if name in LISTINGS:
                result = list(result)
            if fail == "after":
                raise StoreUnavailable(self.url, name, "injected, the answer was lost")
            return iter(result) if name in LISTINGS else result

        return call

    @contextlib.contextmanager
    def failing(self, nth, how, names=WRITES + READS):
        """Let the nth call (from 1) of these names fail; what is yielded tells whether it did."""
        fired = []
        count = 0

        def plan(name, args):
            nonlocal count
            if name not in names:
                return None
            with self._lock:
                count += 1
                if count != nth:
                    return None
            fired.append((name, args[0] if args else ""))
            return how

        self._plan = plan
        try:
            yield fired
        finally:
            self._plan = None

    @contextlib.contextmanager
    def meanwhile(self, nth, does):
        """Let something happen right before the nth call (from 1)."""
        numbers = itertools.count(1)

        def plan(name, args):
            with self._lock:
                reached = next(numbers) == nth
            if reached:
                does()

        self._plan = plan
        try:
            yield
        finally:
            self._plan = None

    @contextlib.contextmanager
    def down(self, how="before", names=WRITES + READS, when=lambda key: True):
        """Let every call of these names, on keys that `when` picks, fail until further notice."""
        self._plan = lambda name, args: how if name in names and when(args[0] if args else "") else None
        try:
            yield
        finally:
            self._plan = None

    @contextlib.contextmanager
    def held(self, names=READS, when=lambda key: True):
        """Let every call of these names, on keys that `when` picks, wait until the end of the block."""
        go_on = threading.Event()

        def plan(name, args):
            if name in names and when(args[0] if args else ""):
                go_on.wait(60)

        self._plan = plan
        try:
            yield
        finally:
            self._plan = None
            go_on.set()


def faulty(url):
    return FaultyStore(open_store(url))


@contextlib.contextmanager
def failing_statements(engine, nth=None, how="before"):
    """Let the nth statement or COMMIT (from 1; None: every one) fail as the driver does; yields those that were tried.

    One that fails "after" has taken effect, and only the answer was lost; those that only read are not tried then.
    """
    tried = []
    driver_error = engine.dialect.dbapi.OperationalError

    def run(statement, execute):
        if how == "after" and statement.lstrip().startswith(("SELECT", "PRAGMA")):
            execute()
            return True
        tried.append(statement)
        fails = nth is None or len(tried) == nth
        if not fails or how == "after":
            execute()
        if fails:
            raise driver_error("injected, the connection was lost")
        return True  # it has been executed

    def execute(cursor, statement, parameters, context):
        return run(statement, lambda: cursor.execute(statement, parameters))

    def execute_many(cursor, statement, parameters, context):
        return run(statement, lambda: cursor.executemany(statement, parameters))

    def commit(connection):
        run("COMMIT", lambda: type(engine.dialect).do_commit(engine.dialect, connection))

    event.listen(engine, "do_execute", execute)
    event.listen(engine, "do_executemany", execute_many)
    engine.dialect.do_commit = commit
    try:
        yield tried
    finally:
        del engine.dialect.do_commit
        event.remove(engine, "do_execute", execute)
        event.remove(engine, "do_executemany", execute_many)
