"""Ranks move together or not at all: bit for bit, whoever fails, is late or dies, wherever he is."""

import os
import random
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist

import deltavc
from deltavc.errors import (
    BadState,
    CopiesDiffer,
    ForeignWrite,
    GroupBroken,
    HookFailed,
    LayoutMismatch,
    PeerFailed,
    ReplicaUnusable,
    StagingTooSmall,
    WrongWeights,
)
from deltavc.ranks.council import Call
from deltavc.ranks.exchange import Exchange
from deltavc.replica import group as groups
from tests.replica.ranks import DIED, Rank, ends_of, fresh, held_by, in_ranks, reading_all_the_time
from tests.replica.samples import line_of, small_state
from tests.states import copied, same, stepped

SIZE = 3


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    """A repository with a line of four versions, and their states by id."""
    with line_of(tmp_path_factory.mktemp("group") / "repo", 4) as (repo, versions):
        yield repo.url, versions


@pytest.fixture(scope="module")
def branches(tmp_path_factory):
    """A repository with versions on many branches, by codecs of all kinds, and their states by id."""
    pick = random.Random(5)
    with deltavc.init(tmp_path_factory.mktemp("group") / "repo") as repo:
        state = small_state()
        versions = {repo.commit(state).id: copied(state)}
        for number in range(10):
            base = pick.choice(list(versions))
            repo.branch(f"b{number}", base)
            state = stepped(versions[base], number + 1, pick.choice((0.001, 0.02, 0.9)))
            codec = pick.choice([None, "xor-zstd", "planes", "raw"])
            versions[repo.commit(state, f"b{number}", codec=codec, snapshot=number == 5).id] = copied(state)
        yield repo.url, versions


# --- moving ---


def walk(rank, size, url, versions):
    pick = random.Random(7)
    with Rank(rank, size, url, versions) as (group, here):
        expected = [group.version]
        for _ in range(25):
            target = pick.choice(list(versions))
            if pick.random() < 0.3:
                group.stage(pick.choice(list(versions)))  # and on from there
            applied = group.move(target if rank == 0 else "what rank 0 says")
            assert applied.version == group.version == target
            assert here.is_at(target)
            expected.append(target)
        group.verify()
        assert [span.version for span in group.history] == expected
        assert here.told == expected[1:]
    return expected


def test_a_random_walk_is_exact_on_all_ranks_after_every_move(branches):
    first, *others = in_ranks(4, walk, 4, *branches)
    assert all(other == first for other in others)


def read_and_move(rank, url, versions):
    with Rank(rank, SIZE, url, versions) as (group, _), reading_all_the_time(group) as seen:
        for version in [*versions, *versions]:
            group.move(version)
            time.sleep(0.01 * rank)
    return seen


def test_no_rank_serves_a_version_after_another_serves_the_next(line):
    url, versions = line
    order = [*versions, *versions]
    seen = in_ranks(SIZE, read_and_move, url, versions)
    # One after the other, on all ranks: sorted by time, the versions change as often as they were moved to.
    times = sorted((when, version) for each in seen for version, when in each)
    runs = [version for place, (_, version) in enumerate(times) if not place or times[place - 1][1] != version]
    assert len(runs) <= len(order)
    assert all(len(each) > len(order) for each in seen)


# --- what is held ---


def copy_differs(rank, here):
    if rank == 1:
        here.live["norm"].view(torch.int32)[3] ^= 1


def shard_differs(rank, here):
    if rank == 1:
        here.live["embed_rows"].view(torch.int16)[3] ^= 1


def shards_overlap(rank, here):
    rows = {0: slice(0, 100), 1: slice(99, 200), 2: slice(200, 300)}[rank]
    here.live["embed_rows"] = here.versions[next(iter(here.versions))]["embed"][rows].clone()
    here.bindings["embed"] = deltavc.Shard(here.live["embed_rows"], (300, 64), (rows.start, 0))


