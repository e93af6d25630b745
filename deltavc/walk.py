"""A walk: from the weights of one version to those of another, edge by edge.

    plan ── fetch (ahead, in parallel) ── check ── decode ── apply ──> lanes of the target
             pack indexes, then ranges        one task a frame

Each frame is fetched, checked against its checksum, decoded and applied to the lanes of its box. The
frames of one edge touch different boxes and run in parallel; edges follow one another. Where applying is a launch,
many changes wait for each other and are applied in one. A tensor that an edge does not carry over starts from zero,
which is what nothing is.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from deltavc import fingerprints, kernels
from deltavc.change import Box, Change, Dense, Sparse
from deltavc.delta import pack as packs
from deltavc.delta.frames import Frame, open_frame
from deltavc.delta.pack import PackIndex
from deltavc.errors import BadPayload, CorruptObject, MissingObject, ObjectMissing
from deltavc.kernels import Part, pool
from deltavc.layout import Layout
from deltavc.lineage.bucket import read_layout
from deltavc.lineage.plan import Plan, Step
from deltavc.lineage.records import PackUse
from deltavc.store.objects import Store
from deltavc.store.transfers import Transfers
from deltavc.timings import Timings

SMALL_PACK = 1 << 20
"""Packs up to this size are fetched whole: a second request would cost more than the bytes. Where boxes are wanted that
may be in few of them, packs up to a sixteenth of it."""

MAX_RANGE = 16 << 20
"""Frames next to each other are fetched together, up to this many bytes a request."""

MAX_GAP = 64 << 10
"""Unwanted bytes between two wanted frames that are fetched along rather than asking twice."""

DECODE_COST = 2
"""Memory that decoding takes, in multiples of the change: the planes it is coded in, and the change itself."""

POSITION_BYTES = 8

TOGETHER_BYTES = 64 << 20
"""Changes that wait on a device to be applied in one launch; what a launch costs is nothing beside so many."""


class Lanes(Protocol):
    """The lanes a walk works on: one whole tensor per name, contiguous or strided, on any device."""

    def __getitem__(self, name: str) -> Tensor: ...
    def start(self, name: str, layout: Layout) -> None:
        """Make the tensor of this name in `layout` present, all zero."""

    def keep(self, names: Set[str]) -> None:
        """Forget every tensor but these."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One step of a plan with its layouts, and what is wanted of it.

    The sets are as large as the model, and as good as always the same on the whole way: legs share them.

    carried: what the edge carries over. wanted: what has to be there after it. kept: those wanted that were there
    before, and `fresh`, the others, which start from zero.
    """

    step: Step
    layout: Layout
    """of the version the step leads to"""
    frames_layout: Layout
    """of the edge's target, in whose terms its frames are written"""
    carried: Set[str]
    wanted: Set[str]
    kept: Set[str]
    fresh: Set[str]

    @property
    def to(self) -> str:
        return self.step.to


