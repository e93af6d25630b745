"""Outcomes: how a commit ended, on every rank, whoever dies.

    all have voted: everything is uploaded ──> rank 0 creates the ref entry ──> says how it went
                                                     │ dead, frozen, late
                                                     └──> every other rank creates the same entry itself

The entry decides, and nothing else. All ranks know it, write id and all, before anybody creates it; whoever creates it
first, those who come later find it there and know it by its write id. So a rank that does not hear from rank 0 need not
wonder: it does what rank 0 would have done, and sees what stands there.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from torch.distributed.distributed_c10d import Store

from deltavc import landing
from deltavc.access import Access
from deltavc.errors import BranchMoved, CommitInDoubt, GroupBroken, StoreError
from deltavc.lineage.names import BRANCHES
from deltavc.ranks.council import Call, Council, Decision
from deltavc.sharded.words import Announced


def lead(access: Access, council: Council, call: Call, announced: Announced) -> None:
    """Create the entry, on rank 0, and say how it went.

    Raises:
        what `landing.land` raises.
    """
    try:
        landing.land(access, announced, announced.entry)
    except BaseException as error:
        heard = _say(council, call, _against(error, council.rank))
        if heard.failure != GroupBroken.kind or isinstance(error, BranchMoved):
            raise
        if not landing.settle(
            access, announced, announced.entry
        ):  # others have stopped waiting, and create it themselves
            raise
    else:
        _say(council, call, Decision(True))


def follow(access: Access, council: Council, call: Call, announced: Announced) -> None:
    """Find out how it went, on any other rank.

    Raises:
        BranchMoved: another writer's entry stands in its place.
        CommitInDoubt: nobody knows.
        PeerFailed, GroupBroken: it was not made.
    """
    entry = announced.entry
    branch = entry.ref.removeprefix(BRANCHES)
    try:
        word = council.clerk.ask(lambda store: _hear(council, call, store), council.timeout)
    except OSError as error:
        word = Decision.against(GroupBroken(call.verb, (0,), str(error)), council.rank)
    if word.go:
        return
    if word.failure == BranchMoved.kind:
        raise BranchMoved(branch, entry.old, word.reason or None)
    if word.failure == CommitInDoubt.kind:
        raise CommitInDoubt(branch, announced.record.id, word.reason)
    if word.failure != GroupBroken.kind:
        raise word.error(call.verb)
    if not landing.settle(access, announced, entry):
        newest = access.refs.newest(entry.ref, None)
        found = newest.new if newest is not None else None
        if found == entry.old:  # it was taken back
            raise word.error(call.verb)
        raise BranchMoved(branch, entry.old, found)


def settle(access: Access, announced: Announced) -> bool:
    """Whether it was made, where it is not known whether all ranks have uploaded their part.

    It is made now if they have: then any rank may.

    Raises:
        CommitInDoubt: the store does not say.
    """
    entry = announced.entry
    try:
        complete = announced.lost(access.store) is None
    except StoreError as error:
        raise CommitInDoubt(entry.ref.removeprefix(BRANCHES), announced.record.id, str(error)) from error
    return landing.settle(access, announced, entry) if complete else access.refs.landed(entry)


def forget(council: Council, call: Call) -> None:
    """Delete what `lead` said in a call that every rank has left."""
    council.front.tell(lambda store: store.delete_key(_key(call)))


def _say(council: Council, call: Call, decision: Decision) -> Decision:
    """Say how it went. Returns what the others hear: that nobody said anything, if that is what one of them found."""
    try:
        return council.clerk.ask(lambda store: _decided(call, decision, store))
    except OSError as error:  # the others find out by themselves
        return Decision.against(GroupBroken(call.verb, (), str(error)), council.rank)


def _hear(council: Council, call: Call, store: Store) -> Decision:
    key = _key(call)
    try:
        store.wait([key], timedelta(seconds=council.timeout))
    except RuntimeError:  # not in time; or the store is gone, which the next question shows
        reason = f"rank 0 did not say within {council.timeout:g} seconds how it ended"
        return _decided(call, Decision.against(GroupBroken(call.verb, (0,), reason), council.rank), store)
    return Decision.from_json(store.get(key))


def _decided(call: Call, decision: Decision, store: Store) -> Decision:
    return Decision.from_json(store.compare_set(_key(call), "", decision.to_json()))


def _key(call: Call) -> str:
    return f"{call.number}/landed"


def _against(error: BaseException, rank: int) -> Decision:
    """The decision against, with what the others need to raise the same error as its reason."""
    found = Decision.against(error, rank)
    if isinstance(error, BranchMoved):
        return replace(found, reason=error.found or "")
    if isinstance(error, CommitInDoubt):
        return replace(found, reason=error.reason)
    return found
