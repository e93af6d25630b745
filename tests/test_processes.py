"""Many processes, dying processes, forked processes, threads: what was reported committed is there, whole."""

import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import deltavc
from deltavc import SnapshotPolicy, opening
from deltavc.errors import BranchMoved
from tests.faults import faulty
from tests.states import generator, same

# A server that has imported everything forks the processes of these tests: they start at once, and single-threaded.
fresh = multiprocessing.get_context("forkserver")
fresh.set_forkserver_preload(["tests.test_processes", "deltavc.writer", "deltavc.reader", "deltavc.kernels.cpu"])

PATIENCE = 120  # seconds; what takes longer hangs


def state_at(step):
    """Any step's state from its number alone: 2 % of two tensors change a step, and a third one comes and goes."""
    w = torch.randn(300, 700, generator=generator(1)).bfloat16()
    w.view(torch.int16).view(-1)[step % 50 :: 50] = step
    m = torch.randn(5000, generator=generator(2))
    m.view(torch.int32)[step % 50 :: 50] = step
    state = {"w": w, "m": m, "step": torch.tensor(step)}
    if step % 5 == 0:
        state["extra"] = torch.full((3, 4), step / 7, dtype=torch.float64)
    return state


def commit_for_ever(url, tell, keep="host", in_flight=1):
    """Commit step after step to main, telling of each that was committed."""
    repo = deltavc.open(url)
    first = repo.version("main").step + 1 if "main" in repo.branches() else 0
    futures = []
    with repo.writer(keep=keep, max_in_flight=in_flight, snapshots=SnapshotPolicy(max_edges=7)) as writer:
        for step in itertools.count(first):
            files = {"rng": b"%d" % step}
            futures.append(writer.commit_async(state_at(step), step=step, metrics={"step": step}, files=files))
            while len(futures) >= in_flight:
                version = futures.pop(0).result()
                tell((version.step, version.id))


def check(repo, version):
    assert same(repo.checkout(version.id), state_at(version.step))
    assert repo.read_file(version.id, "rng") == b"%d" % version.step
    assert version.metrics == {"step": version.step}


def check_all(url):
    """The database and one that is made anew agree, and every version of the branch is whole and exact."""
    with deltavc.open(url) as repo, deltavc.open(url, db="sqlite://") as anew:
        found = anew.log("main")
        assert found == repo.log("main")
        assert [version.step for version in found] == list(range(len(found)))[::-1]
        for version in found:
            check(anew, version)
        assert anew.branches() == repo.branches()
        assert anew.reflog("main") == repo.reflog("main")
    return len(found)


def kill_at_random(url, delays, **options):
    """Start committing and kill it after the delay (seconds), again and again; versions that were told of."""
    reported = {}
    for delay in delays:
        ours, theirs = fresh.Pipe()
        process = fresh.Process(target=commit_for_ever, args=(url, theirs.send), kwargs=options)
        process.start()
        theirs.close()
        assert ours.poll(PATIENCE)
        told = [ours.recv()]
        time.sleep(delay)
        process.kill()
        process.join()
        while True:
            try:
                told.append(ours.recv())
            except EOFError:
                break
        reported.update(told)
        with deltavc.open(url) as repo:
            found = {version.step: version for version in repo.log("main")}
            assert {step: found[step].id for step in reported} == reported
            head = max(found)
            assert head - max(reported) <= options.get("in_flight", 1)
            for step in range(told[0][0], head + 1):
                check(repo, found[step])
            repo.commit(
                state_at(head + 1), step=head + 1, metrics={"step": head + 1}, files={"rng": b"%d" % (head + 1)}
            )
    return reported


@pytest.mark.parametrize(("keep", "in_flight"), [("host", 1), ("disk", 3)])
def test_whatever_moment_a_committing_process_is_killed_at_nothing_is_lost(tmp_path, keep, in_flight):
    url = str(tmp_path / "repo")
    deltavc.init(url).close()
    moments = random.Random(in_flight)
    reported = kill_at_random(url, [moments.uniform(0, 0.4) for _ in range(6)], keep=keep, in_flight=in_flight)
    assert check_all(url) >= len(reported) + 6


