"""Clean-up beside real processes that are stopped and at work: what is kept is there, whole.

Processes stopped, and killed, at every write are in tests/breaking.
"""

import contextlib
import itertools
import multiprocessing
import os
import signal
import time

import pytest

import deltavc
from deltavc import opening
from deltavc.errors import DeltavcError, NoPath, TooLate
from deltavc.lineage import schema
from deltavc.lineage.database import open_database
from deltavc.lineage.index import Index
from deltavc.repo import Repo
from deltavc.store.local import LocalStore
from tests.upkeep.stores import same_as_committed, state_at

fresh = multiprocessing.get_context("forkserver")
fresh.set_forkserver_preload(["tests.upkeep.test_gc_processes", "deltavc.writer", "deltavc.reader"])

PATIENCE = 120  # seconds; what takes longer hangs
GRACE = 4


started = []


@pytest.fixture(autouse=True)
def nothing_is_left_running():
    yield
    while started:
        process = started.pop()
        process.kill()
        process.join()


@pytest.fixture
def url(tmp_path):
    url = str(tmp_path / "repo")
    with deltavc.init(url) as repo:
        repo.set_policy(deltavc.Policy(keep_last=3, keep_every=5, grace_seconds=GRACE))
    return url


class SignalledStore(LocalStore):
    """Sends this process a signal at its `nth` call of one of `names`, before it or after it."""

    def __init__(self, root, number, names, nth, when):
        super().__init__(root)
        self._number, self._names, self._nth, self._when = number, names, nth, when
        self._count = itertools.count(1)

    def _run(self, name, call, *args):
        mine = name in self._names and next(self._count) == self._nth
        if mine and self._when == "before":
            os.kill(os.getpid(), self._number)
        result = call(*args)
        if mine and self._when == "after":
            os.kill(os.getpid(), self._number)
        return result

    def put(self, key, body):
        return self._run("put", super().put, key, body)

    def create(self, key, body):
        return self._run("create", super().create, key, body)

    def delete(self, key):
        return self._run("delete", super().delete, key)


def opened(store):
    engine = open_database("sqlite://")
    schema.prepare(engine)
    repository_id = opening._read_marker(store)
    return Repo(store, Index(engine, store, repository_id), repository_id)


def commit_steps(url, first, length, store=None):
    with opened(store or LocalStore(url)) as repo:
        start = ["main"] if "main" in repo.branches() else []
        with repo.writer("main", keep="host") as writer:
            assert bool(writer.version) == bool(start)
            for step in range(first, first + length):
                for _ in range(20):
                    try:
                        writer.commit(state_at(step), step=step, snapshot=step % 4 == 0, files={"f": b"%d" % step})
                        break
                    except TooLate:
                        continue


def clean_up(url, store=None):
    with opened(store or LocalStore(url)) as repo:
        repo.expire()
        repo.gc()


def check_all(url):
    """Whatever the policy keeps is there to the bit, for a stranger; steps with weights."""
    with opened(LocalStore(url)) as repo:
        found = []
        history = repo.log()
        for version in history:
            with contextlib.suppress(NoPath):
                assert same_as_committed(repo.checkout(version.id), version.step)
                found.append(version.step)
            assert repo.read_file(version.id, "f") == b"%d" % version.step
        assert {version.step for version in history[:3]} <= set(found)
        assert {version.step for version in history if version.step % 5 == 0} <= set(found)
        return found


def start(work, *args):
    process = fresh.Process(target=work, args=args)
    process.start()
    started.append(process)
    return process


def finish(process, code=0):
    process.join(PATIENCE)
    assert process.exitcode == code


def stopped(process):
    """Wait until the process stopped itself."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.is_alive():
        with open(f"/proc/{process.pid}/stat") as stat:
            if stat.read().rpartition(")")[2].split()[0] == "T":
                return True
        time.sleep(0.02)
    return False


STOPS = [
    ("put", 2, "after"),  # between the uploads of a commit
    ("create", 2, "before"),  # before the ref entry of the next one, when all of it is there
]


@pytest.mark.parametrize(("name", "nth", "when"), STOPS)
def test_a_writer_that_was_stopped_past_the_grace_publishes_nothing_that_is_gone(url, name, nth, when):
    commit_steps(url, 0, 2)
    writes = start(commit_steps, url, 2, 3, SignalledStore(url, signal.SIGSTOP, [name], nth, when))
    assert stopped(writes)
    time.sleep(GRACE + 0.5)
    clean_up(url)
    os.kill(writes.pid, signal.SIGCONT)
    finish(writes)
    assert [step for step in check_all(url) if step > 1] == [4, 3, 2]
    clean_up(url)
    assert check_all(url)


@pytest.mark.parametrize("when", ["before", "after"])
def test_clean_up_that_was_stopped_between_looking_and_deleting_still_only_deletes_garbage(url, when):
    commit_steps(url, 0, 8)
    with opened(LocalStore(url)) as repo:
        repo.expire()
    time.sleep(GRACE + 0.5)
    cleans = start(clean_up, url, SignalledStore(url, signal.SIGSTOP, ["delete"], 2, when))
    assert stopped(cleans)
    commit_steps(url, 8, 3)
    clean_up(url)
    with opened(LocalStore(url)) as repo:
        repo.branch("side", "step:5")
        repo.expire()
    os.kill(cleans.pid, signal.SIGCONT)
    finish(cleans)
    check_all(url)
    with opened(LocalStore(url)) as repo:
        assert same_as_committed(repo.checkout("side"), 5)


def clean_for_ever(url, tell):
    while True:
        try:
            clean_up(url)
        except TooLate:
            continue  # on a machine with much else to do, seconds are not enough
        except DeltavcError as error:
            tell(repr(error))
            raise
        time.sleep(0.1)


def test_a_trainer_and_two_cleaners_at_once(url):
    commit_steps(url, 0, 2)
    ours, theirs = fresh.Pipe()
    cleaners = [start(clean_for_ever, url, theirs.send) for _ in range(2)]
    try:
        finish(start(commit_steps, url, 2, 20))
        time.sleep(GRACE)
        assert not ours.poll(2), ours.recv()
    finally:
        for cleaner in cleaners:
            cleaner.kill()
            cleaner.join()  # so that none of them deletes anything while we look
    found = check_all(url)
    assert {21, 20, 19, 15, 10, 5} <= set(found)
    assert 11 not in found
