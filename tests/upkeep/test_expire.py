"""Expire: what the policy keeps can be checked out to the bit, whatever else happens at the same time."""

import contextlib
import itertools

import pytest

import deltavc
from deltavc.errors import CleanUpRefused, MissingObject, NoPath, StoreError, TooLate
from deltavc.lineage.records import drop_key
from deltavc.lineage.settings import Policy
from deltavc.upkeep.expire import expire
from tests.faults import FaultyStore
from tests.upkeep.stores import ClockedStore, Meanwhile, drop, grown, opened, same_as_committed, state_at


@pytest.fixture
def store():
    return ClockedStore()


@pytest.fixture
def repo(store):
    with opened(store) as repo:
        yield repo


def set_policy(repo, **rules):
    repo._settings.set(Policy(**rules), "me", "why")


def run(repo, **told):
    return expire(repo._access(1 << 26), repo._settings, **told)


def with_weights(repo):
    """Steps of the versions that can be checked out; each holds what was committed."""
    found = []
    for version in repo.log(all=True):
        try:
            assert same_as_committed(repo.checkout(version.id), version.step)
            found.append(version.step)
        except NoPath:
            pass
    return sorted(found)


def seen_by_a_stranger(store):
    with opened(store) as fresh:
        return with_weights(fresh)


