"""Whatever interrupts a replica, wherever it is: the live tensors are a version, and the replica knows which."""

import contextlib
import itertools
import os
import random
import signal
import sys
import threading
import time

import pytest

from deltavc import rewriting
from deltavc.errors import DeltavcError, HookFailed, ReplicaUnusable
from deltavc.kernels import host_swap, swapping
from deltavc.replica import live as live_version
from deltavc.replica import replica, swaps
from tests.replica.samples import line_of
from tests.states import copied, same

SOURCES = {module.__file__ for module in (replica, live_version, rewriting, swaps, swapping, host_swap)}


@pytest.fixture
def line(tmp_path):
    with line_of(tmp_path / "repo", 3) as made:
        yield made


class Interrupt(BaseException):
    """What is raised in the middle of everything."""


class Injector:
    """Raises at the nth line of the replica's code that runs on a thread started meanwhile, once it is armed."""

    def __init__(self, nth):
        self.left = nth
        self.armed = False
        self.where = None

    def __enter__(self):
        threading.settrace(self.trace)
        return self

    def __exit__(self, *_):
        threading.settrace(None)

    def trace(self, frame, event, _):
        if frame.f_code.co_filename not in SOURCES:
            return None
        if self.armed and event == "line":
            self.left -= 1
            if self.left == 0:
                self.armed = False
                self.where = f"{frame.f_code.co_name}:{frame.f_lineno}"
                raise Interrupt(self.where)
        return self.trace


def check_is_a_version(repo, versions, found, live):
    """The live tensors are the version that the replica says, it is open to readers, and it can move on."""
    if found.state == "unusable":
        found.move("main", allow_long_pause=True)
    assert found.state in ("serving", "staged")
    with found.reading() as version:
        assert same(live, versions[version])
    found.verify()
    for target in versions:
        found.move(target, allow_long_pause=True)
        assert same(live, versions[target])


@pytest.mark.parametrize("hook", [False, True])
def test_an_exception_at_any_line_of_apply_leaves_a_version(line, hook):
    repo, versions = line
    first, *_, last = versions
    nth = 0
    reached = set()
    while True:
        nth += 1
        told = []
        live = copied(versions[first])
        with (
            Injector(nth) as injector,
            repo.replica(live, at=first, on_apply=told.append if hook else None) as found,
        ):
            found.stage(last).wait()
            injector.armed = True
            try:
                found.apply()
            except Interrupt:
                assert same(live, versions[found.version])
            injector.armed = False
            if hook:
                assert not told or told[-1].version == found.version
            check_is_a_version(repo, versions, found, live)
        if injector.where is None:
            break
        reached.add(injector.where)
    assert len(reached) > 20


@pytest.mark.parametrize("hook", [False, pytest.param(True, marks=pytest.mark.long)])
def test_an_exception_at_any_line_of_a_long_move_leaves_a_version_or_says_so(line, hook):
    repo, versions = line
    first, *_, last = versions
    nth = 0
    while True:
        nth += 1
        live = copied(versions[first])
        with (
            Injector(nth) as injector,
            repo.replica(live, at=first, staging_bytes=64, on_apply=print if hook else None) as found,
        ):
            injector.armed = True
            with contextlib.suppress(Interrupt, DeltavcError):
                found.move(last, allow_long_pause=True)
            injector.armed = False
            if found.state != "unusable":
                assert same(live, versions[found.version])
            check_is_a_version(repo, versions, found, live)
        if injector.where is None:
            break
    assert nth > 20


def test_ctrl_c_during_the_pause_is_raised_when_the_move_is_over(line):
    repo, versions = line
    first, *_, last = versions
    live = copied(versions[first])

    def hook(applied):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)

    with repo.replica(live, at=first, on_apply=hook) as found:
        with pytest.raises(KeyboardInterrupt):
            found.move(last)
        assert found.version == last
        assert same(live, versions[last])


def test_old_values_go_back_when_the_hook_raises_and_it_runs_again_for_the_old_version(line):
    repo, versions = line
    first, *_, last = versions
    live = copied(versions[first])
    told = []

    def hook(applied):
        told.append((applied.version, copied(live)))
        if applied.version == last:
            raise RuntimeError("the cache is stuck")

    with repo.replica(live, at=first, on_apply=hook) as found:
        with pytest.raises(HookFailed, match="the cache is stuck"):
            found.move(last)
        assert [version for version, _ in told] == [last, first]
        assert all(same(state, versions[version]) for version, state in told)
        assert found.state == "serving"
        assert found.version == first
        assert [span.version for span in found.history] == [first]


def test_a_hook_that_fails_for_the_old_version_too_makes_it_unusable(line):
    repo, versions = line
    first, *_, last = versions
    live = copied(versions[first])
    broken = threading.Event()

    def hook(applied):
        if broken.is_set():
            raise RuntimeError("gone")

    with repo.replica(live, at=first, on_apply=hook) as found:
        broken.set()
        for call in (lambda: found.move(last), lambda: found.stage(last), lambda: found.reading().__enter__()):
            with pytest.raises(ReplicaUnusable, match="gone"):
                call()
        assert same(live, versions[first])
        broken.clear()
        found.move(last, allow_long_pause=True)
        assert same(live, versions[last])


