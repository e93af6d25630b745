"""One thing that fails, once, in an operation: it is done wholly or not at all, nothing is lost, it can be repeated."""

import pytest

from tests.breaking.operations import OPERATIONS, attempt
from tests.breaking.tally import count
from tests.breaking.template import template
from tests.breaking.whole import check, lineage, without_weights
from tests.upkeep.stores import opened

each = pytest.mark.parametrize("every", [41, pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
"""Every which call fails: in the short profile a few of each operation's, in the long one all of them."""

hows = pytest.mark.parametrize("how", ["before", "after"])
names = pytest.mark.parametrize("name", OPERATIONS)


def numbers(name, total, every):
    """Which of so many calls are to fail; others for every operation."""
    return range(1 + len(name) % min(every, total), total + 1, every) if total else ()


def fail_once(name, failing, database=None):
    """Run an operation while `failing(repo, store)` holds, and look at what it leaves; what that yielded.

    database: an empty one, in the place of a copy of the template's.
    """
    operation, made = OPERATIONS[name], template(name)
    count(**{"commits" if name.startswith("commit") else "operations": 1})
    store, repo = made.copy()
    if database is not None:
        repo.close()
        repo = opened(store, database)
        repo.log(all=True)
    with repo:
        with failing(repo, store) as fired:
            error = attempt(operation, repo)
        found = lineage(repo)
        assert found in (made.before, made.after)
        done = found == made.after
        assert done or error is not None
        if not operation.breaks:
            with opened(store) as stranger:
                assert lineage(stranger) == found
                assert check(stranger).without_weights <= len(made.without)
        if not (operation.once and done):
            assert attempt(operation, repo) is None
        assert repo.fsck().ok
        with opened(store) as stranger:
            check(stranger)
            assert lineage(stranger) == made.after
            assert without_weights(stranger) <= made.without
    return fired
