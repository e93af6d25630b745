"""Everything that writes to a repository, on one in which each of them has something to do.

main   0 ─ 1 ─ 2 ─ 3 ─ 4 ─ (5)        snapshots at 0 and 3; rolled back from 5
               └─ 10 ─ 11   side      tags at 4, and at 2 until it was deleted
"""

from collections.abc import Callable
from dataclasses import dataclass

import deltavc
from deltavc.errors import NotARepository
from tests.breaking.whole import check, compare, files_at
from tests.upkeep.stores import NO_SNAPSHOTS, state_at

TIGHT = deltavc.Bounds(max_edges=2, span=2, max_ratio=1e9, max_work=1e9)
GRACE = 3600


@dataclass(frozen=True)
class Operation:
    """What is done to a repository.

    once: a second time is an error. first: what happens before it, and `hours` before it by the store's clock.
    breaks: that leaves damage, which only the database that knew the repository before can repair.
    """

    run: Callable
    once: bool = False
    first: Callable = lambda repo: None
    hours: float = 0
    breaks: bool = False


def commit(repo, step, branch="main", **told):
    return repo.commit(
        state_at(step),
        branch,
        f"step {step}",
        step=step,
        metrics={"loss": 1 / (step + 1), "nan": float("nan")},
        meta={"step": step},
        files=files_at(step),
        **told,
    )


def grow(repo):
    """Make the history above."""
    with repo.writer(snapshots=NO_SNAPSHOTS) as writer:
        for step in range(6):
            writer.commit(state_at(step), step=step, snapshot=step == 3, files=files_at(step))
    repo.branch("side", "step:2")
    with repo.writer("side", snapshots=NO_SNAPSHOTS) as writer:
        for step in (10, 11):
            writer.commit(state_at(step), step=step, snapshot=False, files=files_at(step))
    repo.rollback("main", "main~1", "a test")
    repo.tag("v1", "main")
    repo.tag("gone", "step:2")
    repo.delete_tag("gone")
    repo.set_policy(deltavc.Policy(keep_last=2, grace_seconds=GRACE))


def damage(repo):
    """A record of each kind, one of them gone."""
    first, second, third = (repo.edges(ref)[0] for ref in ("step:1", "main", "side"))
    versions = [f"versions/{version.id[:2]}/{version.id}.json" for version in repo.log("main", limit=1)]
    for key in (first.key, *versions):
        body = repo._store.get(key)
        repo._store.put(key, body[:-9] + bytes([body[-9] ^ 1]) + body[-8:])
    repo._store.delete(second.key)
    repo._index.drop([third.id])


OPERATIONS = {
    "commit": Operation(lambda repo: commit(repo, 20), once=True),
    "commit with a snapshot": Operation(lambda repo: commit(repo, 20, snapshot=True), once=True),
    "commit to a new branch": Operation(lambda repo: commit(repo, 20, "new", parents=["step:2"]), once=True),
    "branch": Operation(lambda repo: repo.branch("new", "step:2"), once=True),
    "delete": Operation(lambda repo: repo.delete_branch("side"), once=True),
    "tag": Operation(lambda repo: repo.tag("v2", "side"), once=True),
    "rollback": Operation(lambda repo: repo.rollback("main", "step:1", "a test"), once=True),
    "policy": Operation(lambda repo: repo.set_policy(deltavc.Policy(keep_every=2))),
    "expire": Operation(lambda repo: repo.expire(), hours=2),
    "gc": Operation(lambda repo: repo.gc(), first=lambda repo: repo.expire(), hours=30),
    "compact": Operation(lambda repo: repo.compact(TIGHT)),
    "reindex": Operation(lambda repo: repo.reindex()),
    "repair": Operation(lambda repo: repo.fsck(repair=True), first=damage, breaks=True),
}


def attempt(operation, repo):
    """Run it; the error of ours, or the interrupt, that it ends with, or None. Any other is a fault."""
    try:
        operation.run(repo)
    except (deltavc.DeltavcError, KeyboardInterrupt) as error:
        return error
    return None


def after_init(url):
    """After an attempt to make a repository, which failed or not: make it if it is not there, and use it."""
    try:
        repo = deltavc.open(url)
    except NotARepository:
        repo = deltavc.init(url)
    with repo:
        compare(repo.checkout(commit(repo, 1).id), state_at(1))
        check(repo)
