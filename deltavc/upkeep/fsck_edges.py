"""Whether an edge can be true: its ends, its layouts, and what its packs say they hold, without reading a frame.

    edge ── layouts are its ends' ── places are of stored tensors ── packs are there, as large as it says
      └── each pack's trailer and index: every frame of a box that its tensor has, none over another, all told of

One edge is checked by one call, which asks the store for no more than the end of each pack.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from deltavc import fingerprints
from deltavc.change import Box
from deltavc.delta import codecs
from deltavc.delta.frames import Frame, frame_header
from deltavc.delta.pack import TRAILER_BYTES, PackIndex, check_place, read_index
from deltavc.errors import BadPayload, CorruptObject, MissingObject, ObjectMissing, UnknownCodec
from deltavc.layout import Layout
from deltavc.lineage.records import EdgeRecord, PackUse
from deltavc.upkeep.fsck_report import Problem
from deltavc.upkeep.fsck_survey import Seen, Survey, problem_of
from deltavc.walk import Objects


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one edge: whether it may be walked, and the problems that were met."""

    sound: bool
    problems: tuple[Problem, ...] = ()


class EdgeCheck:
    """Checks edges, from any thread; what they refer to is looked up in a survey."""

    def __init__(self, survey: Survey, objects: Objects) -> None:
        self._survey = survey
        self._objects = objects
        self._carried: dict[tuple[str, str], frozenset[str]] = {}

    def check(self, edge: EdgeRecord) -> Verdict:
        """Check one edge. Raises StoreError."""
        try:
            layout, base_layout = self._layouts(edge)
            wrong = self._fault(edge, layout, base_layout)
            if wrong is not None:
                return Verdict(False, (Problem("wrong_edge", edge.key, wrong, (edge.target,)),))
            carried = frozenset() if base_layout is None else self.carried(base_layout, layout)
            fresh = layout.stored_names - carried
        except CorruptObject as error:
            return Verdict(False, (problem_of(error),))
        frames: list[Frame] = []
        problems: list[Problem] = []
        for use in edge.packs:
            try:
                frames += self._used(edge, use)
            except CorruptObject as error:
                problems.append(problem_of(error))
        if problems and self._survey.is_dropped(edge.target, edge.id):
            return Verdict(False)  # clean-up was here
        if not problems:
            wrong = _frames_fault(edge, layout, fresh, frames)
            if wrong is not None:
                problems.append(Problem("wrong_edge", edge.key, wrong, (edge.target,)))
        return Verdict(not problems, tuple(problems))

    def carried(self, before: Layout, after: Layout) -> frozenset[str]:
        """As `fingerprints.carried`, computed once for two layouts."""
        pair = (before.id, after.id)
        if pair not in self._carried:
            self._carried[pair] = fingerprints.carried(before, after)
        return self._carried[pair]

    def _layouts(self, edge: EdgeRecord) -> tuple[Layout, Layout | None]:
        base = edge.base_layout
        return (
            self._objects.layout(edge.layout, edge.target),
            None if base is None else self._objects.layout(base, edge.target),
        )

    def _fault(self, edge: EdgeRecord, layout: Layout, base_layout: Layout | None) -> str | None:
        ends: Mapping[str, Seen] = self._survey.versions
        target, base = ends.get(edge.target), ends.get(edge.base or "")
        if target is not None and target.layout != edge.layout:
            return f"its layout {edge.layout} is not that of its target, {target.layout}"
        if base is not None and base.layout != edge.base_layout:
            return f"its base layout {edge.base_layout} is not that of its base, {base.layout}"
        stored = frozenset(layout.stored)
        if not stored.issuperset(edge.changed):
            return "it tells of tensors that its layout does not store"
        carried: Set[str] = frozenset() if base_layout is None else self.carried(base_layout, layout)
        told = {layout.tensors[place].name for place in edge.changed}
        if not layout.stored_names - carried <= told:
            return "it does not tell the fingerprints of all tensors that start from nothing"
        if base_layout is not None and edge.reversible != (base_layout.stored_names <= carried):
            return "it says the wrong thing about whether it can be walked back"
        return None

    def _used(self, edge: EdgeRecord, use: PackUse) -> Iterable[Frame]:
        """The frames that an edge uses of a pack. Raises CorruptObject, MissingObject."""
        nbytes = self._survey.size(use.key)
        if nbytes is None:
            raise MissingObject(use.key, version=edge.target)
        if nbytes != use.nbytes:
            raise CorruptObject(use.key, f"it has {nbytes} bytes, and an edge says {use.nbytes}", edge.target)
        index = self._index(edge, use)
        if index.layout != edge.layout:
            raise CorruptObject(use.key, "its frames belong to another layout than the edge's", edge.target)
        if use.frames is None:
            return index.frames
        if use.frames and use.frames[-1] >= len(index.frames):
            raise CorruptObject(use.key, "the edge names a frame that it does not have", edge.target)
        return [index.frames[number] for number in use.frames]

    def _index(self, edge: EdgeRecord, use: PackUse) -> PackIndex:
        offset, stored, _ = use.index
        try:
            check_place(use.index, use.nbytes)
        except BadPayload as error:
            raise CorruptObject(use.key, f"an edge says that it has {error.reason}", edge.target) from error
        for last in (False, True):
            try:
                return read_index(self._survey.store.get(use.key, offset, stored + TRAILER_BYTES), use.nbytes)
            except BadPayload as error:
                if last:
                    raise CorruptObject(use.key, error.reason, edge.target) from error
            except ObjectMissing as error:
                raise MissingObject(use.key, version=edge.target) from error
        raise AssertionError("unreachable")


