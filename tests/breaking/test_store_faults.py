"""Every call of the store fails once, or is interrupted: before or after it took effect in everything that writes, and
in everything that only reads.

After a read, a lost answer is the same as a lost request.
"""

import contextlib
import itertools

import pytest

import deltavc
from deltavc import opening
from deltavc.errors import DeltavcError, StoreUnavailable
from deltavc.lineage.lazy import LazyIndex
from deltavc.repo import Repo
from tests.breaking.once import each, fail_once, hows, names, numbers
from tests.breaking.operations import OPERATIONS, after_init, attempt
from tests.breaking.tally import count
from tests.breaking.template import template
from tests.faults import READS, WRITES, FaultyStore
from tests.states import same
from tests.upkeep.stores import opened, state_at


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


@pytest.mark.parametrize("every", [97, pytest.param(2, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
@names
def test_what_is_interrupted_in_one_call_is_done_or_not_and_can_be_repeated(name, every):
    for nth in numbers(name, num_calls(name, WRITES + READS), every):
        how = KeyboardInterrupt()
        count(calls=len(fail_once(name, lambda repo, store, nth=nth, how=how: store.failing(nth, how))))


ASKED = {
    "checkout": lambda repo, path: not same(repo.checkout("main"), state_at(4)),
    "checkout to files": lambda repo, path: not same(repo.checkout("side", path=path, overwrite=True), state_at(11)),
    "log": lambda repo, path: {version.step for version in repo.log(all=True)} ^ {0, 1, 2, 3, 4, 5, 10, 11},
    "verify": lambda repo, path: repo.verify("main").problems,
    "audit": lambda repo, path: repo.audit("side", weights=True).verification.problems,
    "match": lambda repo, path: not repo.match(state_at(4), "main").ok,
    "fsck": lambda repo, path: repo.fsck(full=True, anew=True).problems,
    "without a database": lambda repo, path: not same(lazily(repo).checkout("main~1"), state_at(3)),
}
"""What is asked, and what is wrong with the answer."""


def lazily(repo):
    return Repo(repo._store, LazyIndex(repo._store, repo._store.url), repo.id)


def bodies(store):
    return {item.key: store.get(item.key) for item in store.list("")}


@pytest.mark.parametrize("every", [23, pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
@pytest.mark.parametrize(
    "how", ["before", pytest.param(KeyboardInterrupt(), marks=pytest.mark.long)], ids=["error", "interrupt"]
)
@pytest.mark.parametrize("name", ASKED)
def test_what_only_reads_and_meets_one_call_that_fails_says_so_and_finds_no_damage(name, how, every, tmp_path):
    made = template("commit")
    for nth in itertools.count(1 + len(name) % every, every):
        store, knows = made.copy()
        before = bodies(store)
        with knows, opened(store) as stranger:
            for repo in (knows, stranger):
                with store.failing(nth, how) as fired:
                    try:
                        assert not ASKED[name](repo, tmp_path / "out")
                    except (StoreUnavailable, KeyboardInterrupt):
                        assert fired
                count(calls=len(fired))
                assert not ASKED[name](repo, tmp_path / "out")
        assert bodies(store) == before
        if not fired:
            break
    assert nth > 1


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
