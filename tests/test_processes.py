"""Interrupted processes, forked processes, threads: what was reported committed is there, whole."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import deltavc
from tests.processes import PATIENCE, check_all, in_a_fork, state_at
from tests.states import same


@pytest.fixture
def cache_home(tmp_path, monkeypatch):
    """Where this process, and those that are told, keep copies of remote objects."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return str(tmp_path)


@pytest.mark.parametrize("in_flight", [1, 4])
def test_ctrl_c_ends_a_committing_process_and_leaves_the_repository_whole(tmp_path, in_flight):
    url = str(tmp_path / "repo")
    deltavc.init(url).close()
    code = f"from tests.processes import commit_for_ever as go; go({url!r}, print, in_flight={in_flight})"
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


# --- forks ---


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
