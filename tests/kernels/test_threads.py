"""Kernels from several threads, inside the pool, across forks and interrupts."""

import _thread
import os
import signal
import threading
import time
import warnings

import numpy as np
import pytest
import torch

from deltavc import kernels
from deltavc.kernels import pool
from tests.kernels import samples
from tests.processes import PATIENCE, fresh

# Enough lanes for several tasks.
OLD = samples.random_lanes((3, 700_000), torch.int16, 1)
NEW = samples.changed(OLD, 0.01, 2)
PLACE = samples.whole(OLD)
MOVED = (kernels.fingerprint(NEW, *PLACE) - kernels.fingerprint(OLD, *PLACE)) % 2**64


def use_all():
    """Every kernel on the pool; whether the results are right, found out without torch's threads."""
    change, moved = kernels.diff(OLD, NEW, "add", *PLACE)
    lanes = torch.from_numpy(OLD.numpy().copy())
    applied = kernels.apply(lanes, change, *PLACE)
    both = kernels.compose(change, change, OLD.numel())
    return (
        moved == applied == MOVED
        and np.array_equal(lanes.numpy(), NEW.numpy())
        and np.array_equal(both.positions.numpy(), change.positions.numpy())
        and kernels.densify(both, OLD.numel(), torch.int16).num_changes == OLD.numel()
    )


def in_a_fork(work):
    """The child's verdict on `work()`, within a minute."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that threads and fork do not mix is the point
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_results_come_in_the_order_of_the_tasks():
    assert pool.run([lambda n=n: n * n for n in range(100)]) == [n * n for n in range(100)]
    assert pool.run([]) == []


def test_kernels_work_inside_the_pool_and_nested_runs_do_not_wait_for_each_other():
    def nested():
        assert pool.inside()
        assert all(pool.in_order([(0, use_all)], 0))
        return all(pool.run([use_all, use_all]))

    assert all(pool.run([nested] * (2 * pool.size())))
    assert all(pool.in_order([(0, nested)] * (2 * pool.size()), 1))
    assert not pool.inside()


def test_two_threads_may_enter_at_once():
    outcomes = []
    threads = [threading.Thread(target=lambda: outcomes.append(use_all())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * 4


def fork_everywhere():
    assert use_all()
    assert in_a_fork(use_all)
    assert in_a_fork(lambda: in_a_fork(use_all) and use_all())
    assert all(pool.in_order([(0, lambda: in_a_fork(lambda: use_all() and not pool.inside()))], 0))
    assert use_all()


def test_a_forked_child_uses_the_kernels_that_its_parent_used():
    """In a process of its own: a fork in another thread than the main one ends what the main one holds for itself, and
    torch hangs when process groups are among that, as its cache of DTensors' operations keeps them."""
    parent = fresh.Process(target=fork_everywhere)
    parent.start()
    parent.join(PATIENCE)
    assert parent.exitcode == 0


@pytest.mark.parametrize("ahead", [0, 100], ids=["waiting-for-room", "waiting-for-the-last"])
def test_a_wait_that_is_interrupted_ends_after_the_task_it_waited_for(ahead):
    """What is left running would write into tensors that are no longer its own, or end the process at its exit."""
    ended = threading.Event()

    def task():
        time.sleep(0.1)  # until it is waited for
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.3)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        list(pool.in_order([(1, task), (1, threading.Event)], ahead))
    assert ended.is_set()
    assert use_all()


def test_an_error_ends_a_run_after_its_running_tasks_and_the_pool_lives_on():
    running, started = threading.Semaphore(0), []

    def fail():
        raise KeyError("first")

    def count():
        started.append(1)
        running.release()

    with pytest.raises(KeyError, match="first"):
        pool.run([fail, *[count] * 10_000])
    assert len(started) < 10_000
    assert list(pool.in_order([(0, lambda: 7)], 0)) == [7]
    with pytest.raises(KeyError):
        list(pool.in_order([(0, fail)], 0))


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("prefer", ["sparse", "dense", None])
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("num_cpus", [1, 2])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt within some __del__
def test_an_interrupted_advance_has_advanced_wholly_or_not_at_all(prefer, layout, num_cpus):
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(cpus)[:num_cpus]))  # one CPU: no pool, all in this thread
    new = samples.changed(OLD, 0.01 if prefer else 0.5, 3)
    kernels.diff(samples.laid_out(OLD, layout), new, "add", *PLACE, prefer=prefer, advance=True)  # compiled by now

    def interrupt(signum, frame):
        raise Interrupted

    before = signal.signal(signal.SIGINT, interrupt)
    interrupted = 0
    try:
        for attempt in range(30):
            held = samples.laid_out(OLD, layout)
            timer = threading.Timer(attempt * 0.0004, _thread.interrupt_main)
            try:
                timer.start()
                kernels.diff(held, new, "add", *PLACE, prefer=prefer, advance=True)
                timer.join()
            except Interrupted:
                interrupted += 1
            assert torch.equal(held, OLD) or torch.equal(held, new)
    finally:
        signal.signal(signal.SIGINT, before)
        os.sched_setaffinity(0, cpus)
    assert interrupted
