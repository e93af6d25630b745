"""Eight processes commit to one branch, each going on from the head whenever it was overtaken: one line of all commits.

Every state says what it is made of: a counter, and a part for each process, which is a function of how often that one
has committed. So each version can be told right or wrong by itself, and the whole line by what its versions count.
"""

import contextlib
import itertools
import os
import time

import pytest
import torch

import deltavc
from deltavc.errors import BranchMoved, NoPath, TooLate
from tests.breaking.operations import TIGHT
from tests.breaking.tally import count
from tests.breaking.whole import check, compare
from tests.processes import PATIENCE, fresh
from tests.states import generator

NUM_PROCESSES = 8
GRACE = 40
"""Seconds, beside clean-up: half of it has to do for a commit, on a machine with eight processes at work."""

EVERY = 5
"""Beside expire, every how many steps a version keeps its weights."""


def part_at(number, nth):
    return torch.randn(20_000, generator=generator(1000 * number + nth)).bfloat16()


def take_part(place, number, num_commits):
    """Commit a counter and a part of one's own, going on from the head whenever somebody else moved the branch."""
    url, options = place
    num_tried = 0
    with deltavc.open(url, **options) as repo, repo.writer(keep="host") as writer:
        state = repo.checkout("main")
        writer.move("main", into=state)
        start_line.wait()  # from here every one but one is overtaken
        for nth in range(1, num_commits + 1):
            while True:
                state["counter"] += 1
                state[f"part.{number}"].copy_(part_at(number, nth))
                num_tried += 1
                try:
                    writer.commit(state, step=int(state["counter"]), meta={"by": number})
                    break
                except (BranchMoved, TooLate):
                    writer.move("main", into=state)
    return num_tried


def tend(place, stopping, does):
    """Do what keeps a repository in order, again and again. How often."""
    url, options = place
    for num_done in itertools.count():
        if stopping.is_set():
            return num_done
        with deltavc.open(url, **options) as repo:
            for what in does:
                with contextlib.suppress(TooLate):
                    what(repo)
        time.sleep(0.2)
    raise AssertionError("it is told when to stop")


def compact(repo):
    repo.compact(TIGHT)


def clean(repo):
    repo.expire()
    repo.gc()


def collect(repo):
    repo.gc()


def prepare(cache, barrier, stop):
    """In a process of the race: where copies of remote objects go, what it starts at, and what ends the tending."""
    global start_line, stopping
    os.environ["XDG_CACHE_HOME"] = cache
    start_line, stopping = barrier, stop


def tend_until_stopped(place, does):
    return tend(place, stopping, does)


def check_race(place, num_commits, cache, tending=(), policy=None):
    """Let processes race for one branch while others tend the repository and this one reads."""
    url, options = place
    begin = dict.fromkeys(range(NUM_PROCESSES), 0)
    with deltavc.open(url, **options) as repo:
        if policy is not None:
            repo.set_policy(policy)
        repo.commit({"counter": torch.tensor(0), **parts(begin)}, step=0)
        stop, barrier = fresh.Event(), fresh.Barrier(NUM_PROCESSES, timeout=PATIENCE)
        with fresh.Pool(NUM_PROCESSES + len(tending), prepare, (cache, barrier, stop)) as pool:
            tended = [pool.apply_async(tend_until_stopped, (place, does)) for does in tending]
            racing = pool.starmap_async(take_part, [(place, number, num_commits) for number in begin], chunksize=1)
            while not racing.ready():
                seen = repo.checkout("main")
                assert int(seen["counter"]) == repo.version(seen.version).step
                racing.wait(0.2)
            stop.set()
            num_tried = sum(racing.get())
            num_tended = [one.get(PATIENCE) for one in tended]
        count(commits=num_tried, operations=sum(num_tended) * 2)
        assert all(num_tended)
        history = repo.log("main")[::-1]
        check(repo)
    check_line(place, history, num_commits, policy)
    assert num_tried >= NUM_PROCESSES * (num_commits + 1) - 1  # everybody but the first was overtaken


def check_line(place, history, num_commits, policy):
    """Every commit of every process is in the line, once, and is what it says."""
    url, options = place
    done = dict.fromkeys(range(NUM_PROCESSES), 0)
    count(lost=NUM_PROCESSES * num_commits + 1 - len(history))
    assert len(history) == NUM_PROCESSES * num_commits + 1
    with deltavc.open(url, **{**options, "db": "sqlite://"}) as anew:
        check(anew)
        assert [version.id for version in anew.log("main")[::-1]] == [version.id for version in history]
        for step, (before, version) in enumerate(itertools.pairwise([None, *history])):
            assert version.parents == (() if before is None else (before.id,))
            assert version.step == step
            if before is not None:
                done[version.meta["by"]] += 1
            try:
                compare(anew.checkout(version.id), {"counter": torch.tensor(step), **parts(done)})
            except NoPath:
                assert policy is not None
                assert step % EVERY
                assert step < len(history) - 1
    assert done == dict.fromkeys(range(NUM_PROCESSES), num_commits)


def parts(done):
    return {f"part.{number}": part_at(number, nth) for number, nth in done.items()}


@pytest.fixture
def directory(tmp_path):
    """A repository in a directory, with SQLite."""
    deltavc.init(tmp_path / "repo").close()
    return str(tmp_path / "repo"), {}


@pytest.fixture
def bucket(s3, postgres):
    """One on S3, with PostgreSQL."""
    place = s3.new_bucket() + "/repo", {"db": postgres.new_database(), "storage_options": s3.storage_options}
    deltavc.init(place[0], **place[1]).close()
    return place


@pytest.fixture
def bucket_without_database(s3):
    """One on S3, with an empty database in every process."""
    place = s3.new_bucket() + "/repo", {"db": "sqlite://", "storage_options": s3.storage_options}
    deltavc.init(place[0], **place[1]).close()
    return place


def test_eight_processes_on_a_directory_make_one_line_of_all_their_commits(directory, cache):
    check_race(directory, 3, cache)


@pytest.mark.servers
def test_eight_processes_on_one_bucket_and_one_database_make_one_line_of_all_their_commits(bucket, cache):
    check_race(bucket, 2, cache)


LONG = [pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(
    "where", [pytest.param("directory", marks=LONG), pytest.param("bucket", marks=[*LONG, pytest.mark.servers])]
)
@pytest.mark.parametrize("cleaning", [False, True], ids=["gc", "expire"])
def test_eight_processes_make_one_line_of_all_their_commits_beside_compacting_and_clean_up(
    where, cleaning, cache, request
):
    policy = deltavc.Policy(keep_every=EVERY, grace_seconds=GRACE) if cleaning else None
    check_race(request.getfixturevalue(where), 4, cache, [[compact], [clean if cleaning else collect]], policy)


@pytest.mark.long
@pytest.mark.servers
def test_eight_processes_on_one_bucket_with_a_database_each_make_one_line_of_all_their_commits(
    bucket_without_database, cache
):
    check_race(bucket_without_database, 2, cache)