def nobody_holds_one(rank, here):
    here.live.pop("scale", None)


def nobody_holds_a_third(rank, here):
    if rank == 1:
        del here.live["embed_rows"], here.bindings["embed"]


def one_is_not_bound(rank, here):
    if rank == 1:
        here.live["stray"] = torch.zeros(3)


SPOILT = [copy_differs, shard_differs, shards_overlap, nobody_holds_one, nobody_holds_a_third, one_is_not_bound]


def openings(rank, url, versions):
    """How opening a group ends, one time after another, when something is wrong; and that it does when nothing is."""
    errors = {}
    for spoil in SPOILT:
        here = Rank(rank, SIZE, url, versions)
        spoil(rank, here)
        errors[spoil.__name__] = ends_of(here.__enter__)
    with Rank(rank, SIZE, url, versions) as (group, _):
        group.move("main")
    return errors


def test_what_is_not_a_version_together_is_refused_with_the_same_words_everywhere(line):
    outcomes = in_ranks(SIZE, openings, *line)
    for errors in outcomes:
        copies = errors["copy_differs"]
        assert isinstance(copies, CopiesDiffer)
        assert (copies.tensor, copies.ranks) == ("norm", ((0, 2), (1,)))
        assert isinstance(errors["shard_differs"], WrongWeights)
        assert errors["shard_differs"].tensors == ("embed",)
        for spoil, tensor, words in [
            ("shards_overlap", "embed", "held by rank 0 and rank 1 in boxes that overlap"),
            ("nobody_holds_one", "scale", "no rank holds it"),
            ("nobody_holds_a_third", "embed", "6400 of 19200 lanes that no rank holds"),
        ]:
            assert isinstance(errors[spoil], LayoutMismatch)
            assert errors[spoil].tensor == tensor
            assert words in str(errors[spoil])
    first, second, third = (errors["one_is_not_bound"] for errors in outcomes)
    assert isinstance(second, LayoutMismatch)
    for error in (first, third):
        assert (error.kind, error.rank, error.failure) == (PeerFailed.kind, 1, LayoutMismatch.kind)


def ignoring(rank, url, versions):
    here = Rank(rank, SIZE, url, versions, ignore=["scale"] if rank == 0 else [])
    here.live.pop("scale", None)
    with here as (group, _):
        for version in versions:
            group.move(version)
            want, _ = held_by(rank, SIZE, versions[version])
            want.pop("scale", None)
            assert same(here.live, want)
        group.verify()
    return group.version


def test_what_one_rank_ignores_need_not_be_held(line):
    assert len(set(in_ranks(SIZE, ignoring, *line))) == 1


def pipeline(rank, url, versions):
    state = versions[next(iter(versions))]
    names = {0: ["embed", "norm"], 1: ["weight"], 2: ["weight", "norm", "scale"]}[rank]
    live = {name: state[name].clone() for name in names}
    with deltavc.open(url, db="sqlite://") as repo, repo.replica_group(live, next(iter(versions))) as group:
        group.move("main")
        return same(live, {name: versions[group.version][name] for name in names})


def test_ranks_may_hold_whole_tensors_some_of_them_twice(line):
    assert in_ranks(SIZE, pipeline, *line) == [True] * SIZE


# --- failing ---


def foreign_write(rank, url, versions):
    first, *_, last = versions
    with Rank(rank, SIZE, url, versions) as (group, here):
        group.stage(last).wait()
        if rank == 1:
            here.live["norm"].fill_(1.0)
        error = ends_of(group.apply)
        state = group.state
        if rank != 1:
            assert here.is_at(first)
        again = ends_of(group.move, last)
        if rank == 1:
            here.live["norm"].copy_(versions[first]["norm"])
        group.verify()
        group.move(last)
        assert here.is_at(last)
        return error, state, again


