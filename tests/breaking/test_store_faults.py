"""Every call of the store fails once, before or after it took effect, in everything that writes.

After a read, a lost answer is the same as a lost request.
"""

import contextlib
import itertools

import pytest

import deltavc
from deltavc import opening
from deltavc.errors import DeltavcError
from tests.breaking.once import each, fail_once, hows, names, numbers
from tests.breaking.operations import OPERATIONS, after_init, attempt
from tests.breaking.tally import count
from tests.breaking.template import template
from tests.faults import READS, WRITES, FaultyStore


def num_calls(name, failing):
    """How many calls of these names an operation makes when nothing fails."""
    store, repo = template(name).copy()
    with repo:
        store.calls.clear()
        assert attempt(OPERATIONS[name], repo) is None
        return sum(call in failing for call, _ in store.calls)


@each
@hows
@names
def test_what_meets_one_call_that_fails_is_done_or_not_and_can_be_repeated(name, how, every):
    failing = WRITES if how == "after" else WRITES + READS
    for nth in numbers(name, num_calls(name, failing), every):
        count(calls=len(fail_once(name, lambda repo, store, nth=nth: store.failing(nth, how, failing))))


@hows
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
def test_init_that_meets_one_call_that_fails_can_be_repeated(tmp_path, monkeypatch, how, every):
    open_store = opening.open_store
    for nth in itertools.count(1, every):
        url = str(tmp_path / str(nth))
        store = FaultyStore(open_store(url))
        with monkeypatch.context() as patch, store.failing(nth, how) as fired:
            patch.setattr(opening, "open_store", lambda *args, store=store: store)
            with contextlib.suppress(DeltavcError):
                deltavc.init(url).close()
        count(operations=1, calls=len(fired))
        after_init(url)
        if not fired:
            break
    assert nth > 10
