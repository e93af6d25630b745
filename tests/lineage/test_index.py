import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from deltavc.errors import CorruptObject, MissingObject, UnknownRef, WrongDatabase
from deltavc.lineage import history as histories
from deltavc.lineage.index import Index
from deltavc.lineage.records import layout_key, ref_hint_key
from deltavc.store import open_store
from tests.lineage.samples import LAYOUT, Writer, contents, edge, file, open_index, version

AWKWARD = {
    "message": "NUL \0 backslash \\ \\0 \\\\0 emoji \N{PARTY POPPER}\n",
    "author": "a\\b\0",
    "metrics": {"loss": 0.5, "big": 1e20, "whole": 3.0, "n": 7, "nan": "NaN", "inf": "Infinity", "low": "-Infinity"},
    "meta": {"nested": [1, {"x": None}], "NUL\0": "\0", "float": 1e300, "odd \\": True},
    "source": {"format": "pt", "files": []},
    "step": -3,
}


def build(bucket):
    """A repository with everything in it; returns the commits in the order in which they were made."""
    main = Writer(bucket)
    weights = file(100)
    commits = [main.commit(step=0, files={"config.json": weights})]
    commits.append(main.commit(step=1, files={"config.json": weights, "rng": file(11)}, metrics={"loss": 1.5}))
    commits.append(main.commit(**AWKWARD))
    commits.append(main.commit(step=3, snapshot=True))
    side = Writer(bucket, "branches/side")
    side.move(commits[1].id, "branch")
    commits += [side.commit(step=step) for step in (2, 3)]
    commits.append(main.commit(merge=[commits[-1].id], step=4))
    main.move(commits[1].id, "rollback")
    commits.append(main.commit(step=2))
    tag = Writer(bucket, "tags/v1")
    tag.move(commits[3].id)
    gone = Writer(bucket, "branches/gone")
    gone.move(commits[4].id)
    gone.move(None, "deleted")
    return commits


def test_recording_and_catching_up_give_the_same_rows(bucket, new_index):
    recorded = new_index()
    main = Writer(bucket)
    commits = []
    for number in range(40):
        commits.append(
            main.commit(step=number, snapshot=number % 7 == 0, **({"files": {"f": file(5)}} if number % 3 else {}))
        )
        commits[-1].record(recorded)
    main.move(commits[9].id, "rollback")
    recorded.record([main.known])
    commits.append(main.commit(**AWKWARD))
    commits[-1].record(recorded)
    caught_up = new_index()
    caught_up.catch_up_all()
    assert contents(caught_up) == contents(recorded)


def test_versions_come_back_as_they_were_committed(bucket, index):
    commits = build(bucket)
    index.catch_up_all()
    for commit, found in zip(commits, index.versions([commit.id for commit in commits]), strict=True):
        assert found.id == found.record.id == commit.id
        assert found.record.body == commit.version.body
        assert found.num_lanes == LAYOUT.num_lanes
    assert index.version(commits[2].id).record.metrics == AWKWARD["metrics"]


def test_what_a_commit_added_is_known(bucket, index):
    commits = build(bucket)
    index.catch_up_all()
    first, second, _, both, *_ = index.versions([commit.id for commit in commits])
    assert first.stored_bytes == 50_000 + 100
    assert first.changed_lanes == 1007
    assert second.stored_bytes == 1000 + 11  # config.json was there before
    assert second.changed_lanes == 100
    assert both.stored_bytes == 51_000
    assert both.changed_lanes == 100
    assert [first.branch, index.version(commits[4].id).branch] == ["main", "side"]


def test_frames_of_older_packs_are_not_counted_as_added(bucket, index):
    main = Writer(bucket)
    first = main.commit()
    second = main.commit()
    shared = edge(None, second.id, nbytes=5, shared=first.edges[0].packs)
    bucket.put(shared.key, shared.body)
    index.catch_up_all()
    assert index.version(second.id).stored_bytes == 1005
    assert index.totals().num_packs == 3
    assert {item.id for item in index.edges_into(second.id)} == {shared.id, second.edges[0].id}
    assert shared in index.edges_into(second.id)


