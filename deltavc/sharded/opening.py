"""Opening a group's writer: rank 0 finds out where the branch is, and tells the others."""

from __future__ import annotations

import json
from collections.abc import Callable

from deltavc.access import Access
from deltavc.lineage.records import RefEntry
from deltavc.moving import trail_to
from deltavc.ranks.council import Council
from deltavc.sharded.commit import Lead
from deltavc.sharded.writer import GroupWriter
from deltavc.writer import WriterOptions


def open_writer(
    access: Access,
    council: Council,
    branch: str,
    find: Callable[[], tuple[RefEntry | None, str | None]],
    options: WriterOptions,
) -> GroupWriter:
    """Make a writer of what all ranks hold. Every rank calls it.

    Args:
        find: finds the branch's last ref entry and the version to start from; called on rank 0.

    Raises:
        what `find` raises, on rank 0.
        PeerFailed, GroupBroken
    """
    leads: list[Lead] = []

    def look() -> str:
        entry, tip = find()
        leads.append(Lead(entry, trail_to(access, tip), None))
        return json.dumps(tip)

    with council.call("writer") as call:
        tip = json.loads(call.told(look))
    lead = leads[0] if leads else None
    files = access.index.version(tip).record.files if lead is not None and tip is not None else {}
    return GroupWriter(access, branch, council, tip, lead, files, options)
