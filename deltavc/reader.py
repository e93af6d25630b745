"""Checkout: any version's weights, put together by the cheapest walk and proven before they are handed over.

ref -> version -> plan -> walk -> fingerprints compared -> hand over
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from deltavc import fingerprints, held, kernels, walk
from deltavc.change import Box
from deltavc.errors import CorruptObject, LayoutMismatch, WrongWeights
from deltavc.held import HeldLanes
from deltavc.lanes import from_lanes
from deltavc.layout import Layout
from deltavc.lineage.plan import Plan
from deltavc.lineage.records import VersionRecord
from deltavc.live import Live, stored_name
from deltavc.patterns import matching
from deltavc.timings import Timings
from deltavc.walk import Leg, Objects

log = logging.getLogger(__name__)


class Checkout(dict[str, Tensor]):
    """A state as checked out: tensors by name, in the layout's order, tied names sharing one tensor.

    version: the id of the version that these weights were proven to be.
    timings: seconds per stage (fetch, decode, apply, verify); decode and apply are summed over threads.
    """

    def __init__(self, version: str, tensors: Mapping[str, Tensor], timings: Mapping[str, float]) -> None:
        super().__init__(tensors)
        self.version = version
        self.timings = dict(timings)


def checkout(
    record: VersionRecord,
    plan: Plan,
    objects: Objects,
    *,
    device: torch.device | str = "cpu",
    into: Live | None = None,
    patterns: Sequence[str] | None = None,
) -> Checkout:
    """Put a version's weights together.

    Args:
        plan: leads from nothing to the version, forwards only.
        device: where new tensors go; tensors of `into` stay where they are.
        into: tensors to write into, in place. After an error they hold no version.
        patterns: names, or patterns of names as in fnmatch, to check out; None for all.

    Raises:
        CorruptObject, MissingObject: an object on the way is damaged or gone.
        WrongWeights: everything was read and the fingerprints still differ.
        LayoutMismatch: `into` does not fit the version, or a pattern matches nothing.
        WeightsTooLarge: they would not fit into this machine's memory.
    """
    timings = Timings("fetch", "decode", "apply", "verify")
    layout = objects.layout(record.layout, record.id)
    names = selected(layout, patterns)
    stored = {stored_name(layout, name) for name in names}
    if into is not None:
        buffers = into.buffers(layout, names, complete=patterns is None)
        allocate = held.borrowed(buffers, layout)
    else:
        if torch.device(device).type == "cpu":
            held.check_room(sum(layout.tensors[layout.place[name]].nbytes for name in stored))
        allocate = held.fresh(device)
    found = walk.legs(plan, objects, stored)
    expected = proven_fingerprints(found, record)
    lanes = HeldLanes(allocate)
    try:
        walk.walk(found, lanes, objects, timings)
        with timings.stage("verify"):
            if into is not None:
                into.fill_tied(layout, names, lanes)
                into.compare(record.id, layout, names, lanes)
            verify(record.id, layout, lanes, expected, stored)
    except BaseException as error:
        if into is not None:
            error.add_note("The tensors given as into= are partly written and hold no version; check out again.")
        raise
    log.info("checked out %s: %d edges, %d bytes", record.id[:12], len(plan.steps), plan.nbytes)
    if into is not None:
        tensors = {name: into.tensors[name] for name in names}
    else:
        made = {name: from_lanes(lanes[name], layout.tensors[layout.place[name]].dtype) for name in stored}
        tensors = {name: made[stored_name(layout, name)] for name in names}
    return Checkout(record.id, tensors, timings.as_dict())


def proven_fingerprints(found: Iterable[Leg], record: VersionRecord) -> dict[str, int]:
    """Every stored tensor's fingerprint, as the edges of a forward walk from nothing tell it.

    Raises:
        CorruptObject: they do not add up to the version's root.
    """
    values: dict[str, int] = {}
    edge = None
    layout = None
    for leg in found:
        edge, layout = leg.step.edge, leg.layout
        changed = zip(edge.changed, edge.fingerprints, strict=True)
        try:
            told = [(leg.layout.tensors[place].name, int(value, 16)) for place, value in changed]
        except IndexError:
            raise CorruptObject(edge.key, "it tells of a tensor that its layout lacks", record.id) from None
        fingerprints.follow(values, leg.carried, told)
    if edge is None or layout is None:
        raise ValueError("the plan has no steps")
    if layout.id != record.layout or not layout.stored_names <= values.keys():
        raise CorruptObject(edge.key, "the fingerprints on the way do not cover the version's tensors", record.id)
    if fingerprints.root(layout, values) != record.fingerprint:
        raise CorruptObject(edge.key, "the fingerprints on the way are not those of the version", record.id)
    return values


def verify(version: str, layout: Layout, lanes: HeldLanes, expected: Mapping[str, int], names: Iterable[str]) -> None:
    """Compare the fingerprints of whole tensors with those expected. Raises WrongWeights."""
    wrong = [name for name in names if fingerprint(layout, name, lanes[name]) != expected[name]]
    if wrong:
        raise WrongWeights(version, tuple(sorted(wrong)))


def fingerprint(layout: Layout, name: str, lanes: Tensor) -> int:
    """The fingerprint of one whole tensor of a layout."""
    shape = layout.tensors[layout.place[name]].lane_shape
    return kernels.fingerprint(lanes, Box.whole(shape), shape)


def selected(layout: Layout, patterns: Sequence[str] | None) -> list[str]:
    """Names that the patterns select, in the layout's order. Raises LayoutMismatch if one selects none."""
    names = [tensor.name for tensor in layout.tensors]
    if patterns is None:
        return names
    chosen: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        found = matching(pattern, layout.place.keys())
        if not found:
            raise LayoutMismatch(pattern, "matches no tensor of the version")
        chosen |= found
    return [name for name in names if name in chosen]