def test_a_database_left_behind_catches_up(bucket, new_index):
    behind, follows = new_index(), new_index()
    build(bucket)
    behind.catch_up_all()
    main = Writer(bucket)
    for step in range(600):  # more than one batch
        commit = main.commit(step=step)
        if step > 590:
            commit.record(follows)  # knows nothing of what came before: catches up by itself
    behind.catch_up()
    assert behind.head("branches/main") == main.known
    fresh = new_index()
    fresh.catch_up_all()
    follows.catch_up_all()
    assert contents(behind) == contents(fresh) == contents(follows)


def test_what_is_recorded_twice_is_there_once(bucket, index):
    commit = Writer(bucket).commit(step=1)
    commit.record(index)
    before = contents(index)
    commit.record(index)
    index.catch_up_all()
    assert contents(index) == before


def test_a_branch_whose_past_was_never_seen_brings_it_along(bucket, index):
    commits = build(bucket)
    index.catch_up(["tags/v1"])
    assert index.tags() == {"v1": commits[3].id}
    assert index.branches() == {}
    assert [found.id for found in index.log([commits[3].id])] == [commit.id for commit in commits[3::-1]]


def test_threads_and_databases_index_the_same_bucket_at_once(bucket, new_index, new_database):
    build(bucket)
    main = Writer(bucket)
    for step in range(30):
        main.commit(step=step)
    url = new_database()
    indexes = [new_index(url) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(Index.catch_up_all, indexes * 2))
    fresh = new_index()
    fresh.catch_up_all()
    assert contents(indexes[0]) == contents(fresh)


def test_processes_index_the_same_bucket_at_once(tmp_path, new_database):
    bucket = open_store(tmp_path / "bucket")
    bucket.prepare()
    build(bucket)
    index = open_index(new_database(), bucket)  # the children inherit its connections and must not use them
    index.branches()
    children = []
    for number in range(4):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                index.catch_up_all()
                writer = Writer(bucket, f"branches/child-{number}")
                for step in range(5):
                    writer.commit(step=step).record(index)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    fresh = open_index(new_database(), bucket)
    fresh.catch_up_all()
    assert contents(index) == contents(fresh)
    assert len(index.branches()) == 6
    fresh.engine.dispose()
    index.engine.dispose()


def test_refs_show_where_they_are_and_were(bucket, index):
    commits = build(bucket)
    index.catch_up_all()
    assert index.branches() == {"main": commits[-1].id, "side": commits[5].id}
    assert index.tags() == {"v1": commits[3].id}
    assert index.head("branches/gone").new is None
    assert index.head("branches/never") is None
    moves = index.reflog("branches/main")
    assert [move.new for move in moves[:3]] == [commits[-1].id, commits[1].id, commits[6].id]
    assert [move.why for move in moves[:2]] == ["commit", "rollback"]
    assert index.reflog("branches/main", 2) == moves[:2]


def test_totals_count_everything(bucket, index):
    empty = index.totals()
    assert (empty.num_versions, empty.pack_bytes, empty.file_bytes) == (0, 0, 0)
    commits = build(bucket)
    index.catch_up_all()
    totals = index.totals()
    assert totals.num_versions == len(commits)
    assert (totals.num_branches, totals.num_tags, totals.num_layouts) == (2, 1, 1)
    assert totals.num_edges == totals.num_packs == sum(len(commit.edges) for commit in commits)
    assert totals.num_snapshots == 2
    assert totals.file_bytes == 111
    assert totals.pack_bytes == sum(use.nbytes for commit in commits for item in commit.edges for use in item.packs)


def test_weights_are_found_by_their_fingerprint(bucket, index):
    main = Writer(bucket)
    first = main.commit()
    main.commit()
    again = main.commit(fingerprint=first.version.fingerprint)
    index.catch_up_all()
    assert index.with_fingerprint(first.version.fingerprint) == [again.id, first.id]
    assert index.with_fingerprint("0" * 64) == []
    assert index.layouts() == [LAYOUT.id]
    assert index.layout(LAYOUT.id) == LAYOUT
    assert index.layout("0" * 64) is None


