"""Moving the writer's base to a version: by the cheapest walk from where it is, proven like a checkout."""

from __future__ import annotations

from deltavc import fingerprints, walk
from deltavc.access import Access
from deltavc.base import Base
from deltavc.errors import WrongWeights
from deltavc.held import HeldLanes
from deltavc.lineage.plan import plan
from deltavc.lineage.replan import replanning
from deltavc.reader import fingerprint
from deltavc.snapshots import Trail
from deltavc.timings import Timings


def move_base(access: Access, base: Base[HeldLanes], version: str | None) -> int:
    """Bring the base to a version's weights (None: to nothing). Returns the bytes of the frames on its way.

    If it fails on the way the base is lost, and the next move starts from nothing.

    Raises:
        CorruptObject, MissingObject, NoPath: the weights cannot be reached.
        WrongWeights: they were reached and are not those of the version.
    """
    return replanning(access.index, lambda: _move_base(access, base, version))


def trail_to(access: Access, version: str | None) -> Trail:
    """The trail from the last snapshot to a version. Raises NoPath."""
    if version is None:
        return Trail()
    steps = replanning(access.index, lambda: plan(access.index, version, forward_only=True))
    return Trail.along(steps, {step.edge.layout: access.objects.layout(step.edge.layout) for step in steps.steps})


def _move_base(access: Access, base: Base[HeldLanes], version: str | None) -> int:
    if base.lost:
        base.clear()
        base.lost = False
    if base.version == version:
        return 0
    if version is None:
        base.clear()
        return 0
    record = access.index.version(version).record
    found = plan(access.index, version, held=[base.version] if base.version else [])
    if found.start is None:
        base.clear()
    base.lost = True
    legs = walk.legs(found, access.objects)
    walk.walk(legs, base.lanes, access.objects, Timings())
    layout = access.objects.layout(record.layout, version)
    values = {name: fingerprint(layout, name, base.lanes[name]) for name in base.lanes}
    if fingerprints.root(layout, values) != record.fingerprint:
        raise WrongWeights(version, ())
    base.version, base.layout, base.fingerprints = version, layout, values
    base.lost = False
    return found.nbytes