class Objects:
    """What a walk reads from the store, with the errors a reader of a version should see."""

    def __init__(self, store: Store, transfers: Transfers, memory: int) -> None:
        self.store = store
        self.transfers = transfers
        self.memory = memory
        self._layouts: dict[str, Layout] = {}

    def layout(self, layout: str, version: str | None = None) -> Layout:
        """Fetch a layout once. Raises CorruptObject, MissingObject."""
        if layout not in self._layouts:
            self._layouts[layout] = read_layout(self.store, layout, version)
        return self._layouts[layout]

    def add_layout(self, layout: Layout) -> None:
        self._layouts[layout.id] = layout

    def get(self, key: str, version: str | None, start: int = 0, nbytes: int | None = None) -> bytes:
        try:
            body = self.store.get(key, start, nbytes)
        except ObjectMissing as error:
            raise MissingObject(key, version=version) from error
        if nbytes is not None and len(body) != nbytes:
            raise CorruptObject(key, f"{len(body)} bytes where {nbytes} were expected", version)
        return body

    def index(self, use: PackUse, version: str, small: int | None = None) -> tuple[PackIndex, bytes | None]:
        """The index of a pack; with it the whole pack, checked against its name, when it is small (SMALL_PACK)."""
        small = SMALL_PACK if small is None else small
        offset = use.index[0]
        try:
            packs.check_place(use.index, use.nbytes)
        except BadPayload as error:
            raise CorruptObject(use.key, f"an edge says that it has {error.reason}", version) from error
        for last in (False, True):
            try:
                if use.nbytes <= small:
                    body = self.get(use.key, version, 0, use.nbytes)
                    return packs.check_pack(body, use.pack), body
                return packs.read_index(self.get(use.key, version, offset, use.nbytes - offset), use.nbytes), None
            except BadPayload as error:
                if last:
                    raise CorruptObject(use.key, error.reason, version) from error
                self.store.forget(use.key)  # perhaps only a near copy is damaged
        raise AssertionError("unreachable")

    def frame(self, use: PackUse, frame: Frame, layout: Layout, version: str) -> Change:
        """One frame by itself, read from the store and not from a copy kept nearer."""
        self.store.forget(use.key)
        payload = self.get(use.key, version, frame.offset, frame.nbytes)
        try:
            return open_frame(payload, frame, layout)
        except BadPayload as error:
            raise CorruptObject(use.key, error.reason, version) from error


def legs(plan: Plan, objects: Objects, names: Set[str] | None = None) -> list[Leg]:
    """Lay out a plan: layouts, and which tensors each step must bring along for `names` at its end.

    Args:
        names: stored tensors of the target that are wanted; None for all.

    Raises:
        CorruptObject: a layout is damaged, or an edge is to be walked back that cannot be.
        MissingObject: a layout is gone.
    """
    found: list[Leg] = []
    wanted = names
    inside: Set[str] | None = None  # what `wanted` is known to be within
    for step in reversed(plan.steps):
        target = objects.layout(step.edge.layout, step.edge.target)
        base = objects.layout(step.edge.base_layout, step.edge.target) if step.edge.base_layout else None
        to = target if step.forward else base
        if to is None:
            raise ValueError("a snapshot cannot be walked back")
        carried: Set[str] = frozenset() if base is None else fingerprints.carried(base, target)
        if not step.forward and carried is not to.stored_names and not to.stored_names <= carried:
            raise CorruptObject(step.edge.key, "it drops tensors and says that it can be walked back", step.to)
        wanted = to.stored_names if wanted is None else wanted
        kept = wanted if carried is inside else wanted & carried
        fresh = wanted - kept if len(kept) < len(wanted) else frozenset()
        found.append(Leg(step, to, target, carried, wanted, kept, fresh))
        wanted, inside = kept, carried
    return found[::-1]


@dataclass(frozen=True, slots=True)
class Job:
    """Frames of one pack that are fetched with one request."""

    leg: int
    use: PackUse
    frames: Sequence[Frame]
    start: int
    nbytes: int
    body: bytes | None


Waiting = tuple[Part, Change]
"""Lanes, and the change to them that was not applied yet; on one device."""