def test_a_move_that_cannot_be_taken_back_makes_it_unusable_and_nobody_waits_or_takes_it_back_later(line, monkeypatch):
    repo, versions = line
    first, *_, last = versions
    live = copied(versions[first])
    broken = threading.Event()

    def hook(applied):
        if broken.is_set():
            raise RuntimeError("gone")

    def fail(swaps):
        raise MemoryError("the device is gone")

    with repo.replica(live, at=first, on_apply=hook) as found:
        broken.set()
        with monkeypatch.context() as patch:
            patch.setattr(live_version, "undo_all", fail)
            with pytest.raises(MemoryError):
                found.move(last)
        for call in (lambda: found.move(last), lambda: found.stage(last), lambda: found.reading().__enter__()):
            with pytest.raises(ReplicaUnusable, match="could not be taken back"):
                call()
        broken.clear()
        found.move(last, allow_long_pause=True)
        assert found.state == "serving"
        assert same(live, versions[last])


def test_readers_never_see_two_versions(line):
    repo, versions = line
    live = copied(versions[repo.resolve("main")])
    stop = threading.Event()
    wrong = []
    num_read = 0

    def read():
        nonlocal num_read
        while not stop.is_set():
            with found.reading() as version, found.reading() as again:
                ok = again == version and same(live, versions[version]) and found.version == version
            num_read += 1
            if not ok:
                wrong.append(version)

    with repo.replica(live, at="main") as found:
        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for number in range(40):
            found.move(f"main~{number % 3}")
        stop.set()
        for reader in readers:
            reader.join()
    assert not wrong
    assert num_read > 40


def test_ctrl_c_at_any_moment_of_reading_keeps_nobody_waiting(line):
    repo, versions = line
    pick = random.Random(1)

    def interrupt(*_):
        raise KeyboardInterrupt

    with repo.replica(copied(versions[repo.resolve("main")]), at="main") as found:
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            for _ in range(1000):
                with contextlib.suppress(KeyboardInterrupt):
                    signal.setitimer(signal.ITIMER_REAL, pick.uniform(1e-5, 2e-4))
                    while True:
                        with found.reading():
                            pass
                assert not found._gate.reading
                checking = threading.Thread(target=found._gate.open)
                checking.start()
                checking.join(10)
                assert not checking.is_alive()
        finally:
            signal.signal(signal.SIGALRM, before)
        found.move("main~1")


def test_a_read_may_end_on_another_thread_than_it_began_on(line):
    repo, versions = line

    def tokens():
        with found.reading() as version:
            yield version
            yield version

    with repo.replica(copied(versions[repo.resolve("main")]), at="main") as found:
        answer = tokens()
        rest = []
        ending = threading.Thread(target=lambda: rest.extend(answer))
        first = next(answer)
        ending.start()
        ending.join()
        assert rest == [first]
        found.move("main~1")


def test_apply_inside_reading_is_refused_rather_than_waited_for_forever(line):
    repo, versions = line
    with repo.replica(copied(versions[repo.resolve("main")]), at="main") as found:
        with found.reading(), pytest.raises(RuntimeError, match="leave that first"):
            found.move("main~1")
        found.move("main~1")


def test_the_hook_may_ask_the_replica(line):
    repo, versions = line
    live = copied(versions[repo.resolve("main")])
    seen = []

    def hook(applied):
        with found.reading():
            seen.append((found.version, found.state, applied.version))

    with repo.replica(live, at="main", on_apply=hook) as found:
        found.move("main~2")
    assert seen == [(repo.resolve("main"), "applying", repo.resolve("main~2"))]


def test_what_would_wait_for_the_pause_to_end_is_refused_inside_the_hook(line):
    repo, versions = line
    last = repo.resolve("main")
    live = copied(versions[last])
    refused = []

    def hook(applied):
        for call in (lambda: found.stage("main"), found.apply, lambda: found.move("main"), found.verify, found.close):
            with pytest.raises(RuntimeError, match="inside on_apply"):
                call()
            refused.append(applied.version)

    with repo.replica(live, at="main", on_apply=hook) as found:
        found.move("main~1")
        assert refused == [repo.resolve("main~1")] * 5
        assert found.state == "serving"
        assert same(live, versions[found.version])


def test_history_tells_which_version_was_live_at_any_time(line):
    repo, versions = line
    times = []
    with repo.replica(copied(versions[repo.resolve("main")]), at="main") as found:
        for ref in ("main", "main~1", "main~2", "main~1"):
            if ref != "main":
                found.move(ref)
            times.append((time.monotonic(), repo.resolve(ref)))
        spans = found.history
    for moment, version in times:
        assert [s.version for s in spans if s.begin <= moment and (s.end is None or moment < s.end)] == [version]
    assert all(one.end == other.begin and one.until == other.since for one, other in itertools.pairwise(spans))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused(line):
    repo, versions = line
    with repo.replica(copied(versions[repo.resolve("main")]), at="main") as found:
        child = os.fork()
        if child == 0:
            try:
                found.verify()
            except DeltavcError as error:
                os._exit(0 if error.kind == "replica_closed" else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        found.verify()
    assert "torch" in sys.modules