def killed_at(nth, url, work, *args):
    """Work in a fork that is killed before its nth call of the store; whether it got there."""
    calls = itertools.count(1)

    def plan(name, args):
        if next(calls) == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    def work_until_killed():
        store = faulty(url)
        store._plan = plan
        opening.open_store = lambda *args: store
        work(url, *args)

    code = os.waitstatus_to_exitcode(os.waitpid(in_a_fork(work_until_killed), 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


def commit_step(url, step, state):
    with deltavc.open(url) as repo:
        files = {"rng": b"%d" % step}
        repo.commit(state, step=step, metrics={"step": step}, files=files, snapshot=step % 3 == 0)


def test_a_commit_that_is_killed_before_any_call_of_the_store_has_happened_or_not(tmp_path):
    url = str(tmp_path / "repo")
    deltavc.init(url).close()
    commit_step(url, 0, state_at(0))
    num_versions = 1
    for nth in itertools.count(1):
        killed = killed_at(nth, url, commit_step, num_versions, state_at(num_versions))
        found = check_all(url)
        assert found - num_versions in ((0, 1) if killed else (1,))
        commit_step(url, found, state_at(found))
        num_versions = found + 1
        if not killed:
            break
    assert check_all(url) == num_versions
    assert nth > 10


def test_init_that_is_killed_before_any_call_of_the_store_can_be_done_again(tmp_path):
    for nth in itertools.count(1):
        url = str(tmp_path / str(nth))
        killed = killed_at(nth, url, lambda url: deltavc.init(url).close())
        with deltavc.init(url) if killed else deltavc.open(url) as repo:
            repo.commit({"x": torch.arange(9)})
        with deltavc.open(url) as repo:
            assert same(repo.checkout(), {"x": torch.arange(9)})
        if not killed:
            break
    assert nth > 10


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_hundred_kills_lose_nothing(tmp_path):
    url = str(tmp_path / "repo")
    deltavc.init(url).close()
    moments = random.Random(0)
    kill_at_random(url, [moments.uniform(0, 0.1) for _ in range(100)], in_flight=2)
    check_all(url)


@pytest.mark.parametrize("in_flight", [1, 4])
def test_ctrl_c_ends_a_committing_process_and_leaves_the_repository_whole(tmp_path, in_flight):
    url = str(tmp_path / "repo")
    deltavc.init(url).close()
    code = f"from tests.test_processes import commit_for_ever as go; go({url!r}, print, in_flight={in_flight})"
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    first = process.stdout.readline()
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGINT, errors
    assert errors.strip().endswith("KeyboardInterrupt")
    assert "Exception ignored" not in errors
    assert "Fatal" not in errors
    reported = dict(eval(line) for line in (first + out).splitlines())
    with deltavc.open(url) as repo:
        found = {version.step: version for version in repo.log("main")}
        assert {step: found[step].id for step in reported} == reported
        after = max(found) + 1
        repo.commit(state_at(after), step=after, metrics={"step": after}, files={"rng": b"%d" % after})
    assert check_all(url) == after + 1


# --- several at once ---


def part_at(number, nth):
    return torch.randn(20_000, generator=generator(1000 * number + nth)).bfloat16()


def take_part(place, number, num_commits):
    """Commit a counter and a part of one's own, going on from the head whenever somebody else moved the branch."""
    url, options = place
    num_moved = 0
    with deltavc.open(url, **options) as repo, repo.writer(keep="host") as writer:
        state = repo.checkout("main")
        writer.move("main", into=state)
        start_line.wait()  # from here every one but one is overtaken
        for nth in range(1, num_commits + 1):
            while True:
                state["counter"] += 1
                state[f"part.{number}"].copy_(part_at(number, nth))
                try:
                    writer.commit(state, step=int(state["counter"]), meta={"by": number})
                    break
                except BranchMoved:
                    num_moved += 1
                    writer.move("main", into=state)
    return num_moved


def check_parts(state, num_commits):
    """The state holds what the counted number of commits has made of it."""
    assert int(state["counter"]) == sum(num_commits.values())
    for number, nth in num_commits.items():
        assert torch.equal(state[f"part.{number}"], part_at(number, nth))


def prepare(cache, barrier):
    """In a process of the race: where copies of remote objects go, and what it starts at."""
    global start_line
    os.environ["XDG_CACHE_HOME"] = cache
    start_line = barrier


def check_race(place, num_processes, num_commits, cache):
    """Let processes race for one branch while this one reads; how often one of them was overtaken."""
    url, options = place
    with deltavc.open(url, **options) as repo:
        begin = dict.fromkeys(range(num_processes), 0)
        state = {f"part.{number}": part_at(number, 0) for number in begin}
        repo.commit({"counter": torch.tensor(0), **state}, step=0)
        with fresh.Pool(num_processes, prepare, (cache, fresh.Barrier(num_processes, timeout=PATIENCE))) as pool:
            racing = pool.starmap_async(take_part, [(place, number, num_commits) for number in begin], chunksize=1)
            while not racing.ready():
                seen = repo.checkout("main")
                assert int(seen["counter"]) == repo.version(seen.version).step
                racing.wait(0.2)
            num_moved = sum(racing.get())
        history = repo.log("main")[::-1]
    with deltavc.open(url, **{**options, "db": "sqlite://"}) as anew:
        assert [version.id for version in anew.log("main")[::-1]] == [version.id for version in history]
        assert len(history) == num_processes * num_commits + 1
        done = begin
        for step, (before, version) in enumerate(itertools.pairwise([None, *history])):
            assert version.parents == (() if before is None else (before.id,))
            assert version.step == step
            if before is not None:
                done[version.meta["by"]] += 1
            check_parts(anew.checkout(version.id), done)
    assert done == dict.fromkeys(range(num_processes), num_commits)
    return num_moved


def test_processes_that_race_for_a_branch_make_one_line_of_all_their_commits(tmp_path):
    url = str(tmp_path / "repo")
    deltavc.init(url).close()
    assert check_race((url, {}), 5, 5, str(tmp_path)) >= 4


@pytest.fixture
def cache_home(tmp_path, monkeypatch):
    """Where this process, and those that are told, keep copies of remote objects."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return str(tmp_path)


@pytest.mark.servers
def test_processes_on_one_bucket_and_one_database_make_one_line_of_all_their_commits(s3, postgres, cache_home):
    place = s3.new_bucket() + "/repo", {"db": postgres.new_database(), "storage_options": s3.storage_options}
    deltavc.init(place[0], **place[1]).close()
    assert check_race(place, 5, 3, cache_home) >= 4


@pytest.mark.long
@pytest.mark.servers
def test_processes_on_one_bucket_with_a_database_each_make_one_line_of_all_their_commits(s3, cache_home):
    place = s3.new_bucket() + "/repo", {"db": "sqlite://", "storage_options": s3.storage_options}
    deltavc.init(place[0], **place[1]).close()
    assert check_race(place, 3, 3, cache_home) >= 2


# --- forks ---


def in_a_fork(work, *args):
    """Run in a forked child; its exit code, and 0 when all is well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that threads and fork do not mix is the point
        child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(PATIENCE)
            work(*args)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def commit_on(branch, place, states):
    """Open the repository anew, commit states to a branch, and check out what others made and what this did."""
    url, options = place
    with deltavc.open(url, **options) as repo:
        with repo.writer(branch, keep="host") as writer:
            for step in (10, 11, 12):
                writer.commit(states[step], step=step)
            live = {name: torch.from_numpy(tensor.numpy().copy()) for name, tensor in states[10].items()}
            writer.move("step:11", into=live)
            assert equal(live, states[11])
        assert equal(repo.checkout(branch, into=live), states[12])
        assert equal(repo.checkout(f"{branch}~3"), states[0])


def equal(found, expected):
    """As `same`, without the threads of torch: those hang where a process that used them was forked."""
    return found.keys() == expected.keys() and all(
        np.array_equal(found[name].numpy(), expected[name].numpy()) for name in expected
    )


def large_state_at(step):
    """Large enough that every loop over it spreads over threads."""
    w = torch.arange(3_000_000, dtype=torch.int32).view(3000, 1000).clone()
    w[::7] += step
    return {"w": w, "v": torch.full((2_000_000,), step / 3), "b": torch.full((5,), step)}


def check_fork(place):
    url, options = place
    with deltavc.open(url, **options) as repo, repo.writer(keep="host") as writer:
        writer.commit(large_state_at(0), step=0)
        repo.branch("child", "main")
        writer.commit_async(large_state_at(1), step=1)
        child = in_a_fork(commit_on, "child", place, {step: large_state_at(step) for step in (0, 10, 11, 12)})
        writer.commit(large_state_at(2), step=2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        writer.commit(large_state_at(3), step=3)
        assert same(repo.checkout("main"), large_state_at(3))
        assert same(repo.checkout("child"), large_state_at(12))
        assert [version.step for version in repo.log("main")] == [3, 2, 1, 0]
        assert [version.step for version in repo.log("child")] == [12, 11, 10, 0]


def test_a_forked_child_opens_the_repository_and_commits_while_its_parent_goes_on(tmp_path):
    url = str(tmp_path / "repo")
    deltavc.init(url).close()
    check_fork((url, {}))


@pytest.mark.servers
def test_a_forked_child_uses_the_servers_that_its_parent_uses(s3, postgres, cache_home):
    place = s3.new_bucket() + "/repo", {"db": postgres.new_database(), "storage_options": s3.storage_options}
    deltavc.init(place[0], **place[1]).close()
    check_fork(place)


# --- threads ---


def test_threads_with_a_repository_each_or_together_commit_and_check_out_at_the_same_time(tmp_path):
    url = str(tmp_path / "repo")
    with deltavc.init(url) as shared:
        shared.commit(large_state_at(0), step=0)
        for branch in ("own.1", "own.2", "shared.1", "shared.2"):
            shared.branch(branch, "main")

        def work(branch, repo, first):
            with repo.writer(branch, keep="host") as writer:
                for step in range(first, first + 4):
                    writer.commit(large_state_at(step), step=step)
                    assert same(repo.checkout(branch), large_state_at(step))
                    assert same(repo.checkout("main"), large_state_at(0))

        def alone(branch, first):
            with deltavc.open(url) as repo:
                work(branch, repo, first)

        with ThreadPoolExecutor(4) as pool:
            working = [pool.submit(alone, "own.1", 10), pool.submit(alone, "own.2", 20)]
            working += [pool.submit(work, "shared.1", shared, 30), pool.submit(work, "shared.2", shared, 40)]
            for one in working:
                one.result(PATIENCE)
    with deltavc.open(url, db="sqlite://") as anew:
        for branch, first in (("own.1", 10), ("own.2", 20), ("shared.1", 30), ("shared.2", 40)):
            assert [version.step for version in anew.log(branch)] == [first + 3, first + 2, first + 1, first, 0]
            assert same(anew.checkout(branch), large_state_at(first + 3))
