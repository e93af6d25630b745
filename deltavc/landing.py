"""Landing: the ref entry that makes a draft a commit, and what is looked at right before and right after it.

    check freshness ── create the entry ── (read back) ── (does its base stand?) ── committed
          │                                     └──────────────────┴── the branch is moved back, and says why
          └── too late: nothing was published

What comes after the entry is needed rarely: when the entry took as long as half the grace, and when a new branch
starts at a version that clean-up had no reason to spare.
"""

from __future__ import annotations

import logging
from typing import Protocol

from deltavc.access import Access
from deltavc.errors import CommitInDoubt, NoPath, StoreError, TooLate
from deltavc.freshness import Mark
from deltavc.lineage.names import BRANCHES
from deltavc.lineage.records import RefEntry
from deltavc.lineage.standing import stands, take_back
from deltavc.store.objects import Store

log = logging.getLogger(__name__)


class Uploaded(Protocol):
    """A commit of which everything is in the store but the ref entry."""

    @property
    def mark(self) -> Mark:
        """A moment before anything of it was uploaded, or chosen to be used again."""

    @property
    def bases(self) -> frozenset[str]:
        """The versions that its edges lead from."""

    @property
    def whole(self) -> bool:
        """Whether an edge leads to it from nothing."""

    def lost(self, store: Store) -> str | None:
        """After it landed: what of it clean-up took before it did, if it took anything. Raises StoreError."""


def land(access: Access, draft: Uploaded, entry: RefEntry) -> None:
    """Create the entry, unless clean-up may have come, or comes, before it.

    Raises:
        TooLate, NoPath: it was, or did; the branch is where it was.
        BranchMoved: somebody else moved it.
        CommitInDoubt: the store does not say whether it landed; `settle` with the same entry finds out.
    """
    leave = access.freshness.check(draft.mark, _what(entry))
    access.refs.create(entry)
    if leave.expired:
        try:
            _read_back(access, draft, entry, leave.grace.total_seconds() / 2)
        except StoreError as error:
            raise CommitInDoubt(entry.ref.removeprefix(BRANCHES), entry.new or "none", str(error)) from error
    _see_its_base_stand(access, draft, entry)


def settle(access: Access, draft: Uploaded, entry: RefEntry) -> bool:
    """After CommitInDoubt: whether it landed. It is tried again only while what it uploaded is fresh.

    Raises:
        CommitInDoubt: the store still does not say.
    """
    try:
        try:
            access.freshness.check(draft.mark, _what(entry))
        except TooLate as late:
            if not access.refs.landed(entry):
                return False
            _read_back(access, draft, entry, late.limit)
        else:
            if not access.refs.settle(entry):
                return False
        _see_its_base_stand(access, draft, entry)
    except (TooLate, NoPath) as error:
        log.warning("%s", error)
        return False
    except StoreError as error:
        raise CommitInDoubt(entry.ref.removeprefix(BRANCHES), entry.new or "none", str(error)) from error
    return True


def _read_back(access: Access, draft: Uploaded, entry: RefEntry, limit: float) -> None:
    """After an entry landed so late that clean-up may have been faster: move the branch back if it was.

    Raises:
        TooLate: it was.
    """
    if (lost := draft.lost(access.store)) is None:
        return
    landed = access.store.stat(entry.key).modified
    take_back(access.index, access.refs, entry, access.author, lost)
    raise TooLate(_what(entry), (landed - draft.mark.at).total_seconds(), limit)


def _see_its_base_stand(access: Access, draft: Uploaded, entry: RefEntry) -> None:
    """After the first commit of a new branch: clean-up spares what branches are at, which its base need not be.

    Raises:
        NoPath: the base's weights were dropped meanwhile.
    """
    if entry.old is not None or draft.whole:
        return
    for base in draft.bases:
        if not stands(access.index, base):
            take_back(access.index, access.refs, entry, access.author, f"the weights of {base} were dropped meanwhile")
            raise NoPath(base)


def _what(entry: RefEntry) -> str:
    return f"version {entry.new} of branch {entry.ref.removeprefix(BRANCHES)!r}"
