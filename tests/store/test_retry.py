import time

import pytest

from deltavc.errors import StoreDenied, StoreUnavailable
from deltavc.store.retry import Retry, Transient


def failing(times, error=None):
    """A call that fails `times` times, and how often it was made."""
    calls = []

    def call():
        calls.append(time.monotonic())
        if len(calls) <= times:
            raise Transient(error or StoreUnavailable("s3://b", "get", f"failure {len(calls)}"))
        return "done"

    return call, calls


def test_tries_until_it_works(caplog):
    call, calls = failing(3)
    assert Retry(attempts=5, first_wait=0.001).run(call) == "done"
    assert len(calls) == 4
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert "trying again after try 2 of 5: s3://b is unavailable for get: failure 2" in caplog.text


def test_gives_up_after_its_attempts_with_the_last_error():
    call, calls = failing(9)
    with pytest.raises(StoreUnavailable, match="failure 3"):
        Retry(attempts=3, first_wait=0.001).run(call)
    assert len(calls) == 3


def test_gives_up_after_its_time():
    call, calls = failing(1000)
    start = time.monotonic()
    with pytest.raises(StoreUnavailable):
        Retry(attempts=1000, seconds=0.2, first_wait=0.05).run(call)
    assert time.monotonic() - start < 1
    assert len(calls) < 100


def test_what_cannot_pass_is_not_tried_again():
    calls = []

    def call():
        calls.append(1)
        raise StoreDenied("s3://b", "get", "no")

    with pytest.raises(StoreDenied):
        Retry().run(call)
    assert len(calls) == 1