def _frames_fault(edge: EdgeRecord, layout: Layout, fresh: Set[str], frames: list[Frame]) -> str | None:
    """What is wrong with the frames of an edge, taken together."""
    if sum(frame.nbytes for frame in frames) != edge.nbytes:
        return f"its frames have {sum(frame.nbytes for frame in frames)} bytes, and it says {edge.nbytes}"
    boxes: dict[int, list[Box]] = defaultdict(list)
    for frame in frames:
        try:
            header = frame_header(frame, layout)
            header.check(codecs.codec(frame.codec).kind)
        except BadPayload as error:
            return error.reason
        except UnknownCodec:
            pass  # of a newer release, which knows better
        boxes[frame.place].append(frame.box or Box.whole(layout.tensors[frame.place].lane_shape))
    told = set(edge.changed)
    for place, of_tensor in boxes.items():
        tensor = layout.tensors[place]
        if place not in told:
            return f"it has frames of {tensor.name!r} and does not tell its fingerprint"
        if any(_overlaps(of_tensor, tensor.lane_shape)):
            return f"frames of {tensor.name!r} lie over one another"
    for name in fresh:
        place = layout.place[name]
        if sum(box.num_lanes for box in boxes.get(place, ())) != layout.tensors[place].num_lanes:
            return f"its frames are not of all lanes of {name!r}, which starts from nothing"
    return None


def _overlaps(boxes: list[Box], shape: tuple[int, ...]) -> Iterator[bool]:
    """Whether boxes meet others, going through them by where they begin and comparing those that may."""
    spans = sorted(((*_span(box, shape), box) for box in boxes), key=lambda span: span[:2])
    open_ones: list[tuple[int, Box]] = []
    for start, end, box in spans:
        open_ones = [(other_end, other) for other_end, other in open_ones if other_end > start]
        yield any(box.meet(other) is not None for _, other in open_ones)
        open_ones.append((end, box))


def _span(box: Box, shape: tuple[int, ...]) -> tuple[int, int]:
    """The row-major indices between which a box lies."""
    first = last = 0
    for offset, length, size in zip(box.offsets, box.lengths, shape, strict=True):
        first = first * size + offset
        last = last * size + offset + length - 1
    return first, last + 1
