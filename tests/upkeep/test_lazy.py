"""Without a database: what goes back from a ref is found in the bucket, with few requests; to read it is enough."""

import contextlib
import secrets
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import deltavc
from deltavc.errors import DatabaseNeeded, NoPath, UnknownRef
from deltavc.lineage.lazy import LazyIndex
from deltavc.lineage.plan import cost, plan
from deltavc.lineage.records import ref_entry_key
from deltavc.lineage.resolve import resolve
from deltavc.store import open_store
from tests import states
from tests.faults import READS, WRITES, faulty
from tests.lineage import samples


def history(moves):
    """A bucket with branches that grow, are rolled back, and start from each other, as the moves say; ids in it."""
    bucket = open_store(f"memory://{secrets.token_hex(8)}")
    writers = {"main": samples.Writer(bucket)}
    ids = [writers["main"].commit(snapshot=True).id]
    for kind, which, place in moves:
        name = f"branch-{which}" if which else "main"
        if name not in writers:
            writers[name] = samples.Writer(bucket, f"branches/{name}")
            writers[name].move(ids[place % len(ids)])
        if kind == "back":
            writers[name].move(ids[place % len(ids)])
        else:
            merge = [ids[place % len(ids)]] if kind == "merge" else []
            files = {"f": samples.file(place)} if place % 3 else {}
            ids.append(writers[name].commit(merge=merge, snapshot=kind == "snapshot", files=files, step=place).id)
    return bucket, ids


HISTORIES = st.lists(
    st.tuples(
        st.sampled_from(["commit"] * 6 + ["snapshot", "back", "merge"]), st.integers(0, 2), st.integers(0, 10**6)
    ),
    max_size=40,
).map(history)


def opened_both(bucket):
    full, lazy = samples.open_index("sqlite://", bucket), LazyIndex(bucket, "memory://")
    full.catch_up_all()
    lazy.catch_up_all()
    return full, lazy


def price(found):
    return sum(cost(step.edge.nbytes, step.edge.changes) for step in found.steps)


@given(HISTORIES)
def test_it_answers_what_a_database_answers(made):
    bucket, ids = made
    full, lazy = opened_both(bucket)
    assert (lazy.branches(), lazy.tags()) == (full.branches(), full.tags())
    for name in full.branches():
        for limit in (None, 1, 3):
            assert lazy.reflog(f"branches/{name}", limit) == full.reflog(f"branches/{name}", limit)
    for version, known, found in zip(ids, full.versions(ids), lazy.versions(ids), strict=True):
        assert found.record == known.record
        assert (found.num_lanes, found.changed_lanes, found.stored_bytes) == (
            known.num_lanes,
            known.changed_lanes,
            known.stored_bytes,
        )
        assert lazy.edges_into(version) == full.edges_into(version)
        for steps in (0, 1, 5, 30):
            assert lazy.ancestor(version, steps) == full.ancestor(version, steps)
        for digits in (4, 8, 64):
            assert lazy.starting_with(version[:digits]) == full.starting_with(version[:digits])
    full.close()


@given(HISTORIES, st.integers(0, 10**6), st.sets(st.integers(0, 10**6), max_size=2))
def test_its_ways_are_as_cheap_as_a_database_finds_them_but_for_detours_through_what_came_later(made, goal, held):
    bucket, ids = made
    full, lazy = opened_both(bucket)
    target, held = ids[goal % len(ids)], [ids[place % len(ids)] for place in held]
    assert price(plan(lazy, target, forward_only=True)) == price(plan(full, target, forward_only=True))
    found, known = plan(lazy, target, held), plan(full, target, held)
    assert price(known) <= price(found) <= price(plan(full, target, held, forward_only=True))
    at = found.start
    for step in found.steps:
        assert at == (step.edge.base if step.forward else step.edge.target)
        at = step.to
    assert at == target
    if not any(step.edge.base is None for step in known.steps) and len(held) == 1:
        back = [step.forward for step in known.steps]
        if back == sorted(back):  # first back, then on
            assert price(found) == price(known)
    full.close()


def test_a_way_that_was_dropped_is_not_taken(tmp_path):
    from deltavc.lineage.drops import DropRecord

    with deltavc.init(tmp_path / "repo", db="none") as repo:
        repo.commit({"x": states.random_bits("float32", (100,))})
        head = repo.commit({"x": states.random_bits("float32", (100,), 1)})
        [edge] = repo.edges(head.id)
        repo._store.create(DropRecord.of(edge, "me", "test").key, DropRecord.of(edge, "me", "test").body)
        with pytest.raises(NoPath):
            repo.checkout()


