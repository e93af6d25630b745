"""Seeding: a rank's boxes brought to a version, of which it reads only the frames that meet them.

So a run that was saved by 4 ranks goes on with 2 or 8. That all ranks together hold the version is not known
here; it is proven with the next commit, whose sums have those of its base beside them.
"""

from __future__ import annotations

from deltavc import fingerprints, walk
from deltavc.access import Access
from deltavc.base import Base
from deltavc.layout import Layout
from deltavc.lineage.plan import plan
from deltavc.lineage.replan import replanning
from deltavc.lineage.resolve import resolve
from deltavc.proof import by_name, shares
from deltavc.rewriting import rewrite
from deltavc.routing import Router
from deltavc.sharded.boxes import HeldBoxes
from deltavc.timings import Timings


def seed(access: Access, base: Base[HeldBoxes], version: str, wanted: Layout) -> None:
    """Bring the base's boxes to a version, by the cheapest walk from where they are.

    Args:
        wanted: what the base is for: tensors that this layout does not carry over from the version's are not held.

    If it fails on the way the base is lost, and the next time starts from nothing.

    Raises:
        CorruptObject, MissingObject, NoPath: the weights cannot be reached.
    """
    resolve(access.index, version)  # this rank's database may not have heard of it
    replanning(access.index, lambda: _seed(access, base, version, wanted))


def _seed(access: Access, base: Base[HeldBoxes], version: str, wanted: Layout) -> None:
    record = access.index.version(version).record
    layout = access.objects.layout(record.layout, version)
    usable = not base.lost and base.version is not None and base.layout is not None and base.layout.id == layout.id
    found = plan(access.index, version, held=[base.version] if usable and base.version is not None else [])
    carried = fingerprints.carried(layout, wanted)
    names = frozenset(name for name in carried if base.lanes.boxes(layout.tensors[layout.place[name]]))
    if found.start is None:
        base.clear()
        for name in names:
            base.lanes.start(name, layout)
    base.lost = True
    bound = base.lanes.bound(layout)
    rewrite(
        bound,
        Router(bound),
        walk.legs(found, access.objects, names),
        access.objects,
        Timings("fetch", "decode", "apply"),
    )
    base.fingerprints = dict.fromkeys(layout.stored_names, 0) | by_name(bound, shares(bound))
    base.version, base.layout = version, layout
    base.lost = False
