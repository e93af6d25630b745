"""gc: what anybody needs stays, what nobody needs goes, and at the first doubt everything stays."""

import contextlib
import itertools
from datetime import timedelta

import pytest
from sqlalchemy import event

import deltavc
from deltavc.errors import (
    CleanUpRefused,
    CorruptObject,
    GraceTooShort,
    MissingObject,
    StoreError,
    TooLate,
)
from deltavc.lineage.records import edge_key, version_key
from tests.faults import FaultyStore
from tests.upkeep.stores import NO_SNAPSHOTS, ClockedStore, Meanwhile, drop, grown, opened, same_as_committed, state_at

GARBAGE = [f"packs/{'0' * 2}/{'0' * 64}.pack", f"files/{'1' * 2}/{'1' * 64}-{'2' * 32}"]


@pytest.fixture
def store():
    return ClockedStore()


def litter(store):
    for key in GARBAGE:
        store.put(key, b"never named")


def collect(store, **told):
    """What a machine with an empty database collects."""
    with opened(store) as repo:
        return repo.gc(**told)


def everything_is_there(store):
    with opened(store) as fresh:
        versions = fresh.log(all=True)
        for version in versions:
            assert same_as_committed(fresh.checkout(version.id), version.step)
            for name in version.files:
                assert fresh.read_file(version.id, name) == b"%d" % version.step
        return len(versions)


def with_files(repo, steps, **told):
    with repo.writer(snapshots=NO_SNAPSHOTS) as writer:
        return [writer.commit(state_at(step), step=step, files={f"f{step}": b"%d" % step}, **told).id for step in steps]


def test_what_nobody_names_goes_when_it_is_older_than_the_grace(store):
    with opened(store) as repo:
        with_files(repo, range(3))
    before = store.keys()
    litter(store)
    store.wait(hours=23)
    young = collect(store)
    assert (young.num_packs, young.num_files, young.num_young) == (0, 0, 2)
    store.wait(hours=2)
    preview = collect(store, dry_run=True)
    assert set(GARBAGE) < store.keys()
    report = collect(store)
    assert (report.num_packs, report.num_files, report.nbytes) == (1, 1, 22)
    assert (report.num_kept, preview.nbytes) == (preview.num_kept, 22)
    assert store.keys() == before
    assert everything_is_there(store) == 3
    assert collect(store).nbytes == 0


def test_nothing_but_packs_and_files_is_ever_deleted(store):
    with opened(store) as repo:
        ids = grown(repo, 4)
        drop(store, *(edge for version in ids[1:3] for edge in repo.edges(version)))
        repo.rollback("main", ids[0], "back")
    for key in ("strange/thing", "layouts/00/x.json", "edges/x/y.json", "versions/zz/none.json", "refs/a/b"):
        store.put(key, b"?")
    before = store.keys()
    store.wait(days=100)
    with contextlib.suppress(CorruptObject, MissingObject):
        collect(store)
    assert all(key.startswith("packs/") for key in before - store.keys())


def test_packs_of_a_dropped_edge_stay_for_the_grace_by_the_time_of_the_drop(store):
    with opened(store) as repo:
        ids = grown(repo, 4, snapshots=(2,))
        old = repo.edges(ids[1])
        store.wait(days=10)
        drop(store, *old)
        packs = {use.key for edge in old for use in edge.packs}
        store.wait(hours=23)
        assert collect(store).num_packs == 0
        assert packs <= store.keys()
        store.wait(hours=2)
        assert collect(store).num_packs == len(packs)
        assert not packs & store.keys()
        assert same_as_committed(repo.checkout(), 3)


def test_a_pack_stays_as_long_as_one_edge_names_one_frame_of_it(store):
    def state(step):
        return {"same": state_at(0)["w"], "other": state_at(step)["b"]}

    with opened(store) as repo, repo.writer() as writer:
        first = writer.commit(state(0), snapshot=True)
        second = writer.commit(state(1), snapshot=True)
        old = repo.edges(first.id)
        shared = {use.key for edge in repo.edges(second.id) for use in edge.packs if use.frames is not None}
        assert shared
        drop(store, *old, *(edge for edge in repo.edges(second.id) if edge.base is not None))
        store.wait(days=3)
        collect(store)
        assert shared <= store.keys()
        assert repo.checkout(second.id)


def test_the_grace_of_the_settings_holds_and_cannot_be_undercut(store):
    litter(store)
    with opened(store) as repo:
        grown(repo, 2)
        for asked in ("23h", timedelta(hours=1), "0s"):
            with pytest.raises(GraceTooShort):
                repo.gc(older_than=asked)
        with pytest.raises(ValueError, match="length of time"):
            repo.gc(older_than="soon")
        store.wait(hours=2)
        repo.set_policy(deltavc.Policy(grace_seconds=3600))
        assert repo.gc(older_than="3h").num_packs == 0
        assert repo.gc().num_packs == 1
    assert everything_is_there(store) == 2


