"""Edges in the making: the record of what was packed, for a base that is at the edge's target.

commit    the base moved from its version to a new one          delta
compact   the base moved from one version to another, later     delta, snapshot
both      the whole state, beside the way that led to it        snapshot
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from deltavc import fingerprints, packing
from deltavc.base import Base, Point
from deltavc.delta.codecs.base import Codec
from deltavc.errors import ObjectMissing
from deltavc.layout import Layout
from deltavc.lineage.drops import is_dropped
from deltavc.lineage.records import EdgeRecord, PackUse
from deltavc.packing import Packed, Packs, Read
from deltavc.snapshots import Trail
from deltavc.store.objects import Store
from deltavc.timings import Timings
from deltavc.walk import Objects


def delta(
    before: Point[Any],
    layout: Layout,
    values: Mapping[str, int],
    target: str,
    packed: Packed,
    found: Read,
    origin: str = "commit",
) -> EdgeRecord:
    """The edge from where the base was before `packing.read` to where it is; a snapshot if it held nothing.

    Args:
        layout, values: of the target: its fingerprints by name.
    """
    if before.version is None or before.layout is None:
        return _record(layout, values, target, packed, found.changed_lanes, origin)
    carried = fingerprints.carried(before.layout, layout)
    return _record(
        layout,
        values,
        target,
        packed,
        found.changed_lanes,
        origin,
        before=before,
        # A fresh tensor without lanes has no frames, and still has a fingerprint to tell.
        changed=found.changed | (layout.stored_names - carried),
        reversible=len(carried) == len(before.layout.stored),
    )


def snapshot(
    objects: Objects,
    base: Base[Any],
    layout: Layout,
    target: str,
    packs: Packs,
    trail: Trail,
    reused: Collection[str],
    codec: Codec | None,
    timings: Timings,
    origin: str = "commit",
) -> EdgeRecord:
    """Pack a snapshot of the base, with the frames of the trail's own for the tensors `reused`.

    If the trail's snapshot was dropped, clean-up may be about to delete its packs, and nothing of it is used again.

    Args:
        objects: reads the trail's packs; what it may take of memory, frames in the making may.

    Raises:
        EncodeMismatch: a frame did not decode to what it was made from; nothing of it was packed.
        CorruptObject, MissingObject: of a pack that was to be used again.
    """
    reused = standing(objects, trail, reused)
    packing.snapshot(base, layout.stored_names - reused, packs, codec, objects.memory, timings)
    return whole(objects, layout, base.fingerprints, target, packs.packed, trail, reused, origin)


def standing(objects: Objects, trail: Trail, reused: Collection[str]) -> frozenset[str]:
    """Those tensors of the trail's snapshot that can be used again: none if it was dropped."""
    gone = not reused or trail.snapshot is None or is_dropped(objects.store, trail.snapshot)
    return frozenset() if gone else frozenset(reused)


def whole(
    objects: Objects,
    layout: Layout,
    values: Mapping[str, int],
    target: str,
    packed: Packed,
    trail: Trail,
    reused: Collection[str],
    origin: str = "commit",
) -> EdgeRecord:
    """The snapshot of which everything was packed but the tensors `reused`, whose frames are those of the trail's.

    Raises:
        CorruptObject, MissingObject: of a pack that is to be used again.
    """
    uses, nbytes = list(packed.uses), packed.nbytes
    if reused and trail.snapshot is not None:
        kept = {layout.place[name] for name in reused}
        for use in trail.snapshot.packs:
            index, _ = objects.index(use, trail.snapshot.target)
            numbers = range(len(index.frames)) if use.frames is None else use.frames
            frames = tuple(number for number in numbers if index.frames[number].place in kept)
            if frames:
                uses.append(PackUse(use.pack, use.nbytes, use.index, frames))
                nbytes += sum(index.frames[number].nbytes for number in frames)
    return _record(layout, values, target, Packed(tuple(uses), nbytes), layout.num_lanes, origin)


def lost(store: Store, found: Iterable[EdgeRecord]) -> str | None:
    """What clean-up took of edges that were published late: that one was dropped, or a pack. Raises StoreError."""
    for edge in found:
        if is_dropped(store, edge):
            return f"{edge.key} was dropped"
        for use in edge.packs:
            try:
                store.stat(use.key)
            except ObjectMissing:
                return f"{use.key} is gone"
    return None


def _record(
    layout: Layout,
    values: Mapping[str, int],
    target: str,
    packed: Packed,
    changes: int,
    origin: str,
    *,
    before: Point[Any] | None = None,
    changed: Collection[str] | None = None,
    reversible: bool = False,
) -> EdgeRecord:
    places = [place for place in layout.stored if changed is None or layout.tensors[place].name in changed]
    return EdgeRecord(
        base=None if before is None else before.version,
        target=target,
        layout=layout.id,
        base_layout=before.layout.id if before is not None and before.layout is not None else None,
        packs=packed.uses,
        changed=tuple(places),
        fingerprints=tuple(f"{values[layout.tensors[place].name]:016x}" for place in places),
        reversible=reversible,
        nbytes=packed.nbytes,
        changes=changes,
        origin=origin,
    )
