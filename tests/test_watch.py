"""Watching a ref: every look is cheap, the newest version is told once, and outages are waited out."""

import itertools
import logging
import threading
import time

import psycopg
import pytest
import sqlalchemy
import torch

import deltavc
from deltavc import opening
from deltavc.errors import DatabaseUnavailable, StoreDenied, StoreUnavailable, UnknownRef
from deltavc.store import retry
from deltavc.watch import Watch
from tests.faults import faulty
from tests.servers import S3Server, start_again, start_s3, stop, temporary_directory


@pytest.fixture
def repo(tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        commit(repo, 0)
        yield repo


@pytest.fixture
def watched(repo, tmp_path, monkeypatch):
    """The repository as another process sees it, through a store that can fail, with a database of its own."""
    store = faulty(str(tmp_path / "repo"))
    monkeypatch.setattr(opening, "open_store", lambda *args: store)
    with deltavc.open(tmp_path / "repo", db=f"sqlite:///{tmp_path}/other.db") as other:
        yield other, store


def commit(repo, step, branch="main"):
    return repo.commit({"x": torch.arange(9) + step}, branch, step=step).id


class Thread:
    """A watch on a thread of its own; `told` is what it told, `next` waits for more."""

    def __init__(self, index, ref="main", act=lambda version: None, **options):
        self.watch = Watch(index, ref, **{"every": 0.01, "longest_wait": 0.05} | options)
        self.told = []
        self.error = None
        self._act = act
        self._changed = threading.Condition()
        self._seen = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.watch.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _run(self):
        try:
            for version in self.watch:
                with self.watch.surviving():
                    self._act(version)
                    with self._changed:
                        self.told.append(version)
                        self._changed.notify()
        except Exception as error:
            self.error = error

    def next(self):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.told) > self._seen, timeout=60), self.error
            self._seen += 1
            return self.told[self._seen - 1]


def test_the_newest_version_is_told_whenever_the_branch_has_moved_forwards_or_back(repo, watched):
    first = repo.resolve("main")
    with Thread(watched[0]._index) as thread:
        assert thread.next() == first
        for step in range(1, 4):
            assert commit(repo, step) == thread.next()
        repo.rollback("main", first)
        assert thread.next() == first
    assert len(thread.told) == 5


def test_versions_that_came_and_went_between_two_looks_are_passed_over(repo, watched):
    watch = Watch(watched[0]._index, "main")
    first = watch.look()
    commit(repo, 1)
    newest = commit(repo, 2)
    assert watch.look() == newest
    repo.rollback("main", first)
    repo.rollback("main", newest)
    assert watch.look() is None


def test_a_look_at_a_branch_that_has_not_moved_is_one_small_request_and_asks_no_database(repo, watched):
    other, store = watched
    watch = Watch(other._index, "branches/main")
    watch.look()
    queries = []
    sqlalchemy.event.listen(other._index.engine, "before_cursor_execute", lambda *query: queries.append(query))
    store.calls.clear()
    assert [watch.look() for _ in range(10)] == [None] * 10
    assert queries == []
    assert len(store.calls) == 10
    assert {name for name, _ in store.calls} == {"get"}


@pytest.mark.parametrize("ref", ["good", "tags/good", "main~1", "step:1", "best:loss", "main@{1}"])
def test_any_ref_can_be_watched(repo, watched, ref):
    first = repo.commit({"x": torch.ones(3)}, step=1, metrics={"loss": 1.0}).id
    commit(repo, 2)
    repo.tag("good", first)
    watch = Watch(watched[0]._index, ref)
    assert watch.look() == first
    assert watch.look() is None
    second = repo.commit({"x": torch.zeros(3)}, step=3, metrics={"loss": 0.5}).id
    moved = {"main~1": repo.resolve("step:2"), "best:loss": second, "main@{1}": repo.resolve("step:2")}
    assert watch.look() == moved.get(ref)


def test_a_ref_that_names_nothing_or_nothing_any_more_is_an_error(repo, watched):
    other, _ = watched
    with pytest.raises(UnknownRef):
        next(iter(Watch(other._index, "mian")))
    repo.branch("side")
    with Thread(other._index, "side") as thread:
        thread.next()
        repo.delete_branch("side")
        thread._thread.join(30)
    assert isinstance(thread.error, UnknownRef)
    assert "was deleted" in str(thread.error)


def test_seconds_between_looks_have_to_be_more_than_none(repo):
    with pytest.raises(ValueError, match="every=0"):
        Watch(repo._index, "main", every=0)


# --- stopping ---


def test_a_watch_stops_at_once_while_it_waits(repo):
    with Thread(repo._index, every=600) as thread:
        thread.next()
        started = time.monotonic()
    assert time.monotonic() - started < 10
    assert thread.error is None
    assert thread.watch.stopped


def test_a_watch_that_was_stopped_tells_nothing(repo):
    watch = Watch(repo._index, "main")
    watch.stop()
    assert list(watch) == []


