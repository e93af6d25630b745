"""The whole of it on real servers: a bucket behind S3, an index in PostgreSQL, and both of them failing."""

import json
import logging
import secrets

import psycopg
import pytest
import torch

import deltavc
from deltavc.errors import (
    DatabaseNeeded,
    DatabaseUnavailable,
    DeltavcError,
    NotARepository,
    StoreDenied,
    StoreUnavailable,
)
from deltavc.store.cache import CachedStore
from deltavc.store.objects import open_store
from tests.states import copied, of_every_dtype, random_bits, same, stepped

pytestmark = pytest.mark.servers


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Where copies of remote objects are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def place(s3, postgres):
    return {
        "url": f"{s3.new_bucket()}/team/run-7",
        "db": postgres.new_database(),
        "storage_options": s3.storage_options,
    }


@pytest.fixture
def repo(place):
    with deltavc.init(**place) as repo:
        yield repo


def commit_some(repo):
    """A line of five versions, the last two rolled back and replaced by one, a branch, tags; states by version."""
    states = {}
    state = of_every_dtype()
    with repo.writer() as writer:
        for step in range(5):
            state = stepped(state, step + 1)
            files = {"rng": b"%d" % step, "config.json": b"{}"}
            version = writer.commit(state, f"step {step}", step=step, metrics={"loss": 1 / (step + 1)}, files=files)
            states[version.id] = copied(state)
        repo.tag("good", "main~1")
        writer.rollback("step:2", "a test", into=state)
        state = stepped(state, 100)
        version = writer.commit(state, step=3, metrics={"loss": 0.1})
        states[version.id] = copied(state)
    repo.branch("other", "step:1")
    version = repo.commit({**state, "new": torch.ones(3)}, "other", step=2, snapshot=True)
    states[version.id] = {**copied(state), "new": torch.ones(3)}
    repo.tag("release", "other")
    repo.delete_tag("good")
    repo.tag("better", "main")
    return states


def seen(repo):
    """All that a repository tells of its lineage."""
    versions = repo.log(all=True)
    return {
        "versions": versions,
        "branches": repo.branches(),
        "tags": repo.tags(),
        "logs": {name: repo.log(name) for name in repo.branches()},
        "moves": {name: repo.reflog(name) for name in repo.branches()},
        "edges": {
            version.id: sorted(repo.edges(version.id), key=lambda edge: edge.id) for version in repo.log(all=True)
        },
        "best": repo.resolve("best:loss"),
        "totals": repo.stats(),
    }


def test_the_straight_line(repo, place):
    states = commit_some(repo)
    assert [version.step for version in repo.log("main")] == [3, 2, 1, 0]
    assert [version.step for version in repo.log("other")] == [2, 1, 0]
    assert repo.tags() == {"release": repo.resolve("other"), "better": repo.resolve("main")}
    assert repo.reflog("main")[1].why == "a test"
    assert repo.resolve("best:loss") == repo.resolve("main")
    assert repo.read_file("main~1", "rng") == b"2"
    for version, state in states.items():
        assert same(repo.checkout(version), state)
    with deltavc.open(**place) as again:
        assert seen(again) == seen(repo)
        assert same(again.checkout("release"), states[repo.resolve("release")])


def test_a_second_client_with_a_database_of_its_own_follows_the_bucket(repo, place, tmp_path):
    commit_some(repo)
    with deltavc.open(**{**place, "db": f"sqlite:///{tmp_path}/mine.db"}) as mine:
        assert seen(mine) == seen(repo)
        version = repo.commit({"x": torch.arange(9)}, step=9)
        assert mine.resolve("main") == version.id
        ours = mine.commit({"x": torch.arange(10)}, step=10)
        assert repo.resolve("main") == ours.id
        assert same(repo.checkout(), {"x": torch.arange(10)})
        assert seen(mine) == seen(repo)