def test_a_foreign_write_on_one_rank_keeps_all_where_they_are_until_it_is_mended(line):
    first, second, third = in_ranks(SIZE, foreign_write, *line)
    assert isinstance(second[0], ForeignWrite)
    assert isinstance(second[2], ReplicaUnusable)
    assert second[1] == "unusable"
    for error, state, again in (first, third):
        assert (error.rank, error.failure, state) == (1, "foreign_write", "serving")
        assert (again.rank, again.failure) == (1, "replica_unusable")


def rejoin(rank, url, versions):
    first, *_, last = versions
    with Rank(rank, SIZE, url, versions) as (group, here):
        if rank == 1:
            here.live["norm"].fill_(1.0)
        ended = [getattr(ends_of(group.verify), "kind", None)]
        group.move(first, allow_long_pause=True)
        assert here.is_at(first)
        group.move(last)
        return [*ended, *here.report()[:1]]


def test_an_unusable_rank_comes_back_by_a_long_move_of_all(line):
    url, versions = line
    last = list(versions)[-1]
    assert in_ranks(SIZE, rejoin, url, versions) == [
        ["peer_failed", last],
        ["wrong_weights", last],
        ["peer_failed", last],
    ]


def small_arena(rank, url, versions):
    first, *_, last = versions
    with Rank(rank, SIZE, url, versions, staging_bytes=64 if rank == 1 else None) as (group, here):
        error = ends_of(group.move, last)
        assert here.is_at(first)
        group.move(last, allow_long_pause=True)
        assert here.is_at(last)
        return error


def test_a_change_too_large_for_one_rank_is_refused_or_moved_slowly_by_all(line):
    first, second, third = in_ranks(SIZE, small_arena, *line)
    assert isinstance(second, StagingTooSmall)
    assert first.failure == third.failure == "staging_too_small"


def hook_fails(rank, url, versions):
    last = list(versions)[-1]
    with Rank(rank, SIZE, url, versions) as (group, here):

        def hook(applied):
            here.told.append(applied.version)
            if rank == 1 and applied.version == last:
                raise RuntimeError("no")

        here.hook = hook
        return here.report(ends_of(group.move, last)), here.told


def test_a_hook_that_fails_on_one_rank_takes_all_back_and_runs_again_for_the_old_version(line):
    url, versions = line
    first, *_, last = versions
    for rank, ((served, kind, _), told) in enumerate(in_ranks(SIZE, hook_fails, url, versions)):
        assert (served, told) == (first, [last, first])
        assert kind == (HookFailed.kind if rank == 1 else PeerFailed.kind)


def nothing_to_go_to(rank, url, versions):
    with Rank(rank, SIZE, url, versions) as (group, _):
        errors = [ends_of(group.move, "no such branch"), ends_of(group.apply)]
        group.move("main")
        return [getattr(error, "failure", error.kind) for error in errors]


def test_errors_that_all_ranks_meet_leave_them_in_step(line):
    assert in_ranks(SIZE, nothing_to_go_to, *line) == [["unknown_ref", "nothing_staged"]] * SIZE


def stuck_reader(rank, url, versions):
    last = list(versions)[-1]
    with Rank(rank, SIZE, url, versions, timeout=1.0) as (group, here):
        group.stage(last).wait()
        stop, inside = threading.Event(), threading.Event()

        def read():
            with group.reading():
                inside.set()
                stop.wait()

        reader = threading.Thread(target=read)
        if rank == 1:
            reader.start()
            inside.wait()
        error = ends_of(group.apply)
        stop.set()
        found = here.report(error)
        group.move(last)
        return found, here.report()


@pytest.mark.long
def test_readers_that_do_not_leave_stop_a_move_of_all(line):
    url, versions = line
    first, *_, last = versions
    for (served, kind, _), after in in_ranks(SIZE, stuck_reader, url, versions):
        assert served == first
        assert kind in ("TimeoutError", "group_broken", "peer_failed")
        assert after[0] == last