def test_what_a_commit_in_the_making_has_stored_is_left_alone(store):
    """Its edges are there, and its ref entry is not."""
    slow = Meanwhile(store)
    with opened(slow) as repo, repo.writer() as writer:
        writer.commit(state_at(0), step=0, files={"f0": b"0"})

        def clean_up():
            store.wait(hours=11)
            collect(store)

        slow.before("create", clean_up)
        writer.commit(state_at(1), step=1, snapshot=True, files={"f1": b"1"})
    assert everything_is_there(store) == 2


def test_what_a_stopped_writer_stored_goes_and_the_writer_does_not_publish_it(store):
    """Stopped between its packs and its edges, and woken when the packs are gone."""
    slow = Meanwhile(store)
    with opened(slow) as repo, repo.writer() as writer:
        writer.commit(state_at(0), step=0)
        packs = store.keys("packs/")

        def stopped():
            store.wait(hours=30)
            for key in store.keys("edges/") - edges:
                store.delete(key)  # as if it had not been sent yet
            collect(store)
            assert store.keys("packs/") == packs

        edges = store.keys("edges/")
        slow.before("now", stopped)
        with pytest.raises(TooLate):
            writer.commit(state_at(1), step=1)
        writer.commit(state_at(2), step=2)
    with opened(store) as fresh:
        assert [version.step for version in fresh.log()] == [2, 0]
    assert everything_is_there(store) == 2


def test_a_reader_in_the_middle_finds_its_packs_or_another_way(store):
    with opened(store) as repo, opened(store) as cleans:
        ids = grown(repo, 6, snapshots=(3,))
        snapshot = next(edge for edge in repo.edges(ids[3]) if edge.base is None)
        repo._index.drop([snapshot.id])
        long_way = [edge for version in ids[:3] for edge in repo.edges(version)]

        def clean_up():
            drop(store, *long_way)
            store.wait(hours=25)
            cleans.gc()

        slow = Meanwhile(store)
        with opened(slow) as reads:
            reads._index.catch_up_all()
            reads._index.drop([snapshot.id])
            slow.after("get", lambda: slow.before("get", clean_up))
            assert same_as_committed(reads.checkout(), 5)


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_run_that_dies_anywhere_leaves_a_whole_repository(store, how):
    with opened(store) as repo:
        with_files(repo, range(3))
    for nth in itertools.count(1):
        litter(store)
        store.wait(hours=25)
        faulty = FaultyStore(store)
        with opened(faulty) as dies, faulty.failing(nth, how) as fired, contextlib.suppress(StoreError):
            dies.gc()
        assert everything_is_there(store) == 3
        if not fired:
            break
    assert nth > 10
    assert not set(GARBAGE) & store.keys()


def test_two_runs_at_once_delete_the_same(store):
    with opened(store) as repo:
        with_files(repo, range(3))
    before = store.keys()
    litter(store)
    store.wait(hours=25)
    for name in ("list", "get", "delete", "now"):
        slow = Meanwhile(store)
        slow.after(name, lambda: collect(store))
        with opened(slow) as repo:
            repo.gc()
        assert store.keys() == before
        litter(store)
        store.wait(hours=25)


class Lying(FaultyStore):
    """Leaves keys that `hides` picks out of every `nth` listing, or of all."""

    def __init__(self, store, hides, nth=1):
        super().__init__(store)
        self._hides, self._nth, self._count = hides, nth, itertools.count(1)

    def list(self, prefix=""):
        found = list(self._store.list(prefix))
        if any(self._hides(item.key) for item in found) and next(self._count) % self._nth == 0:
            found = [item for item in found if not self._hides(item.key)]
        return iter(found)


@pytest.mark.parametrize("prefix", ["edges/", "versions/"])
@pytest.mark.parametrize("nth", [1, 2], ids=["always", "sometimes"])
def test_a_listing_that_hides_what_is_there_ends_it(store, prefix, nth):
    with opened(store) as repo:
        with_files(repo, range(3))
        repo.resolve("main")
        litter(store)
        store.wait(hours=25)
        hidden = sorted(store.keys(prefix))[1]
        repo._store = Lying(store, lambda key: key == hidden, nth)
        before = store.keys()
        with pytest.raises((CleanUpRefused, MissingObject)):
            repo.gc()
        assert store.keys() == before


def test_a_listing_of_drops_that_hides_some_keeps_more(store):
    with opened(store) as repo:
        ids = grown(repo, 4, snapshots=(2,))
        drop(store, *repo.edges(ids[1]))
    store.wait(hours=25)
    for nth, kind in ((1, None), (2, CleanUpRefused)):
        before = store.keys()
        refused = pytest.raises(kind) if kind else contextlib.nullcontext()
        with opened(Lying(store, lambda key: key.startswith("drops/"), nth)) as repo, refused:
            repo.gc()
        assert store.keys() == before


