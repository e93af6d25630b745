"""Whole: nothing lost, nothing wrong, as somebody sees it who knows nothing but the bucket.

States are a function of the step (tests.upkeep.stores.state_at), and so are the files kept with them.
"""

from dataclasses import dataclass

from deltavc.errors import NoPath
from tests import states
from tests.breaking.tally import count
from tests.upkeep.stores import state_at


@dataclass(frozen=True)
class Lineage:
    """Refs by the steps they are at, and all steps that were ever committed."""

    branches: dict
    tags: dict
    steps: frozenset


def lineage(repo):
    """The lineage as a repository tells it."""
    steps = {version.id: version.step for version in repo.log(all=True)}
    branches, tags = repo._index.branches(), repo._index.tags()  # it has just caught up
    return Lineage(
        {name: steps[version] for name, version in branches.items()},
        {name: steps[version] for name, version in tags.items()},
        frozenset(steps.values()),
    )


def files_at(step):
    return {"rng": b"%d" % step}


def compare(found, expected):
    """Count a comparison, and what is lost."""
    right = states.same(found, expected)
    count(compared=1, lost=not right)
    assert right


def without_weights(repo):
    """Steps of the versions that say they have no weights. The others are checked out and compared."""
    without = set()
    for version in repo.log(all=True):
        try:
            found = repo.checkout(version.id)
        except NoPath:
            without.add(version.step)
        else:
            compare(found, state_at(version.step))
    return frozenset(without)


def check(repo):
    """A full check, which relies on no earlier one."""
    report = repo.fsck(full=True, anew=True)
    count(checked=report.counts.num_versions, lost=len(report.lost))
    assert report.ok, report.problems
    return report
