"""Reindex: the rows that grew with the commits, made from the bucket alone, for every reader at one moment."""

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import delete, insert, select, update

import deltavc
from deltavc.errors import DatabaseNeeded, DatabaseUnavailable, MissingObject
from deltavc.lineage import rebuild
from deltavc.lineage.database import reading, writing
from deltavc.lineage.index import Index
from deltavc.lineage.records import version_key
from deltavc.lineage.tables import edges, metrics, ref_entries, refs, versions
from deltavc.repo import Repo
from deltavc.upkeep import bundle
from tests import states
from tests.faults import FaultyStore
from tests.lineage.conftest import new_database, spare_databases  # noqa: F401
from tests.lineage.samples import contents
from tests.upkeep.stores import drop, grown, state_at


@pytest.fixture
def repo(tmp_path, new_database):  # noqa: F811
    """A repository with everything in it, and a database that grew with its commits."""
    with deltavc.init(tmp_path / "repo", db=new_database()) as repo:
        ids = grown(repo, 12, snapshots=(4,), metrics={"loss": 0.5, "nan": float("nan")}, meta={"a": [1]})
        repo.branch("side", ids[5])
        grown(repo, 4, "side", first=50, files={"rng": b"x"}, message="NUL \0 and \\")
        repo.tag("v1", ids[3])
        repo.tag("gone", ids[2])
        repo.delete_tag("gone")
        repo.rollback("main", "main~4", reason="a test")
        repo.commit({**state_at(99), "new": states.random_bits("float32", (3,))})
        repo.compact(deltavc.Bounds(max_edges=3, span=2, max_ratio=1e9, max_work=1e9))
        [edge] = [edge for edge in repo.edges(ids[11]) if edge.origin == "commit"]
        drop(repo._store, edge)
        repo._index.refresh()
        yield repo


def test_the_rows_are_those_that_grew_with_the_commits(repo, new_database):  # noqa: F811
    grew = contents(repo._index)
    totals = repo.stats()
    with deltavc.open(repo.url, db=new_database()) as empty:
        assert empty.reindex() == totals
        assert contents(empty._index) == grew
    assert repo.reindex() == totals
    assert contents(repo._index) == grew


def test_a_bundle_makes_no_difference(repo, monkeypatch):
    monkeypatch.setattr("deltavc.lineage.index._MANY", 1)
    grew = contents(repo._index)
    bundle.write(repo._access(1 << 28))
    repo.reindex()
    assert contents(repo._index) == grew


def test_whatever_was_wrong_in_it_is_right_afterwards(repo):
    grew = contents(repo._index)
    with writing(repo._index.engine, unchecked=True) as db:
        db.execute(delete(metrics).where(metrics.c.name == "loss"))
        db.execute(update(versions).values(message="forged", depth=0))
        db.execute(update(edges).values(nbytes=1, base=None))
        last = db.execute(select(ref_entries).where(ref_entries.c.ref == "tags/v1")).mappings().one()
        db.execute(insert(refs).values(name="branches/invented", sequence=1, version=1))
        db.execute(insert(ref_entries).values({**last, "ref": "branches/invented"}))
    assert contents(repo._index) != grew
    repo.reindex()
    assert contents(repo._index) == grew
    repo.commit(state_at(7))
    with reading(repo._index.engine) as db:
        if db.dialect.name == "sqlite":
            assert db.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
            assert db.exec_driver_sql("PRAGMA foreign_key_check").all() == []


def test_readers_and_writers_beside_it_see_all_or_nothing(repo):
    heads = set(repo.branches())
    stop = threading.Event()

    def read(repo):
        seen, at = 0, 0
        while not stop.is_set():
            assert heads <= set(repo._index.branches())
            assert len(repo.log("side")) == 10
            if (head := repo._index.head("branches/side2")) is not None:
                assert at <= head.sequence
                at = head.sequence
            seen += 1
        return seen

    def write(repo):
        made = 0
        while not stop.is_set():
            repo.commit(state_at(1000 + made), "side2", parents=None if made else ["side"])
            made += 1
        return made

    repo._index.catch_up_all()
    with ThreadPoolExecutor() as pool, deltavc.open(repo.url, db=_url(repo)) as other:
        readers = [pool.submit(read, repo), pool.submit(read, other)]
        writer = pool.submit(write, other)
        for _ in range(4):
            repo.reindex()
        stop.set()
        assert all(reader.result(60) for reader in readers)
        written = writer.result(60)
    assert len(repo.log("side2")) == 10 + written