def walk(found: list[Leg], lanes: Lanes, objects: Objects, timings: Timings) -> None:
    """Walk the legs on `lanes`, in place. What is left after an exception is no version.

    Raises:
        CorruptObject, MissingObject: with the object's key and the version whose edge needs it.
        UnknownCodec: a frame was written by a newer release.
    """
    if found:
        lanes.keep(found[0].kept)
    at = 0
    for number, jobs in itertools.groupby(fetched(found, objects, timings), lambda item: item[0].leg):
        _enter(found[at : number + 1], lanes)
        at = number + 1
        tasks = _frame_tasks(found[number], jobs, lanes, objects, timings)
        with contextlib.closing(pool.in_order(tasks, objects.memory // 2)) as done:
            waiting = (one for one in done if one is not None)
            for batch in kernels.batches(waiting, lambda one: one[1].nbytes, TOGETHER_BYTES):
                parts, changes = zip(*batch, strict=True)
                with timings.stage("apply"):
                    kernels.apply_all(parts, changes, sign=_sign(found[number]))
    _enter(found[at:], lanes)


def _enter(found: Iterable[Leg], lanes: Lanes) -> None:
    for leg in found:
        for name in leg.fresh:
            lanes.start(name, leg.layout)


def fetched(
    found: list[Leg], objects: Objects, timings: Timings, boxes: Mapping[str, Sequence[Box]] | None = None
) -> Iterator[tuple[Job, bytes]]:
    """Every job of the walk in order with its bytes, fetched ahead.

    Args:
        boxes: by stored name, the boxes that frames have to meet to be wanted; None for whole tensors.

    Raises:
        CorruptObject, MissingObject: with the object's key and the version whose edge needs it.
    """
    uses = [(number, use) for number, leg in enumerate(found) for use in leg.step.edge.packs]
    small = SMALL_PACK if boxes is None else SMALL_PACK // 16

    def open_index(item: tuple[int, PackUse]) -> tuple[PackIndex, bytes | None]:
        return objects.index(item[1], found[item[0]].step.edge.target, small)

    def index_nbytes(item: tuple[int, PackUse]) -> int:
        use = item[1]
        return use.nbytes if use.nbytes <= small else use.index[1] + 16 * use.index[2]

    def jobs() -> Iterator[Job]:
        budget = objects.memory // 4
        written: Counter[tuple[int, str]] = Counter()
        for (number, use), (index, body) in objects.transfers.ahead(uses, open_index, index_nbytes, budget):
            for job in _jobs_of(found[number], number, use, index, body, boxes):
                _count_lanes(found[number], job, written)
                yield job

    def fetch(job: Job) -> bytes:
        if job.body is not None:
            return job.body
        return objects.get(job.use.key, found[job.leg].step.edge.target, job.start, job.nbytes)

    ahead = objects.transfers.ahead(jobs(), fetch, lambda job: job.nbytes, objects.memory // 4)
    while True:
        with timings.stage("fetch"):
            following = next(ahead, None)
        if following is None:
            return
        yield following


def _jobs_of(
    leg: Leg,
    number: int,
    use: PackUse,
    index: PackIndex,
    body: bytes | None,
    boxes: Mapping[str, Sequence[Box]] | None,
) -> Iterator[Job]:
    frames = [frame for frame in _used(leg, use, index) if _name(leg, frame, use) in leg.wanted]
    if boxes is not None:
        frames = [frame for frame in frames if _meets(frame, boxes[_name(leg, frame, use)])]
    if body is not None:
        if frames:
            yield Job(number, use, frames, 0, len(body), body)
        return
    group: list[Frame] = []
    for frame in frames:
        if group:
            end = group[-1].offset + group[-1].nbytes
            too_long = frame.offset + frame.nbytes - group[0].offset > MAX_RANGE
            if too_long or frame.offset - end > MAX_GAP:
                yield _range_job(number, use, group)
                group = []
        group.append(frame)
    if group:
        yield _range_job(number, use, group)


def _count_lanes(leg: Leg, job: Job, written: Counter[tuple[int, str]]) -> None:
    """Refuse an edge whose frames write more lanes of a tensor than it has: they would have to lie over one another,
    and a few bytes could keep a reader busy for ever."""
    for frame in job.frames:
        tensor = leg.frames_layout.tensors[frame.place]
        written[job.leg, tensor.name] += frame.box.num_lanes if frame.box is not None else tensor.num_lanes
        if written[job.leg, tensor.name] > tensor.num_lanes:
            raise CorruptObject(job.use.key, "its frames lie over one another", leg.step.edge.target)


def _range_job(number: int, use: PackUse, group: list[Frame]) -> Job:
    start = group[0].offset
    return Job(number, use, group, start, group[-1].offset + group[-1].nbytes - start, None)


def _used(leg: Leg, use: PackUse, index: PackIndex) -> Iterable[Frame]:
    if index.layout != leg.frames_layout.id:
        raise CorruptObject(use.key, "its frames belong to another layout than the edge's", leg.step.edge.target)
    if use.frames is None:
        return index.frames
    try:
        return [index.frames[number] for number in use.frames]
    except IndexError:
        raise CorruptObject(use.key, "the edge names a frame that it does not have", leg.step.edge.target) from None


def _name(leg: Leg, frame: Frame, use: PackUse) -> str:
    if frame.place >= len(leg.frames_layout.tensors):
        raise CorruptObject(use.key, "a frame belongs to a tensor that its layout lacks", leg.step.edge.target)
    return leg.frames_layout.tensors[frame.place].name


def _meets(frame: Frame, boxes: Sequence[Box]) -> bool:
    return frame.box is None or any(frame.box.meet(box) is not None for box in boxes)


def _frame_tasks(
    leg: Leg, jobs: Iterable[tuple[Job, bytes]], lanes: Lanes, objects: Objects, timings: Timings
) -> Iterator[tuple[int, Callable[[], Waiting | None]]]:
    """A task for each frame of one leg, with the memory it may take."""
    for job, body in jobs:
        for frame in job.frames:
            yield decode_cost(leg, frame), _frame_task(leg, job, frame, body, lanes, objects, timings)


def _frame_task(
    leg: Leg, job: Job, frame: Frame, body: bytes, lanes: Lanes, objects: Objects, timings: Timings
) -> Callable[[], Waiting | None]:
    tensor = leg.frames_layout.tensors[frame.place]
    whole = lanes[tensor.name]
    fresh = leg.step.edge.base is None or tensor.name not in leg.carried

    def task() -> Waiting | None:
        with timings.stage("decode"):
            change = decode(leg, job, frame, body, objects)
        with timings.stage("apply"):
            return _apply(whole, change, frame.box or Box.whole(tensor.lane_shape), tensor.lane_shape, leg, fresh)

    return task


def decode(leg: Leg, job: Job, frame: Frame, body: bytes, objects: Objects) -> Change:
    """One frame of a job's bytes, checked and decoded; read once more from the store itself if it is damaged.

    Raises:
        CorruptObject, MissingObject, UnknownCodec
    """
    payload = memoryview(body)[frame.offset - job.start : frame.offset - job.start + frame.nbytes]
    try:
        return open_frame(payload, frame, leg.frames_layout)
    except BadPayload:
        return objects.frame(job.use, frame, leg.frames_layout, leg.step.edge.target)


def decode_cost(leg: Leg, frame: Frame) -> int:
    """Bytes of memory that decoding a frame may take, its change included."""
    tensor = leg.frames_layout.tensors[frame.place]
    num_lanes = frame.box.num_lanes if frame.box is not None else tensor.num_lanes
    each = tensor.lane_bytes if frame.num_changes == num_lanes else tensor.lane_bytes + POSITION_BYTES
    return frame.nbytes + DECODE_COST * frame.num_changes * each


def _apply(whole: Tensor, change: Change, box: Box, shape: tuple[int, ...], leg: Leg, fresh: bool) -> Waiting | None:
    part = whole[box.index] if box.lengths else whole
    if fresh and isinstance(change, Dense):
        part.copy_(change.values.view(box.lengths))  # from zero, a difference is the value
    elif kernels.together(part.device):
        return Part(part, box, shape), on_device(change, part.device)
    else:
        kernels.apply(part, change, box, shape, sign=_sign(leg))
    return None


def _sign(leg: Leg) -> Literal[1, -1]:
    return 1 if leg.step.forward else -1


def on_device(change: Change, device: torch.device) -> Change:
    """The change with its tensors on a device."""
    if isinstance(change, Dense):
        return Dense(change.operation, change.values.to(device))
    return Sparse(change.operation, change.positions.to(device), change.values.to(device))
