"""Standing: whether a version has a way to its weights at this very moment, as the bucket has it.

Whoever makes a branch or a tag at an older version, or rolls back to one, writes the ref first and asks this
afterwards; clean-up writes its drops first and looks at the refs afterwards. So at least one of them sees the other,
and no branch is left at a version whose weights are about to be deleted.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

from deltavc.errors import Corruption, DatabaseError, NoPath, StoreError
from deltavc.lineage.drops import Drops
from deltavc.lineage.index import Index
from deltavc.lineage.plan import plan
from deltavc.lineage.records import RefEntry
from deltavc.lineage.refs import Refs

log = logging.getLogger(__name__)

_READERS = 16


def has_way(index: Index, version: str) -> bool:
    """Whether the index knows a way to a version from nothing."""
    try:
        plan(index, version, forward_only=True)
    except NoPath:
        return False
    return True


def stands(index: Index, version: str) -> bool:
    """Whether there is a way to a version of which nothing was dropped. A request for each of its edges, or fewer.

    It is asked when a ref has moved, which must not be told as a failure. So if it cannot be found out, the answer is
    yes, with a warning: clean-up deletes nothing while a branch, or a tag that was cut off, has no way.
    """
    try:
        return _stands(index, version)
    except (Corruption, StoreError, DatabaseError) as error:
        log.warning("whether the weights of %s are kept could not be looked at: %s", version, error)
        return True


def _stands(index: Index, version: str) -> bool:
    drops = Drops(index.bucket)
    refreshed = False
    while True:
        try:
            edges = [step.edge for step in plan(index, version, forward_only=True).steps]
        except NoPath:
            if refreshed:
                return False
            index.refresh()  # others may have added one
            refreshed = True
            continue
        with ThreadPoolExecutor(_READERS) as pool:
            asked = pool.map(lambda edge: edge.id in drops.of(edge.target), edges)
            dropped = [edge.id for edge, gone in zip(edges, asked, strict=True) if gone]
        if not dropped:
            return True
        index.drop(dropped)


def move_to(index: Index, refs: Refs, ref: str, known: RefEntry | None, version: str, who: str, why: str) -> RefEntry:
    """Move a ref to a version that has a way, and see to it that it still has when the ref is there.

    Raises:
        NoPath: it has none, and the ref is where it was.
        what `Refs.create` raises.
    """
    if not has_way(index, version):
        index.refresh()
        if not has_way(index, version):
            raise NoPath(version)
    entry = refs.move(ref, known, version, who, why)
    if not stands(index, version):
        take_back(index, refs, entry, who, f"the weights of {version} were dropped meanwhile")
        raise NoPath(version)
    return entry


def take_back(index: Index, refs: Refs, entry: RefEntry, who: str, why: str) -> RefEntry:
    """Move a ref back from an entry that just landed to where it was before. Returns the entry that does."""
    back = refs.move(entry.ref, entry, entry.old, who, f"taken back: {why}")
    index.note([entry, back])
    return back