TIGHT = deltavc.Bounds(max_edges=2, span=2, max_ratio=1e9, max_work=1e9)

MEANWHILE = {
    "commit": lambda repo, number: repo.commit(state_at(number), step=number),
    "new branch": lambda repo, number: repo.commit(state_at(number), f"new-{number}", parents=["side"], step=number),
    "rollback": lambda repo, number: repo.rollback("main", "main~1", "a test"),
    "tag": lambda repo, number: repo.tag(f"t-{number}", "side"),
    "delete": lambda repo, number: repo.delete_branch("side"),
    "compact": lambda repo, number: repo.compact(TIGHT),
    "expire": lambda repo, number: repo.expire(),
}
SHORT = ("commit", "new branch", "expire")


@pytest.mark.parametrize(
    ("does", "num_moments"),
    [pytest.param(does, 4, id=f"{does}-some") for does in SHORT]
    + [pytest.param(does, 40, id=f"{does}-many", marks=pytest.mark.long) for does in MEANWHILE],
)
def test_what_is_done_at_any_moment_of_it_stays_seen(tmp_path, new_database, does, num_moments):  # noqa: F811
    with (
        deltavc.init(tmp_path / "repo", db=new_database()) as repo,
        deltavc.open(tmp_path / "repo", db=_url(repo)) as other,
    ):
        ids = grown(repo, 4)
        repo.set_policy(deltavc.Policy(keep_last=2))
        store = FaultyStore(repo._store)
        slow = Repo(store, Index(repo._index.engine, store, repo.id), repo.id)
        num_seen = 0
        for number in range(num_moments):
            repo.commit(state_at(number), step=number)
            if "side" not in repo.branches():
                repo.branch("side", ids[3])
            store.calls.clear()
            slow.reindex()
            nth = len(store.calls) - number * len(store.calls) // num_moments  # the last call first
            seen = []

            def do(number=number, seen=seen):
                MEANWHILE[does](other, 1000 + number)
                seen.append(contents(other._index))

            with store.meanwhile(nth, do):
                slow.reindex()
            if not seen:  # how many calls it makes depends a little on its threads
                continue
            num_seen += 1
            assert contents(repo._index) == seen[0]
            with deltavc.open(repo.url, db="sqlite://") as stranger:
                stranger._index.catch_up_all()
                assert contents(stranger._index) == seen[0]
        assert num_seen > num_moments / 2


def test_one_that_fails_leaves_the_old_rows(repo, monkeypatch):
    grew = contents(repo._index)
    version = repo.resolve("main~2")
    key = version_key(version)
    body = repo._store.get(key)
    repo._store.delete(key)
    with pytest.raises(MissingObject):
        repo.reindex()
    assert contents(repo._index) == grew
    repo._store.put(key, body)

    def interrupt(doing, done, total):
        if doing == "writing rows" and done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repo.reindex(progress=interrupt)
    assert contents(repo._index) == grew
    repo.commit(state_at(8))


KILLED = """
import sys, time, deltavc
def report(doing, done, total):
    if doing == "writing rows" and done > total // 2:
        print("halfway", flush=True)
        time.sleep(60)
deltavc.open(sys.argv[1], db=sys.argv[2]).reindex(progress=report)
"""


def test_one_that_is_killed_leaves_the_old_rows(repo):
    grew = contents(repo._index)
    arguments = [sys.executable, "-c", KILLED, repo.url, _url(repo)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "halfway\n"
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while True:
        try:
            assert contents(repo._index) == grew
            break
        except DatabaseUnavailable:  # the server has not noticed yet
            assert time.monotonic() < deadline
    repo.commit(state_at(9))
    repo.reindex()


def test_it_needs_a_database(repo):
    with deltavc.open(repo.url, db="none") as lazy, pytest.raises(DatabaseNeeded):
        lazy.reindex()


def test_every_table_is_filled(repo):
    assert {table.name for table in rebuild._TABLES} == {*contents(repo._index), "edge_packs"}


def _url(repo):
    return repo._index.engine.url.render_as_string(hide_password=False)
