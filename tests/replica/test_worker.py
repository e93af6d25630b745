"""A worker does every job that it took, or refuses it: nobody waits for one that is never done."""

import threading

import pytest

from deltavc.errors import ReplicaClosed
from deltavc.ranks.worker import Worker


def test_every_job_that_was_taken_is_done_however_close_to_the_end():
    for _ in range(3):
        worker = Worker("test")
        taken = []

        def submit(worker=worker, taken=taken):
            while True:
                try:
                    taken.append(worker.submit(lambda: 1))
                except ReplicaClosed:
                    return

        threads = [threading.Thread(target=submit) for _ in range(3)]
        for thread in threads:
            thread.start()
        while len(taken) < 10:
            pass
        worker.close()
        for thread in threads:
            thread.join()
        assert all(future.result(10) == 1 for future in taken)


def test_what_a_job_raises_is_raised_where_it_is_waited_for():
    worker = Worker("test")
    with pytest.raises(ZeroDivisionError):
        worker.run(lambda: 1 // 0)
    assert worker.run(lambda: worker.run(lambda: 2)) == 2
    worker.close()
