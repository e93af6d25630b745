"""An outcome is told to everybody who waits for it, and an interrupt of the waiting keeps nobody from telling it."""

import contextlib
import random
import signal
import threading
from concurrent.futures import CancelledError

import pytest

from deltavc.kernels import pool
from deltavc.outcome import Outcome


def test_a_result_or_an_error_is_told_to_all_who_wait():
    for give, expected in (("end", 7), ("fail", KeyError("gone"))):
        outcome = Outcome()
        told = []

        def ask(outcome=outcome, told=told):
            try:
                told.append(outcome.result())
            except KeyError as error:
                told.append(error)

        waiting = [threading.Thread(target=ask) for _ in range(4)]
        for thread in waiting:
            thread.start()
        assert outcome.begin()
        assert not outcome.cancel()
        getattr(outcome, give)(expected)
        for thread in waiting:
            thread.join()
        ask()
        assert told == [expected] * 5
        assert outcome.done()


def test_what_has_not_begun_can_be_cancelled_and_what_is_not_done_is_not_waited_for_too_long():
    outcome = Outcome()
    for timeout in (0, 0.01, -1):
        with pytest.raises(TimeoutError):
            outcome.result(timeout)
    assert outcome.cancel()
    assert outcome.cancel()
    assert not outcome.begin()
    with pytest.raises(CancelledError):
        outcome.result()


@pytest.mark.parametrize("wait", [pool.run, lambda tasks: list(pool.in_order([(1, task) for task in tasks], 1))])
def test_ctrl_c_at_any_moment_of_waiting_leaves_the_pool_at_work(wait):
    tasks = [int] * 4
    pick = random.Random(1)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(500):
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, pick.uniform(1e-5, 3e-4))
                while True:
                    wait(tasks)
            found = []
            working = threading.Thread(target=lambda found=found: found.append(pool.run(tasks)), daemon=True)
            working.start()
            working.join(20)
            assert found == [[0] * 4]
    finally:
        signal.signal(signal.SIGALRM, before)