def test_a_lost_database_is_rebuilt_from_the_bucket(repo, place, postgres):
    states = commit_some(repo)
    before = seen(repo)
    repo.close()
    with psycopg.connect(place["db"].replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    for database in (place["db"], postgres.new_database()):
        with deltavc.open(**{**place, "db": database}) as rebuilt:
            assert seen(rebuilt) == before
            for version, state in states.items():
                assert same(rebuilt.checkout(version), state)


def test_a_database_that_is_lost_under_an_open_writer_costs_no_commit(repo, place, postgres):
    with repo.writer() as writer:
        state = random_bits("bfloat16", (100,))
        writer.commit({"x": state}, step=0)
        name = place["db"].partition("?")[0].rpartition("/")[2]
        with psycopg.connect(postgres._server.get_uri(), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            try:
                state[3:9] = 0
                writer.commit({"x": state}, step=1)
                with pytest.raises(DatabaseUnavailable):
                    repo.log()
            finally:
                connection.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")
        state[5:50] = 1
        writer.commit({"x": state}, step=2)
    assert [version.step for version in repo.log()] == [2, 1, 0]
    assert same(repo.checkout(), {"x": state})


# --- refusals ---


def test_what_takes_all_of_history_needs_a_database(place):
    deltavc.init(**place).close()
    with deltavc.open(place["url"], storage_options=place["storage_options"]) as repo:
        version = repo.commit({"x": torch.ones(3)}, step=1)
        assert repo.checkout("main").version == version.id
        with pytest.raises(DatabaseNeeded, match="without a database"):
            repo.resolve("step:1")


def test_a_bucket_that_is_not_there_is_said_to_be_so(place):
    for open_or_init in (deltavc.open, deltavc.init):
        with pytest.raises(StoreUnavailable, match="no such bucket"):
            open_or_init(**{**place, "url": f"s3://bucket-{secrets.token_hex(6)}/x"})


def test_a_place_without_a_repository_is_said_to_be_so(place):
    with pytest.raises(NotARepository):
        deltavc.open(**place)


def test_wrong_credentials_are_denied_and_never_told(s3, place, caplog):
    caplog.set_level(logging.DEBUG)
    with deltavc.init(**place) as repo:
        repo.commit({"x": torch.arange(5)})
    for open_or_init in (deltavc.open, deltavc.init):
        with pytest.raises(StoreDenied) as denied:
            open_or_init(**{**place, "storage_options": s3.stranger_options})
        assert "not-the-secret" not in told_by(denied.value)
    with deltavc.open(**{**place, "storage_options": s3.reader_options}) as reader:
        assert same(reader.checkout(), {"x": torch.arange(5)})
        with pytest.raises(StoreDenied) as denied:
            reader.commit({"x": torch.arange(6)})
        assert "reader-secret" not in told_by(denied.value)
        assert same(reader.checkout(), {"x": torch.arange(5)})


def told_by(error):
    """All that an error and its causes may show."""
    told = []
    while error is not None:
        told += [str(error), repr(error), json.dumps(getattr(error, "facts", dict)(), default=str)]
        error = error.__cause__
    return "\n".join(told)


def test_no_secret_gets_into_errors_logs_or_the_bucket(s3, place, caplog, cache):
    caplog.set_level(logging.DEBUG)
    key, secret = s3.storage_options["key"], s3.storage_options["secret"]
    options = {name: value for name, value in s3.storage_options.items() if name not in ("key", "secret")}
    url = place["url"].replace("s3://", f"s3://{key}:{secret}@")
    with deltavc.init(url, place["db"], options) as repo:
        assert secret not in repo.url + repr(repo) + repo.database
        commit_some(repo)
        errors = []
        for fails in (
            lambda: repo.checkout("nothing"),
            lambda: repo.commit({"x": "no tensor"}),
            lambda: repo.tag("better"),
        ):
            with pytest.raises(DeltavcError) as error:
                fails()
            errors.append(told_by(error.value))
    with pytest.raises(DeltavcError) as error:
        deltavc.init(url, place["db"], options)
    errors.append(told_by(error.value))
    with pytest.raises(DatabaseUnavailable) as error:
        deltavc.open(url, "postgresql://somebody:database-secret@127.0.0.1:1/x", options)
    errors.append(told_by(error.value))
    assert not [text for text in errors if secret in text or "database-secret" in text]
    assert not [record for record in caplog.records if secret in record.getMessage()]
    store = open_store(place["url"], place["storage_options"])
    assert not [item.key for item in store.list() if secret.encode() in store.get(item.key)]
    assert not [path for path in cache.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


# --- the local cache ---


class Counting:
    """A store that counts the bytes it gives."""

    def __init__(self, store):
        self._store = store
        self.nbytes = 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    def get(self, key, *limits):
        body = self._store.get(key, *limits)
        self.nbytes += len(body)
        return body


def counted(repo):
    """Count what a repository reads from its server."""
    assert isinstance(repo._store, CachedStore)
    repo._store._store = Counting(repo._store._store)
    return repo._store._store


def test_a_second_checkout_reads_the_weights_from_the_local_cache(place):
    state = {"x": random_bits("bfloat16", (1000, 1000)), "y": random_bits("float32", (100,))}
    with deltavc.init(**place) as repo:
        counted(repo)
        version = repo.commit(state)
    with deltavc.open(**place) as first:
        server = counted(first)
        assert same(first.checkout(), state)
        assert server.nbytes > 2_000_000
    with deltavc.open(**place) as second:
        server = counted(second)
        assert same(second.checkout(version.id), state)
        assert same(second.checkout(), state)
        assert server.nbytes < 10_000


def test_the_local_cache_keeps_within_its_bounds(repo, place, cache, monkeypatch):
    monkeypatch.setattr("deltavc.opening.CACHE_BYTES", 4 << 20)
    states = {}
    with repo.writer() as writer:
        for step in range(12):
            state = {"x": random_bits("uint8", (500_000,), step)}
            states[writer.commit(state).id] = state
    with deltavc.open(**place) as bounded:
        for version, state in states.items():
            assert same(bounded.checkout(version), state)
    nbytes = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    assert 1 << 20 < nbytes < 5 << 20
