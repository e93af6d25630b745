"""Following that is cut short, at any step: the directory says what it is, and the next start completes it."""

import contextlib
import errno
import functools
import gc
import itertools
import os
import signal
import sys

import pytest
import torch

import deltavc
from deltavc import following, written
from deltavc.errors import BadCheckpoint, DeltavcError, StoreFull
from deltavc.weights import followed, output
from tests import states
from tests.followed import check, label, weights
from tests.processes import in_a_fork

STEPS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree")
"""What Python tells of before it asks the operating system to change a directory."""

# An audit hook cannot be taken back, so there is one, which does what `plan` says while there is a plan.
plan = None


@sys.addaudithook
def hook(event, args):
    if plan is not None and event in STEPS:
        plan(event, args)


@contextlib.contextmanager
def at_each_step(place, act, nth):
    """Act before the nth change of the directory in this block; what is yielded tells which that was."""
    global plan
    fired = []
    numbers = itertools.count(1)

    def planned(event, args):
        path = os.fspath(args[0]) if isinstance(args[0], str | os.PathLike) else ""
        if (path.startswith(str(place)) or path == "new") and next(numbers) == nth:
            fired.append((event, path))
            act()

    plan = planned
    try:
        yield fired
    finally:
        plan = None


@pytest.fixture
def repo(tmp_path):
    """Two versions that differ in weights and in their other files, one of which turns from a file into a folder."""
    with deltavc.init(tmp_path / "repo") as repo:
        state = {"w": states.random_bits("bfloat16", (20, 20)), "b": torch.arange(9)}
        repo.commit(state, step=0, files={"config.json": b"0", "tok/vocab": b"0", "old": b"0"})
        state["b"] = state["b"] + 1
        repo.commit(state, step=1, files={"config.json": b"1", "tok/vocab": b"0", "tok/new": b"1", "old/x": b"1"})
        yield repo


def settled(repo, place):
    """What the directory says it is, once a start has completed what was begun; no version before the first move."""
    with repo.follow("main", place) as follower:
        if follower.version is None:
            assert weights(place) == {}
        else:
            check(repo, place, follower.version)
        return follower.version


def is_what_it_says(repo, place):
    """Read by somebody else: without MOVING, the weights are those of VERSION."""
    if (place / "MOVING").exists():
        return
    if (place / "VERSION").exists():
        assert states.same(weights(place), repo.checkout(label(place)["version"]))
    else:
        assert weights(place) == {} if place.exists() else True


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("there", [False, True], ids=["the first move", "another move"])
def test_a_follower_that_is_killed_at_any_step_is_completed_by_the_next_start(repo, tmp_path, there, every):
    old, new = (repo.resolve(f"step:{step}") for step in range(2))
    moved = []
    for nth in itertools.count(1, every):
        place = tmp_path / f"serving-{nth}"
        if there:
            with repo.follow(old, place) as follower:
                follower.move()

        def killed(place=place, nth=nth):
            kill = functools.partial(os.kill, os.getpid(), signal.SIGKILL)
            with at_each_step(place, kill, nth), repo.follow(new, place) as follower:
                follower.move()

        code = os.waitstatus_to_exitcode(os.waitpid(in_a_fork(killed), 0)[1])
        assert code in (0, -signal.SIGKILL)
        is_what_it_says(repo, place)
        moved.append(settled(repo, place))
        with repo.follow(new, place) as follower:
            follower.move()
            check(repo, place, new)
        if code == 0:
            break
    assert nth > 20
    before = old if there else None
    assert moved == sorted(moved, key=(before, new).index)  # from some step on it is the new one, and stays so
    assert {before, new} == set(moved)


def test_a_move_that_a_start_completes_is_told(repo, tmp_path, monkeypatch):
    new = repo.resolve("main")
    place = tmp_path / "serving"

    def killed():
        with deltavc.open(tmp_path / "repo") as other, other.follow(new, place) as follower:
            following.FollowedDirectory._remove = None  # a move that removes something ends with it
            followed.FollowedDirectory._write = killed_after_moving(followed.FollowedDirectory._write)
            follower.move()

    assert os.waitstatus_to_exitcode(os.waitpid(in_a_fork(killed), 0)[1]) == -signal.SIGKILL
    assert (place / "MOVING").exists()
    with repo.follow(new, place) as follower:
        moved = follower.move()
        assert (moved.version, moved.written, moved.fetched_bytes) == (new, (), 0)
        assert follower.move() is None
    check(repo, place, new)


def killed_after_moving(write):
    def write_and_die(self, name, item):
        write(self, name, item)
        os.kill(os.getpid(), signal.SIGKILL)

    return write_and_die


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["broken", "full"])
def test_a_disk_that_fails_at_any_step_leaves_a_version_and_a_follower_that_goes_on(repo, tmp_path, error):
    versions = [repo.resolve(f"step:{step}") for step in range(2)]
    place = tmp_path / "serving"
    num_failed = 0

    def fail():
        raise OSError(error, os.strerror(error))

    repo.rollback("main", versions[0])
    with repo.follow("main", place) as follower:
        follower.move()
        for nth in itertools.count(1):
            before, target = versions[(nth + 1) % 2], versions[nth % 2]
            repo.rollback("main", target)
            with at_each_step(place, fail, nth) as fired:
                failure = failed(follower.move)
            if failure is not None:
                assert isinstance(failure, StoreFull if error == errno.ENOSPC else BadCheckpoint)
                assert str(place) in str(failure)
                num_failed += 1
                assert label(place)["version"] in (before, target)
                check(repo, place, label(place)["version"])
                follower.move()
            check(repo, place, target)
            if not fired:
                break
    assert num_failed > 15


def failed(call):
    """The error of ours that a call ends with, or None."""
    try:
        call()
    except DeltavcError as error:
        return error


LINES = {following.__file__, written.__file__, followed.__file__, output.__file__}


@contextlib.contextmanager
def interrupted_at(nth):
    """Ctrl-C at the nth line that runs in what moves directories."""
    numbers = itertools.count(1)
    fired = []

    def trace(frame, event, arg):
        if frame.f_code.co_filename not in LINES:
            return None
        if event == "line" and not fired and next(numbers) == nth:
            fired.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield fired
    finally:
        sys.settrace(before)


def move(repo, place):
    with repo.follow("main", place) as follower:
        follower.move()


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # no block protects a file that is being opened
@pytest.mark.timeout(900)
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.long)])
def test_ctrl_c_at_any_line_leaves_the_directory_whole(repo, tmp_path, every):
    versions = [repo.resolve(f"step:{step}") for step in range(2)]
    place = tmp_path / "serving"
    repo.rollback("main", versions[0])
    with repo.follow("main", place) as follower:
        follower.move()
    for turn, nth in enumerate(itertools.count(1, every)):
        repo.rollback("main", versions[(turn + 1) % 2])
        before = label(place)["version"]
        with contextlib.suppress(KeyboardInterrupt), interrupted_at(nth) as fired:
            move(repo, place)
        gc.collect(1)  # a close that was interrupted is made good when the follower is forgotten
        assert label(place)["version"] in (before, versions[(turn + 1) % 2]), fired
        check(repo, place, label(place)["version"])
        if not fired:
            break
    assert nth > 100
    assert label(place)["version"] == versions[(turn + 1) % 2]