RULES = {
    "last": ({"keep_last": 3}, {9, 10, 11}),
    "every": ({"keep_every": 4}, {0, 4, 8, 11}),
    "best": ({"keep_best": {"reward": 2}}, {3, 7, 11}),
    "worst-is-best": ({"keep_best": {"loss": 2}}, {2, 6, 11}),
    "union": ({"keep_last": 2, "keep_every": 5}, {0, 5, 10, 11}),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("snapshots", [(), (4, 8)], ids=["one-snapshot", "three"])
def test_what_a_rule_keeps_stays_and_the_rest_goes(store, repo, name, snapshots):
    rules, expected = RULES[name]
    with repo.writer(snapshots=deltavc.SnapshotPolicy(max_ratio=1e9)) as writer:
        for step in range(12):
            reward = {3: 5.0, 7: 4.0}.get(step, float("inf") if step == 5 else -step)
            metrics = {"reward": reward, "loss": -reward if step not in (2, 6) else -100}
            writer.commit(state_at(step), step=step, metrics=metrics, snapshot=step in snapshots)
    set_policy(repo, **rules)
    preview = run(repo, dry_run=True)
    assert with_weights(repo) == list(range(12))
    report = run(repo)
    kept = set(with_weights(repo))
    assert expected <= kept
    assert kept <= expected | {0, *snapshots}  # a snapshot on whose way something kept lies stays
    assert len(report.lost) == 12 - len(kept)
    assert (preview.kept, preview.lost) == (report.kept, report.lost)
    assert seen_by_a_stranger(store) == sorted(kept)
    assert len(repo.log()) == 12
    again = run(repo)
    assert (again.num_dropped, again.num_composed, again.lost) == (0, 0, [])


def test_a_policy_without_rules_keeps_everything(store, repo):
    grown(repo, 5, snapshots=(2,))
    before = store.keys()
    report = run(repo)
    assert (report.num_dropped, report.num_composed, report.lost) == (0, 0, [])
    assert store.keys() == before


def test_other_branches_tags_and_where_a_branch_was_lately_are_kept(store, repo):
    ids = grown(repo, 8)
    repo.tag("v1", ids[2])
    repo.branch("side", ids[4])
    repo.rollback("main", ids[5], "no good")
    repo.tag("gone", ids[3])
    repo.delete_tag("gone")
    set_policy(repo, keep_last=1)
    run(repo)
    assert {2, 3, 4, 5, 7} <= set(with_weights(repo)) <= {0, 2, 3, 4, 5, 7}
    store.wait(hours=25)
    with opened(store) as later:
        set_policy(later, keep_last=1, keep_tagged=False)
        run(later)
        assert {4, 5} <= set(with_weights(later)) <= {0, 4, 5}


def test_versions_of_the_last_days_are_kept_by_the_clock_of_the_store(store, repo):
    grown(repo, 4)
    set_policy(repo, keep_days=2)
    store.wait(hours=47)
    assert run(repo).lost == []
    store.wait(hours=2)
    with opened(store) as later:
        run(later)
    assert set(seen_by_a_stranger(store)) <= {0, 3}


def test_ways_between_kept_versions_stay_so_that_a_replica_can_move_along_them(store, repo):
    ids = grown(repo, 8, snapshots=(6,))
    set_policy(repo, keep_last=3)
    run(repo)
    assert [edge.base for edge in repo.edges(ids[6]) if edge.base] == [ids[5]]


def test_a_writer_goes_on_across_an_expiry(store, repo):
    with opened(store) as trains, trains.writer() as writer:
        for step in range(6):
            writer.commit(state_at(step), step=step, snapshot=step == 3)
        set_policy(repo, keep_last=2)
        run(repo)
        for step in range(6, 9):
            writer.commit(state_at(step), step=step, snapshot=step == 7)
        run(repo)
        writer.rollback("main~1", "back")
        writer.commit(state_at(20), step=20)
    assert seen_by_a_stranger(store)[-1] == 20


def test_what_was_dropped_says_so_and_cannot_be_gone_back_to(store, repo):
    ids = grown(repo, 6)
    set_policy(repo, keep_last=1)
    lost = run(repo).lost
    assert set(lost) <= set(ids[:5])
    with opened(store) as other:
        for again in (repo, other):
            with pytest.raises(NoPath):
                again.checkout(lost[0])
            with pytest.raises(NoPath):
                again.rollback("main", lost[0], "no way")
            with pytest.raises(NoPath):
                again.branch("b", lost[0])
        other.tag("remembered", lost[0])  # a mark in the lineage
    assert repo.resolve("main") == ids[5]


def test_damage_on_the_way_to_what_is_kept_drops_nothing(store, repo):
    grown(repo, 6)
    store.delete(repo.edges("main~2")[0].packs[0].key)
    set_policy(repo, keep_last=1)
    with pytest.raises(MissingObject):
        run(repo)
    assert not store.keys("drops/")


def test_nothing_is_dropped_while_a_branch_has_no_weights(store, repo):
    ids = grown(repo, 6)
    cut = repo.edges(ids[2])[0]
    set_policy(repo, keep_last=1)
    drop(store, cut, why="damaged")
    for dry_run in (True, False):
        with pytest.raises(CleanUpRefused):
            run(repo, dry_run=dry_run)
    store.delete(drop_key(cut.target, cut.id))
    assert same_as_committed(repo.checkout(), 5)


def test_edges_towards_what_damage_cut_off_stay(store, repo):
    ids = grown(repo, 6, snapshots=(5,))
    set_policy(repo, keep_last=2)
    drop(store, repo.edges(ids[2])[0], why="damaged")
    assert run(repo).without == [ids[4]]
    assert [edge.base for edge in repo.edges(ids[4])] == [ids[3]]
    assert [edge.base for edge in repo.edges(ids[3])] == [ids[2]]


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_run_that_dies_at_any_write_has_lost_nothing_kept(store, repo, how):
    grown(repo, 7, snapshots=(3,))
    set_policy(repo, keep_every=2)
    for nth in itertools.count(1):
        faulty = FaultyStore(store)
        with opened(faulty) as dies, faulty.failing(nth, how, ("put", "create")) as fired:
            with contextlib.suppress(StoreError):
                run(dies)
            if not fired:
                break
        assert {0, 2, 4, 6} <= set(seen_by_a_stranger(store))
        with opened(store) as fresh:
            assert fresh.fsck().ok  # half dropped is no damage
    assert nth > 3
    assert set(seen_by_a_stranger(store)) <= {0, 2, 3, 4, 6}


MOVES = {
    "branch": lambda repo, version: repo.branch("new", version),
    "tag": lambda repo, version: repo.tag("new", version),
    "rollback": lambda repo, version: repo.rollback("main", version, "back"),
    "commit": lambda repo, version: repo.commit(state_at(30), "new", step=30, parents=[version], snapshot=False),
    "writer": lambda repo, version: repo.writer().rollback(version, "back"),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("moment", ["before-drops", "between-drops", "after-drops"])
def test_a_ref_that_is_made_while_its_version_is_dropped_is_never_left_without_weights(store, repo, move, moment):
    ids = grown(repo, 6)
    set_policy(repo, keep_last=1)
    slow = Meanwhile(store)
    said = []

    def moves():
        try:
            with opened(store) as other:
                other._index.catch_up_all()
                other._index.record([], edges=all_edges)
                MOVES[move](other, ids[2])
        except NoPath as error:
            said.append(error)

    all_edges = [edge for version in ids for edge in repo.edges(version)]
    with opened(slow) as expires:
        expires._index.catch_up_all()
        if moment == "before-drops":
            slow.before("create", moves)
        elif moment == "between-drops":
            slow.after("create", moves)
        run(expires)
    if moment == "after-drops":
        moves()
        assert said
    with opened(store) as fresh:
        for name in (*fresh.branches(), *fresh.tags()):
            version = fresh.version(name)
            assert same_as_committed(fresh.checkout(name), version.step)


@pytest.mark.parametrize("move", MOVES)
def test_weights_that_are_dropped_while_a_ref_is_made_are_noticed_or_made_up_for(store, repo, move):
    """The drops, and the look after them, come between the mover's look and its entry."""
    ids = grown(repo, 6)
    set_policy(repo, keep_last=1)
    slow = Meanwhile(store)
    with opened(slow) as other:
        other._index.catch_up_all()
        slow.before("create", lambda: run(repo))
        with pytest.raises(NoPath):
            MOVES[move](other, ids[2])
    with opened(store) as fresh:
        for name in (*fresh.branches(), *fresh.tags()):
            assert same_as_committed(fresh.checkout(name), 5)


def test_two_expiries_at_once_lose_nothing_that_either_keeps(store, repo):
    grown(repo, 8, snapshots=(3,))
    set_policy(repo, keep_every=2)
    slow = Meanwhile(store)
    with opened(slow) as one, opened(store) as other:
        slow.before("create", lambda: run(other))
        run(one)
    assert {0, 2, 4, 6, 7} <= set(seen_by_a_stranger(store))


def test_edges_that_were_dropped_by_two_from_different_views_are_made_up_for(store, repo):
    """Each of two took a way to be the one that stays, and dropped the other's."""
    ids = grown(repo, 6, snapshots=(4,))
    set_policy(repo, keep_last=1)
    slow = Meanwhile(store)
    short = [edge for edge in repo.edges(ids[4]) if edge.base is None]
    with opened(slow) as one:
        slow.after("create", lambda: drop(store, *short))
        run(one)
    assert 5 in seen_by_a_stranger(store)


def test_what_a_killed_run_dropped_too_much_the_next_one_makes_up_for(store, repo):
    ids = grown(repo, 6)
    set_policy(repo, keep_last=1)
    drop(store, *(edge for version in ids[:4] for edge in repo.edges(version)))
    with opened(store) as fresh, pytest.raises(NoPath):
        fresh.checkout()
    run(repo)
    assert 5 in seen_by_a_stranger(store)


def test_commits_that_never_happened_are_dropped_once_they_cannot_happen_any_more(store, repo):
    grown(repo, 2)
    faulty = FaultyStore(store)
    with opened(faulty) as dies, dies.writer() as writer:
        with faulty.down("before", ("create",)):
            assert writer.commit_async(state_at(9), snapshot=False).exception() is not None
        store_of_it = store.keys("edges/")
        set_policy(repo, grace_seconds=60)
        store.wait(hours=23)
        assert run(repo).num_uncommitted == 0  # a day was the grace when it began
        store.wait(hours=2)
        assert run(repo, dry_run=True).num_uncommitted == 1
        assert not store.keys("drops/")
        assert run(repo).num_uncommitted == 1
        assert run(repo).num_uncommitted == 0
        assert len(store.keys("drops/")) == 1 < len(store_of_it)
        writer.commit(state_at(10), step=10)
    assert seen_by_a_stranger(store) == [0, 1, 10]


def test_a_version_says_whether_its_weights_are_kept(store, repo):
    grown(repo, 6)
    assert all(version.weights for version in repo.log())
    set_policy(repo, keep_last=2)
    lost = run(repo).lost
    with opened(store) as fresh:
        for again in (repo, fresh):
            assert {version.id for version in again.log() if not version.weights} == set(lost) != set()
            assert again.version(lost[0]).as_json()["weights"] is False


@pytest.mark.parametrize("move", MOVES)
def test_a_move_that_landed_is_not_told_as_failed_because_it_could_not_be_looked_after(store, repo, move, caplog):
    ids = grown(repo, 4)
    faulty = FaultyStore(store)
    with opened(faulty) as other:
        other._index.catch_up_all()
        with faulty.down("before", ("list",), when=lambda key: key.startswith("drops/")):
            MOVES[move](other, ids[2])
    assert "could not be looked at" in caplog.text
    with opened(store) as fresh:
        assert {fresh.resolve(name) for name in (*fresh.branches(), *fresh.tags())} - {ids[3]}


@pytest.mark.parametrize("hours", [0, 25])
@pytest.mark.parametrize("call", ["put", "get", "now"])
def test_compacting_beside_clean_up_leaves_no_edge_without_its_packs(store, repo, call, hours):
    ids = grown(repo, 24)
    set_policy(repo, keep_every=5)
    slow = Meanwhile(store)

    def clean_up():
        with opened(store) as other:
            run(other)
            store.wait(hours=hours)
        with opened(store) as other:
            other.gc()

    with opened(slow) as compacts:
        compacts._index.catch_up_all()
        slow.before(call, lambda: slow.before(call, clean_up))
        with contextlib.suppress(TooLate, NoPath, MissingObject):
            compacts.compact(deltavc.Bounds(max_edges=4, span=3))
    assert {0, 5, 10, 15, 20, 23} <= set(seen_by_a_stranger(store))
    with opened(store) as fresh:
        for version in ids:
            for edge in fresh.edges(version):
                assert all(store.stat(use.key) for use in edge.packs)