def test_a_listing_that_fails_ends_it(store):
    with opened(store) as repo:
        with_files(repo, range(3))
    litter(store)
    store.wait(hours=25)
    before = store.keys()
    for prefix in ("packs/", "files/", "edges/", "drops/", "versions/"):
        faulty = FaultyStore(store)
        down = faulty.down(names=("list",), when=prefix.__eq__)
        with opened(faulty) as repo, down, pytest.raises(StoreError):
            repo.gc()
        assert store.keys() == before


DAMAGE = {
    "a pack that is needed is gone": lambda store, repo: store.delete(repo.edges()[0].packs[0].key),
    "an edge is gone": lambda store, repo: store.delete(repo.edges()[0].key),
    "an edge is damaged": lambda store, repo: store.put(edge_key("0" * 64, "1" * 64), b"{}"),
    "a version is gone": lambda store, repo: store.delete(version_key(repo.resolve("main~1"))),
    "a version is damaged": lambda store, repo: store.put(version_key("0" * 64), b"{}"),
    "the way to a branch was dropped": lambda store, repo: drop(store, *repo.edges("main~1"), why="damaged"),
    "the settings are damaged": lambda store, repo: damage_settings(store, repo),
}


def damage_settings(store, repo):
    repo.set_policy(deltavc.Policy(keep_last=1))
    store.put(repo.policy().key, b"{}")


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("fresh", [False, True], ids=["same-database", "empty-database"])
def test_at_the_first_sign_of_damage_nothing_is_deleted(store, what, fresh):
    with opened(store) as repo:
        with_files(repo, range(3))
        DAMAGE[what](store, repo)
        litter(store)
        store.wait(hours=25)
        before = store.keys()
        cleaner = opened(store) if fresh or "settings" in what else contextlib.nullcontext(repo)
        with cleaner as cleans, pytest.raises((CleanUpRefused, CorruptObject)):
            cleans.gc()
        assert store.keys() == before


def test_a_clock_that_went_back_ends_it(store):
    with opened(store) as repo:
        grown(repo, 2)
    litter(store)
    store.wait(hours=40)
    with opened(store) as repo:
        grown(repo, 1, first=2)
    store.wait(hours=-10)
    with pytest.raises(CleanUpRefused, match="was stored at"):
        collect(store)
    assert set(GARBAGE) < store.keys()


def test_a_database_that_lost_or_garbled_rows_changes_nothing(store):
    with opened(store) as repo:
        ids = with_files(repo, range(4))
        litter(store)
        store.wait(hours=25)
        repo._index.drop([edge.id for edge in repo.edges(ids[1])])
        repo.gc()
    assert everything_is_there(store) == 4
    assert not set(GARBAGE) & store.keys()


def test_a_tag_that_was_cut_off_by_mistake_is_saved_before_anything_is_deleted(store):
    with opened(store) as repo:
        ids = grown(repo, 6, snapshots=(4,))
        repo.tag("v1", ids[2])
        drop(store, *repo.edges(ids[2]), *repo.edges(ids[1]))  # by a run that was killed
        store.wait(hours=25)
        before = store.keys()
        with pytest.raises(CleanUpRefused, match="deltavc expire"):
            collect(store)
        assert store.keys() == before
    with opened(store) as repo:
        repo.expire()
        repo.gc()
        assert same_as_committed(repo.checkout("v1"), 2)


def test_a_tag_at_a_version_that_had_no_weights_is_no_obstacle(store):
    with opened(store) as repo:
        ids = grown(repo, 6, snapshots=(4,))
        drop(store, *repo.edges(ids[2]), *repo.edges(ids[1]))
        store.wait(hours=25)
        repo.gc()
        repo.tag("v1", ids[2])
        litter(store)
        store.wait(hours=25)
        assert repo.gc().num_packs == 1


@contextlib.contextmanager
def committing_before(engine, nth, commit):
    """Let somebody else commit right before the nth transaction; yields those that were tried."""
    tried = []

    def listen(connection, cursor, statement, *_):
        if statement.startswith("BEGIN"):
            tried.append(statement)
            if len(tried) == nth:
                commit()

    event.listen(engine, "before_cursor_execute", listen)
    try:
        yield tried
    finally:
        event.remove(engine, "before_cursor_execute", listen)


@pytest.mark.parametrize("what", ["expire", "gc"])
def test_a_commit_to_the_same_database_at_any_moment_does_not_end_it(store, tmp_path, what):
    with opened(store) as repo:
        grown(repo, 4)
        repo.set_policy(deltavc.Policy(keep_last=2))
    store.wait(hours=25)
    database = f"sqlite:///{tmp_path}/shared.db"
    with opened(store, database) as repo, opened(store, database) as other:
        for nth in itertools.count(1):

            def commit(step=nth):
                other.commit(state_at(step), step=step, files={"f": b"%d" % step})
                other.tag(f"t{step}")

            with committing_before(repo._index.engine, nth, commit) as tried:
                getattr(repo, what)()
            if len(tried) < nth:
                break
        assert nth > 9
    with opened(store) as fresh:
        for name in (*fresh.branches(), *fresh.tags()):
            assert same_as_committed(fresh.checkout(name), fresh.version(name).step)