@pytest.mark.parametrize("what", ["version", "layout", "edge"])
def test_damaged_and_lost_objects_are_named_and_nothing_is_indexed(bucket, index, what):
    main = Writer(bucket)
    main.commit()
    commit = main.commit()
    other = version()
    key, wrong = {
        "version": (commit.version.key, other.body),
        "layout": (layout_key(LAYOUT.id), LAYOUT.body.replace(b"float32", b"float16")),
        "edge": (commit.edges[0].key, edge(None, commit.id).body),
    }[what]
    good = bucket.get(key)
    for body in (b"", good[:-1], good + b" ", wrong):
        bucket.put(key, body)
        with pytest.raises(CorruptObject) as caught:
            index.catch_up_all()
        assert caught.value.key == key
    bucket.delete(key)
    if what != "edge":  # an edge may be dropped at any time
        with pytest.raises(MissingObject) as caught:
            index.catch_up_all()
        assert caught.value.key == key
    assert index.totals().num_versions == 0
    bucket.put(key, good)
    index.catch_up_all()
    assert index.totals().num_versions == 2


def test_a_lost_hint_does_not_matter(bucket, index):
    build(bucket)
    bucket.delete(ref_hint_key("branches/main"))
    index.catch_up_all()
    assert index.head("branches/main") == Writer(bucket).known


def test_a_database_belongs_to_one_repository(bucket, new_index, new_database):
    url = new_database()
    index = new_index(url)
    with pytest.raises(WrongDatabase) as caught:
        Index(index.engine, bucket, "another repository")
    assert (caught.value.found, caught.value.expected) == ("a repository", "another repository")


def test_log_is_newest_first_and_never_before_a_child(bucket, index, monkeypatch):
    monkeypatch.setattr(histories, "_PAGE", 50)
    source = random.Random(3)
    made, writer = [], Writer(bucket, "branches/0")
    for number in range(120):
        if number % 10 == 9:
            writer = Writer(bucket, f"branches/{number}")
            writer.move(source.choice(made).id)
        merge = [source.choice(made).id] if made and source.random() < 0.2 else []
        minute = source.randrange(60)  # clocks that disagree
        made.append(writer.commit(merge=merge, time=f"2026-01-02T03:{minute:02d}:00.000000Z"))
    index.catch_up_all()
    parents = {commit.id: commit.version.parents for commit in made}

    def reached(start, first_parent=False):
        found, stack = set(), [start]
        while stack:
            at = stack.pop()
            if at not in found:
                found.add(at)
                stack += parents[at][: 1 if first_parent else None]
        return found

    everything = [found.id for found in index.log(None)]
    assert sorted(everything) == sorted(parents)
    for start in source.sample(made, 20):
        ids = [found.id for found in index.log([start.id])]
        assert set(ids) == reached(start.id)
        assert ids == [version for version in everything if version in reached(start.id)]
        place = {version: number for number, version in enumerate(ids)}
        assert all(place[version] < place[parent] for version in ids for parent in parents[version])
        assert [found.id for found in index.log([start.id], 7)] == ids[:7]
        line = [found.id for found in index.log([start.id], first_parent=True)]
        assert set(line) == reached(start.id, first_parent=True)
        other = source.choice(made).id
        without = [found.id for found in index.log([start.id], exclude=[other])]
        assert without == [version for version in ids if version not in reached(other)]
    with pytest.raises(UnknownRef):
        next(index.log(["0" * 64]))


def test_ancestors_are_those_of_walking_step_by_step(bucket, index):
    main = Writer(bucket)
    line = [main.commit().id for _ in range(200)]
    side = Writer(bucket, "branches/side")
    side.move(line[70])
    branch = line[:71] + [side.commit().id for _ in range(60)]
    index.catch_up_all()
    for history in (line, branch):
        for back in range(len(history)):
            assert index.ancestor(history[-1], back) == history[-1 - back]
        assert index.ancestor(history[-1], len(history)) is None


def test_jumps_take_logarithmically_many_steps(bucket, index):
    from sqlalchemy import select

    from deltavc.lineage.database import reading
    from deltavc.lineage.tables import versions

    main = Writer(bucket)
    for _ in range(500):
        main.commit()
    index.catch_up_all()
    with reading(index.engine) as db:
        rows = {row.depth: row for row in db.execute(select(versions))}
    for target in range(500):
        depth, steps = 499, 0
        while depth > target:
            depth = rows[depth].jump_depth if rows[depth].jump_depth >= target else depth - 1
            steps += 1
        assert steps <= 3 * 9  # 3 log2 n, the bound of the structure


def test_a_memory_database_serves_many_threads(bucket):
    build(bucket)
    index = open_index("sqlite://", bucket)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: index.catch_up_all(), range(8)))
        assert len(set(pool.map(lambda _: len(list(index.log(None))), range(50)))) == 1
    index.engine.dispose()