def test_a_repository_is_made_written_and_read_without_a_database(tmp_path):
    made = []
    with deltavc.init(tmp_path / "repo", db="none") as repo, repo.writer() as writer:
        state = {"x": states.random_bits("bfloat16", (40, 30))}
        for step in range(6):
            state = states.stepped(state, step)
            made.append((writer.commit(state, step=step, metrics={"loss": 1.0}), states.copied(state)))
        repo.branch("side", "main~2")
        repo.tag("v1", "main~1")
        writer.rollback("main~1", "worse", into=state)
        assert states.same(state, made[4][1])
    with deltavc.open(tmp_path / "repo", db="none") as repo:
        assert repo.database is None
        heads = {"main": made[4], "main~4": made[0], "side": made[3], "v1^": made[3], "main@{1}": made[5]}
        heads |= {version.id: (version, state) for version, state in made}
        heads |= {version.id[:10]: (version, state) for version, state in made}
        for ref, (version, state) in heads.items():
            assert repo.resolve(ref) == version.id
            assert states.same(repo.checkout(ref), state)
        assert repo.version("main").stored_bytes == made[4][0].stored_bytes
        assert repo.branches() == {"main": made[4][0].id, "side": made[3][0].id}
        assert [entry.why for entry in repo.reflog("main", 2)] == ["worse", "commit"]
        with pytest.raises(UnknownRef, match="side"):
            repo.resolve("sied")
        for ask in (
            lambda: repo.resolve("step:3"),
            lambda: repo.resolve("best:loss"),
            lambda: repo.log(),
            lambda: repo.stats(),
            lambda: repo.identify(state),
        ):
            with pytest.raises(DatabaseNeeded, match="without a database"):
                ask()
    assert not list(tmp_path.rglob("lineage.db*"))
    with deltavc.open(tmp_path / "repo") as repo:
        assert len(repo.log(all=True)) == 6


@pytest.fixture
def long_line():
    bucket = open_store(f"memory://{secrets.token_hex(8)}")
    main = samples.Writer(bucket)
    commits = [main.commit(snapshot=number % 150 == 0) for number in range(300)]
    return bucket, [commit.id for commit in commits]


class Counting:
    """A bucket that counts what is asked of it."""

    def __init__(self, bucket):
        self._bucket = bucket
        self.calls = Counter()

    def __getattr__(self, name):
        if name in READS:
            self.calls[name] += 1
        return getattr(self._bucket, name)


def test_asking_costs_no_more_for_a_long_history(long_line):
    bucket, ids = long_line
    counting = Counting(bucket)
    index = LazyIndex(counting, "memory://")
    assert resolve(index, "main") == ids[-1]
    assert sum(counting.calls.values()) < 12
    counting.calls.clear()
    assert resolve(index, "main~3") == ids[-4]
    assert sum(counting.calls.values()) < 30
    counting.calls.clear()
    assert [step.to for step in plan(index, ids[152]).steps] == ids[150:153]
    assert sum(counting.calls.values()) < 20
    counting.calls.clear()
    assert [step.to for step in plan(index, ids[-1], [ids[-2]]).steps] == ids[-1:]
    assert sum(counting.calls.values()) < 30


def test_going_far_back_reads_ahead(long_line, monkeypatch):
    bucket, ids = long_line
    index = LazyIndex(bucket, "memory://")
    index.catch_up(["branches/main"])
    rounds = []
    from deltavc.lineage import backwards

    ahead = backwards.Backwards._read_ahead
    monkeypatch.setattr(backwards.Backwards, "_read_ahead", lambda self: rounds.append(1) or ahead(self))
    assert index.ancestor(ids[-1], 299) == ids[0]
    assert len(rounds) < 12
    rounds.clear()
    assert len(plan(index, ids[-1]).steps) == 150
    assert len(rounds) < 12


def test_a_wrong_guess_of_what_comes_next_costs_nothing_but_requests(long_line):
    bucket, ids = long_line
    side = samples.Writer(bucket, "branches/side")
    for place in range(20):
        side.move(ids[place])  # entries that are not where history was
    side.move(ids[-1])
    index = LazyIndex(bucket, "memory://")
    index.catch_up(["branches/side"])
    assert index.ancestor(ids[-1], 40) == ids[-41]
    for place in range(5, 15):
        bucket.delete(ref_entry_key("branches/side", place))
    assert index.ancestor(ids[-1], 40) == ids[-41]


@pytest.mark.servers
def test_who_may_only_read_the_bucket_checks_out(s3):
    url = f"{s3.new_bucket()}/run"
    state = {"x": states.random_bits("bfloat16", (300, 40))}
    with deltavc.init(url, storage_options=s3.storage_options) as repo, repo.writer() as writer:
        for step in range(4):
            state = states.stepped(state, step)
            writer.commit(state, step=step)
        repo.tag("v1")
    with deltavc.open(url, storage_options=s3.reader_options) as repo:
        for ref in ("main", "v1", "main~2", repo.resolve("main~1")):
            assert repo.checkout(ref).version == repo.resolve(ref)
        assert states.same(repo.checkout("v1"), state)
        live = {"x": repo.checkout("main~3")["x"].clone()}
        with contextlib.closing(repo.replica(live, at="main~3")) as replica:
            replica.stage("main").wait()
            replica.apply()
        assert states.same(live, state)


def test_to_check_out_writes_nothing(tmp_path):
    deltavc.init(tmp_path / "repo").close()
    store = faulty(tmp_path / "repo")
    with deltavc.open(tmp_path / "repo") as repo:
        made = repo.commit({"x": states.random_bits("float32", (4,))})
    with store.down(names=WRITES), deltavc.Repo(store, LazyIndex(store, store.url), "0") as repo:
        assert repo.checkout("main").version == made.id


def test_a_failing_store_is_told_as_such(tmp_path):
    deltavc.init(tmp_path / "repo", db="none").close()
    store = faulty(tmp_path / "repo")
    with deltavc.Repo(store, LazyIndex(store, store.url), "0") as repo:
        repo.commit({"x": states.random_bits("float32", (4,))})
        with store.down(names=READS), pytest.raises(deltavc.errors.StoreUnavailable):
            repo.checkout()
