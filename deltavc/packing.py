"""From a state to packs: read, diff, encode, check, and upload while the next frames are read.

    state ──box by box──> diff against the base (which advances) ──> codec ──> decode and compare ──> pack ──> store

Frames are made in parallel and packed in order, so that equal states give equal packs but for their upload
ids. At most `memory` bytes are on their way at any time. Where a diff is a launch, the caller's thread takes it of
many boxes in one, while the pool encodes what changed in those before.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from deltavc import fingerprints, kernels
from deltavc.base import Base, Undo
from deltavc.change import Box, Change, Dense, Operation, Sparse, same
from deltavc.delta import codecs
from deltavc.delta.codecs.base import Codec, FrameHeader
from deltavc.delta.pack import PackBuilder
from deltavc.errors import EncodeMismatch, WrongWeights
from deltavc.kernels import pool
from deltavc.layout import Layout, TensorSpec
from deltavc.lineage.records import PackUse, pack_key
from deltavc.store.objects import Store
from deltavc.store.transfers import Transfers
from deltavc.taking import Place, Taken, View, places, take
from deltavc.timings import Timings

_T = TypeVar("_T")

FRAME_BYTES = 16 << 20
"""Lanes per frame as written. Smaller than the format allows, for parallel work and bounded memory."""

PACK_BYTES = 64 << 20
"""A pack is uploaded when it has reached this size; large enough for full speed, small enough for one PUT."""

FRAME_COST = 6
"""Memory that a frame in the making may take, in multiples of its lanes: dense difference, planes of it,
payload, and the decoded copy it is compared with."""


@dataclass(frozen=True, slots=True)
class Packed:
    """What was packed for one edge: the packs, and the bytes of their frames."""

    uses: tuple[PackUse, ...]
    nbytes: int


class Packs:
    """Packs in the making for one edge; each is uploaded as soon as it is full."""

    def __init__(self, layout: Layout, store: Store, transfers: Transfers, memory: int, timings: Timings) -> None:
        self._layout = layout
        self._store = store
        self._transfers = transfers
        self._memory = memory
        self._timings = timings
        self._builder = PackBuilder(layout.id)
        self._uploads: collections.deque[tuple[int, Future[None]]] = collections.deque()
        self._waiting = 0
        self._limit = min(PACK_BYTES, max(memory // 8, 1 << 20))
        self.uses: list[PackUse] = []
        self.frames_nbytes = 0

    def add(self, frame: Encoded) -> None:
        """Add a frame; upload the pack if it is full, waiting while too much is on its way."""
        self._builder.add(frame.place, frame.box, frame.codec, frame.operation, frame.payload, frame.num_changes)
        self.frames_nbytes += len(frame.payload)
        if self._builder.nbytes >= self._limit or self._builder.full:
            self._upload()

    def finish(self) -> None:
        """Send off the last pack."""
        if self._builder.nbytes:
            self._upload()

    def wait(self) -> None:
        """Wait until every pack is in the store; raises what an upload raised."""
        while self._uploads:
            self._uploads.popleft()[1].result()

    def abandon(self) -> None:
        """Stop what has not begun to be uploaded."""
        for _, upload in self._uploads:
            upload.cancel()

    @property
    def packed(self) -> Packed:
        """What was packed, once it is finished."""
        return Packed(tuple(self.uses), self.frames_nbytes)

    @property
    def nbytes(self) -> int:
        return sum(use.nbytes for use in self.uses)

    def _upload(self) -> None:
        pack = self._builder.finish()
        self._builder = PackBuilder(self._layout.id)
        while self._uploads and self._waiting + len(pack.body) > self._memory // 4:
            size, upload = self._uploads.popleft()
            upload.result()
            self._waiting -= size
        self._uploads.append((len(pack.body), self._transfers.submit(self._put, pack_key(pack.id), pack.body)))
        self._waiting += len(pack.body)
        self.uses.append(PackUse(pack.id, len(pack.body), pack.index))

    def _put(self, key: str, body: bytes) -> None:
        with self._timings.stage("upload"):
            self._store.put(key, body)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A frame that was decoded again and found equal to its change."""

    place: int
    box: Box | None
    codec: str
    operation: Operation
    payload: bytes
    num_changes: int


@dataclass(frozen=True, slots=True)
class _Box:
    """What became of one box: by how much it moved its tensor's fingerprint, its own, and its frame if it changed."""

    name: str
    box: Box
    moved: int
    fingerprint: int
    changed_lanes: int
    frame: Encoded | None


@dataclass
class Read:
    """What reading a state found. The base is at the new state.

    changed: names of the tensors that changed. fingerprints: of each box that was read, by name and box.
    """

    changed_lanes: int = 0
    changed: set[str] = field(default_factory=set)
    fingerprints: dict[tuple[str, Box], int] = field(default_factory=dict)


