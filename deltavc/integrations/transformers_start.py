"""Where a run starts: at the newest version, at or before the one asked for, that keeps what a trainer needs.

asked for: main                                             asked for: step:3

0 ─── 1 ─── 2 ─── 3 ─── 4 ─── 5   main                      0 ─── 1 ─── 2 ─── 3   main
S                       S                                   S                 └─ 4 and 5 are in the reflog
                        └─ starts here                      └─ starts here
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from deltavc.errors import UnknownRef
from deltavc.identify import root_as, state_fingerprints
from deltavc.layout import Layout, TensorSpec
from deltavc.weights.state import State, open_state

if TYPE_CHECKING:
    from deltavc.repo import Repo
    from deltavc.version import Version


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run resumes: a version, and those after it on the branch, oldest first."""

    at: Version
    after: tuple[Version, ...] = ()


def head_of(repo: Repo, branch: str) -> Version | None:
    """The version that a branch is at; None if there is no such branch."""
    at = repo.branches().get(branch)
    return None if at is None else repo.version(at)


def named(repo: Repo, ref: str, branch: str) -> Version:
    """The version that a ref names, of which `step:N`, `best:metric` and `@{N}` mean this branch.

    Raises:
        UnknownRef, AmbiguousRef
    """
    if ref.startswith(("step:", "best:", "worst:")):
        ref = f"{branch}@{ref}"
    elif ref.startswith("@{"):
        ref = branch + ref
    return repo.version(ref)


def start_before(repo: Repo, version: Version, needed: Set[str], by: int | None = None) -> Start:
    """The newest version that keeps all files of these names, at or before a version on its first-parent history.

    Args:
        by: the last step that it may be of, unless it is the first of all.

    Raises:
        UnknownRef: there is none.
    """
    after: deque[Version] = deque()
    at = version
    while not (at.weights and at.files.keys() >= needed) or (by is not None and at.parents and (at.step or 0) > by):
        after.appendleft(at)
        if not at.parents:
            raise UnknownRef(version.id, "neither it nor a version before it holds a trainer's state")
        at = repo.version(at.parents[0])
    return Start(at, tuple(after))


def resume(
    repo: Repo, branch: str, ref: str | None, needed: Set[str], write: Callable[[Version], object]
) -> Start | None:
    """Move a branch to where a run is to go on, and say where the run has to start for that.

    Args:
        ref: where to go on; None: where the branch is. A branch that does not exist is made there.
        needed: the names of the files that a version keeps which a run can start from.
        write: called with the version to start from, before the branch is moved.

    Returns:
        None if there is no such branch yet, and nothing else was asked for.

    Raises:
        UnknownRef, AmbiguousRef: of `ref`; or nothing at or before it can be started from.
        BranchMoved: somebody else moved the branch meanwhile.
        what `write` raises.
    """
    head = head_of(repo, branch)
    if head is None and ref in (None, branch):
        return None
    wanted = head if head is not None and ref is None else named(repo, ref or branch, branch)
    start = start_before(repo, wanted, needed)
    write(start.at)
    if head is None:
        repo.branch(branch, at=wanted.id)
    elif head.id != wanted.id:
        repo.rollback(branch, to=wanted.id, reason=f"resumed from {ref}")
    return start


def holds(repo: Repo, state: State, version: Version, dtype: torch.dtype | str | None) -> bool:
    """Whether these weights, cast as they would be committed, are exactly those of a version."""
    view = open_state(state, dtype)
    layout = Layout.of(TensorSpec(**{**spec, "shape": tuple(spec["shape"])}) for spec in repo.tensors(version.id))
    tensors = {tensor.name: tensor for tensor in view.layout.tensors}
    return root_as(layout, tensors, state_fingerprints(view)) == version.fingerprint