def two_groups(rank, url, versions):
    first, *_, last = versions
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    half, place = divmod(rank, 2)
    live, bindings = held_by(place, 2, versions[first])
    with (
        deltavc.open(url, db="sqlite://") as repo,
        repo.replica_group(live, first, bindings=bindings, group=pairs[half]) as group,
    ):
        if half:
            group.move(last)
        assert (group.rank, group.size) == (place, 2)
        assert same(live, held_by(place, 2, versions[group.version])[0])
        return group.version


def test_groups_of_one_job_go_their_own_ways(line):
    url, versions = line
    first, *_, last = versions
    assert in_ranks(4, two_groups, url, versions) == [first, first, last, last]


def different_calls(rank, url, versions):
    with Rank(rank, SIZE, url, versions) as (group, _):
        error = ends_of(group.verify if rank == 1 else group.apply)
        group.move("main")
        return str(error)


def test_ranks_that_make_different_calls_are_told(line):
    assert all(
        "where another rank called" in words or "nothing is staged" in words
        for words in in_ranks(SIZE, different_calls, *line)
    )


def alone(rank, url, versions):
    state = versions[next(iter(versions))]
    live = copied(state)
    with deltavc.open(url, db="sqlite://") as repo, repo.replica_group(live, next(iter(versions))) as group:
        group.move("main")
        return group.version


def test_a_group_of_one_rank_is_a_replica(line):
    assert in_ranks(1, alone, *line) == [list(line[1])[-1]]


def test_without_a_process_group_the_error_says_what_to_do(line):
    url, versions = line
    with deltavc.open(url) as repo, pytest.raises(BadState, match="init_process_group"):
        repo.replica_group(copied(versions[next(iter(versions))]), next(iter(versions)))


# --- being late, and dying ---


def late(rank, url, versions):
    second = list(versions)[1]
    with Rank(rank, SIZE, url, versions, timeout=1.5) as (group, here):
        group.stage(second).wait()
        if rank == 1:
            time.sleep(3.5)
        begin = time.monotonic()
        missed = here.report(ends_of(group.apply))
        took = time.monotonic() - begin
        if rank != 1:
            time.sleep(2.5)
        group.move(second)
        return missed, took, here.report()


@pytest.mark.long
def test_a_rank_that_is_late_stops_the_move_and_the_next_one_succeeds(line):
    url, versions = line
    first, second, *_ = versions
    for missed, took, after in in_ranks(SIZE, late, url, versions):
        assert missed[:2] == (first, GroupBroken.kind)
        assert "without rank 1" in missed[2]
        assert took < 4
        assert after[0] == second


def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def freeze():
    os.kill(os.getpid(), signal.SIGSTOP)


def at_step(step, here):
    """Let this process die at a step of its next move."""
    vote, attend, decided, learn = Call._vote, Call._attend, Call._decided, Call._learn

    if step == "staging":
        groups.ReplicaGroup._prove = kill
    elif step == "summing":
        Exchange.sum = kill
    elif step == "comparing":
        groups.compare_all = kill
    elif step == "writing":
        groups.write_all = kill
    elif step == "hook":
        here.hook = kill
    elif step == "voting":
        Call._vote = lambda call, *args: kill() if call._final else vote(call, *args)
    elif step == "voted":
        Call._attend = lambda call, *args: kill() if call._final else attend(call, *args)
        Call._decided = lambda call, *args: kill() if call._final else decided(call, *args)
    elif step == "decided":
        Call._learn = lambda call, decision: kill() if call._final else learn(call, decision)
    elif step == "taking":
        groups.ReplicaGroup._take = kill
    else:
        raise ValueError(step)


def ending(rank, url, versions, step, victim, **options):
    with Rank(rank, SIZE, url, versions, timeout=PATIENCE, **options) as (group, here):
        if rank == victim:
            at_step(step, here)
        begin = time.monotonic()
        found = here.report(ends_of(group.move, list(versions)[-1]))
        assert time.monotonic() - begin < 60
        assert (group.state == "unusable") == (found[0] is None)
        assert ends_of(lambda: group.stage("main").wait()) is not None
        assert here.report()[0] == found[0]
    return found