def read(
    view: View,
    layout: Layout,
    base: Base[Any],
    undo: Undo[Any],
    packs: Packs,
    *,
    codec: Codec | None,
    memory: int,
    timings: Timings,
) -> Read:
    """Read a state, move the base to it and pack what changed.

    Args:
        layout: of the version to be; tensors of it that `view` lacks stay as they are in the base.
        base: where it holds boxes of tensors, `view` is asked for those.
        undo: takes the changes made to the base, whatever happens here.
        codec: the codec to use for every frame; None to choose by size.
        memory: bytes that frames in the making may take.

    Raises:
        EncodeMismatch: a frame did not decode to the change it was made from; nothing of it was packed.
        WrongWeights: the base is not what it was: its fingerprints, moved by what changed, are not the state's.
    """
    carried = fingerprints.carried(base.layout, layout) if base.layout is not None else frozenset()
    base.lanes.keep(carried)
    base.fingerprints = {name: value for name, value in base.fingerprints.items() if name in carried}
    for place in layout.stored:
        name = layout.tensors[place].name
        if name not in carried:
            base.lanes.start(name, layout)
            base.fingerprints[name] = 0
    base.layout = layout
    found = Read()

    def kind(at: Place) -> tuple[bool, bool]:
        return kernels.together(at.of(base.lanes).device), at.tensor.name not in carried

    def alone(fresh: bool, at: Place) -> _Box:
        (taken,) = take([at], fresh, view, base.lanes, undo, codec, timings)
        return _pack(taken, codec, timings)

    frames = places(layout, view.tensors.keys(), base.lanes, FRAME_BYTES)

    def tasks() -> Iterator[tuple[int, Callable[[], _Box]]]:
        for (together, fresh), group in itertools.groupby(frames, kind):
            if not together:
                yield from ((FRAME_COST * at.nbytes, functools.partial(alone, fresh, at)) for at in group)
                continue
            for batch in kernels.batches(group, lambda at: at.nbytes, memory // 8):
                for taken in take(batch, fresh, view, base.lanes, undo, codec, timings):
                    yield FRAME_COST * taken.at.nbytes, functools.partial(_pack, taken, codec, timings)

    seen: collections.Counter[str] = collections.Counter()
    for done in pool.in_order(tasks(), memory // 2):
        base.fingerprints[done.name] = (base.fingerprints[done.name] + done.moved) % fingerprints.MODULUS
        seen[done.name] += done.fingerprint
        found.fingerprints[done.name, done.box] = done.fingerprint
        found.changed_lanes += done.changed_lanes
        if done.frame is not None:
            found.changed.add(done.name)
            packs.add(done.frame)
    wrong = [name for name, value in seen.items() if value % fingerprints.MODULUS != base.fingerprints[name]]
    if wrong:
        raise WrongWeights(base.version or "none", tuple(sorted(wrong)))
    packs.finish()
    return found


def snapshot(
    base: Base[Any], names: Collection[str], packs: Packs, codec: Codec | None, memory: int, timings: Timings
) -> None:
    """Pack the whole values of these tensors of the base: their changes from nothing.

    Raises:
        EncodeMismatch: a frame did not decode to what it was made from; nothing of it was packed.
    """
    layout = base.layout
    if layout is None:
        raise ValueError("the base holds nothing")

    def tasks() -> Iterator[tuple[int, Callable[[], Encoded]]]:
        for at in places(layout, names, base.lanes, FRAME_BYTES):
            change = Dense("add" if codec is None else codec.operation, at.of(base.lanes).reshape(-1))
            task = functools.partial(encode, change, at.place, at.tensor, at.box, codec, timings)
            yield FRAME_COST * at.nbytes, task

    for frame in pool.in_order(tasks(), memory // 2):
        packs.add(frame)
    packs.finish()


def encode(change: Change, place: int, tensor: TensorSpec, box: Box, codec: Codec | None, timings: Timings) -> Encoded:
    """Encode a change of one box, decode it again and compare.

    Raises:
        EncodeMismatch: the bytes do not give the change back.
    """
    with timings.stage("encode"):
        change = _on_cpu(change)
        if codec is None:
            codec = codecs.codec(codecs.choose(change, box.num_lanes))
        if codec.kind == "dense" and isinstance(change, Sparse):
            change = kernels.densify(change, box.num_lanes, change.values.dtype)
        elif codec.kind == "sparse" and isinstance(change, Dense):
            change = kernels.sparsify(change)
        payload = codec.encode(change, box.num_lanes)
        header = FrameHeader(box.num_lanes, tensor.lane_bytes, change.operation, change.num_changes)
        if not same(codec.decode(payload, header), change):
            raise EncodeMismatch(tensor.name, codec.name)
    whole = box == Box.whole(tensor.lane_shape)
    return Encoded(place, None if whole else box, codec.name, change.operation, payload, change.num_changes)


def _pack(taken: Taken, codec: Codec | None, timings: Timings) -> _Box:
    at = taken.at
    frame = encode(taken.change, at.place, at.tensor, at.box, codec, timings) if taken.changed_lanes else None
    return _Box(at.tensor.name, at.box, taken.moved, taken.fingerprint, taken.changed_lanes, frame)


def _on_cpu(change: Change) -> Change:
    if change.values.device.type == "cpu":
        return change
    if isinstance(change, Dense):
        return Dense(change.operation, change.values.cpu())
    return Sparse(change.operation, change.positions.cpu(), change.values.cpu())
