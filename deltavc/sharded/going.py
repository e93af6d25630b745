"""Going: all ranks from where they are to another version, with what they hold live.

    rank 0: which version? ──told──> live parts fit? ──(all do)──> rank 0 goes ──(it has)──> the others, live parts

The bases do not move: each follows with the next commit, by the shortest way for its own boxes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from deltavc.access import Access
from deltavc.lineage.names import BRANCHES
from deltavc.lineage.resolve import resolve
from deltavc.ranks.council import Call, Council
from deltavc.ranks.exchange import Exchange
from deltavc.sharded.checkout import Into, Together
from deltavc.sharded.stance import Stance


def go(
    access: Access,
    council: Council,
    exchange: Exchange,
    call: Call,
    stance: Stance,
    ref: str,
    into: Into | None,
    lead_there: Callable[[str], None],
) -> str:
    """Go to a version on all ranks. Every rank calls it.

    Args:
        ref: rank 0's counts. into: what this rank holds live. lead_there: what rank 0 does first; if it fails, nobody
            goes.

    Returns:
        The id of the version.

    Raises:
        UnknownRef, AmbiguousRef: on rank 0. LayoutMismatch: what is live does not fit. Nobody went.
        PeerFailed, GroupBroken, CommitInDoubt, and what `lead_there` raises.
    """
    if stance.lead is not None:
        stance.settle()
    tip, target = json.loads(call.told(partial(_resolved, access, stance, ref)))
    stance.go_to(tip)
    resolve(access.index, target)  # this rank's database may not have heard of it
    live = None if into is None else Together(access, council, exchange, call, target, into)
    call.agree()
    if stance.lead is not None:
        lead_there(target)
    call.agree()
    if stance.lead is None:
        stance.arrive(target, None)
    if live is not None:
        live.write()
    return str(target)


def _resolved(access: Access, stance: Stance, ref: str) -> str:
    """Where rank 0 is, and where it is to go."""
    access.index.catch_up([BRANCHES + stance.branch])
    return json.dumps([stance.tip, resolve(access.index, ref, branch=stance.branch)])