# --- outages ---


def outages(caplog):
    return [record.message for record in caplog.records if record.name == "deltavc.watch"]


def test_an_outage_of_the_store_is_waited_out_and_logged_once_when_it_begins_and_ends(repo, watched, caplog):
    other, store = watched
    with Thread(other._index) as thread:
        thread.next()
        with store.down():
            newest = commit(repo, 1)
            store.calls.clear()
            until(lambda: len(store.calls) > 5)
            assert len(thread.told) == 1
        assert thread.next() == newest
        until(lambda: len(outages(caplog)) > 1)
    began, ended = outages(caplog)
    assert began.endswith("injected, the request was lost; trying again until it is back")
    assert ended.startswith("following main again, after ")


def until(true):
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_every_request_of_a_look_may_fail_once(repo, watched):
    other, store = watched
    watch = Watch(other._index, "main", every=0.001)
    versions = iter(watch)
    next(versions)
    for nth in itertools.count(1):
        newest = commit(repo, nth)
        with store.failing(nth, "before") as fired:
            assert next(versions) == newest
        if not fired:
            break
    assert nth > 3


def test_what_could_not_be_done_for_an_outage_is_told_again(repo, watched, caplog):
    tries = []

    def act(version):
        tries.append(version)
        if len(tries) < 4:
            raise DatabaseUnavailable("postgresql://host/x", "injected")

    with Thread(watched[0]._index, act=act) as thread:
        version = thread.next()
        until(lambda: len(outages(caplog)) > 1)
    assert tries == [version] * 4
    assert len(outages(caplog)) == 2


def test_other_errors_are_raised(repo, watched):
    other, store = watched
    watch = Watch(other._index, "main", every=0.001)
    versions = iter(watch)
    next(versions)
    with store.down(StoreDenied("/repo", "get", "injected")), pytest.raises(StoreDenied):
        next(versions)
    with Thread(other._index, act=lambda version: 1 // 0) as thread:
        thread._thread.join(30)
    assert isinstance(thread.error, ZeroDivisionError)


def test_waiting_times_double_up_to_their_bound(repo):
    watch = Watch(repo._index, "main", every=2.0, longest_wait=30.0)
    watch.look()
    for failures, bound in enumerate([4, 8, 16, 30, 30], start=1):
        with watch.surviving():
            raise StoreUnavailable("s3://bucket", "get", "injected")
        waits = [watch._pause(time.monotonic()) for _ in range(100)]
        assert bound / 2 <= min(waits) < max(waits) <= bound, failures
    with watch.surviving():
        pass
    watch._failures = 10**6
    assert watch._pause(time.monotonic()) <= 30


def test_a_look_does_not_try_again_by_itself(repo):
    calls = []

    def fails():
        calls.append(1)
        raise retry.Transient(StoreUnavailable("s3://bucket", "get", "injected"))

    policy = retry.Retry(attempts=3, first_wait=0.001)
    with retry.once(), pytest.raises(StoreUnavailable):
        policy.run(fails)
    assert len(calls) == 1
    with pytest.raises(StoreUnavailable):
        policy.run(fails)
    assert len(calls) == 4


# --- real servers ---


@pytest.mark.long
@pytest.mark.servers
def test_a_server_that_is_stopped_and_started_again_is_followed_on(postgres, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with temporary_directory("deltavc-s3-") as directory:
        process, ports, log = start_s3(directory)
        try:
            server = S3Server(f"http://127.0.0.1:{ports['s3.port']}")
            place = {"url": server.new_bucket(), "storage_options": server.storage_options}
            with deltavc.init(**place, db="sqlite://") as repo, deltavc.open(**place, db="sqlite://") as other:
                versions = [commit(repo, step) for step in range(2)]
                with Thread(other._index) as thread:
                    assert thread.next() == versions[1]
                    stop(process, ports)
                    until(lambda: thread.watch._failures > 5)
                    process = start_again(log.parent, ports)
                    repo.rollback("main", versions[0])
                    assert thread.next() == versions[0]
                    until(lambda: len(outages(caplog)) > 1)
        finally:
            stop(process, ports)
    assert len(outages(caplog)) == 2


@pytest.mark.servers
def test_a_database_that_is_away_is_waited_for(repo, tmp_path, postgres, caplog):
    url = postgres.new_database()
    name = url.partition("?")[0].rpartition("/")[2]
    with (
        deltavc.open(tmp_path / "repo", db=url) as other,
        psycopg.connect(postgres._server.get_uri(), autocommit=True) as connection,
        Thread(other._index) as thread,
    ):
        thread.next()
        connection.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        newest = commit(repo, 1)
        until(lambda: thread.watch._failures > 3)
        connection.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")
        assert thread.next() == newest
        until(lambda: len(outages(caplog)) > 1)
    assert len(outages(caplog)) == 2