PATIENCE = 6.0
"""Seconds that survivors wait: longer than a busy machine keeps a rank that lives from answering."""

BEFORE = ["staging", "summing", "comparing", "writing", "hook", "voting"]
AFTER = ["decided", "taking"]


STEPS = [*((step, 1) for step in (*BEFORE, "voted", *AFTER)), *((step, 0) for step in ("writing", "voted", "decided"))]


@pytest.mark.parametrize(
    ("step", "victim"),
    [pytest.param(*each, marks=[] if each in (("writing", 1), ("decided", 0)) else pytest.mark.long) for each in STEPS],
)
def test_ranks_that_survive_another_are_all_at_one_version(line, step, victim):
    url, versions = line
    first, *_, last = versions
    outcomes = in_ranks(SIZE, ending, url, versions, step, victim)
    assert outcomes[victim] == DIED
    served, kinds, words = zip(*(found for found in outcomes if found != DIED), strict=True)
    assert len(set(served)) == 1
    if step != "voted":  # its vote may be the last one, which decides
        assert served[0] == (last if step in AFTER else first)
    if served[0] == first:
        assert set(kinds) == {GroupBroken.kind}
        assert all(f"without rank {victim}" in each for each in words)
    else:
        assert set(kinds) == {None}


def ending_beside(rank, url, versions, path, step):
    return ending(rank, url, versions, step, 0, store=dist.FileStore(path, SIZE))


@pytest.mark.long
@pytest.mark.parametrize("step", ["writing", "decided"])
def test_with_a_store_that_outlives_rank_0_those_who_survive_it_serve(line, tmp_path, step):
    url, versions = line
    first, *_, last = versions
    outcomes = in_ranks(SIZE, ending_beside, url, versions, str(tmp_path / "store"), step, host=0)
    assert outcomes[0] == DIED
    assert {served for served, *_ in outcomes[1:]} == {last if step in AFTER else first}


@pytest.mark.parametrize(
    "step",
    [pytest.param(each, marks=pytest.mark.long) for each in ("staging", "voting", "voted", "decided")] + ["writing"],
)
def test_ranks_that_survive_the_one_that_serves_the_store_never_serve_two_versions(line, step):
    url, versions = line
    outcomes = in_ranks(SIZE, ending, url, versions, step, 0, host=0)
    assert outcomes[0] == DIED
    served = {version for version, *_ in outcomes[1:]} - {None}
    assert len(served) <= 1
    if step == "staging":
        assert served == {next(iter(versions))}
    for version, kind, _ in outcomes[1:]:
        assert version is not None or kind == ReplicaUnusable.kind


def frozen_and_thawed(rank, url, versions, pids):
    """Rank 0, which serves the store, stops in its hook, and goes on when the others have given up."""
    pids[rank] = os.getpid()
    last = list(versions)[-1]
    with Rank(rank, SIZE, url, versions, timeout=1.0) as (group, here):
        if rank == 0:
            here.hook = lambda applied: freeze() if applied.version == last else None
        begin = time.monotonic()
        error = ends_of(group.move, last)
        took = time.monotonic() - begin
        found = here.report()[0]
        if rank == 1:
            time.sleep(3)
            os.kill(pids[0], signal.SIGCONT)
        return found, error, took


@pytest.mark.long
def test_ranks_wait_for_a_frozen_store_no_longer_than_they_said(line):
    url, versions = line
    pids = fresh.Array("i", SIZE)
    (first, *_), *others = in_ranks(SIZE, frozen_and_thawed, url, versions, pids, host=0)
    served = {first, *(found for found, *_ in others)} - {None}
    assert len(served) == 1
    for _, error, took in others:
        assert isinstance(error, (GroupBroken, ReplicaUnusable))
        assert took < 9
