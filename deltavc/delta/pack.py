"""Packs: many frames and their index in one object.

    magic (8)  upload id (16)                     the id is random, so that no two uploads are the same object
    frame, frame, ...                             each starts at the next multiple of 64; zeros between
    index                                         zstd of canonical JSON; starts at the next multiple of 64
    trailer (48)                                  index offset, stored bytes, unpacked bytes: u64 little-endian;
                                                  BLAKE3-128 of the stored index; magic (8)

    index = {"codecs": [name, ...], "frames": [[place, codec, operation, offset, nbytes, checksum, changes], ...],
             "layout": id}

In the index `codec` is a number in `codecs`, `operation` 0 for add and 1 for xor, `checksum` the BLAKE3-128 of the
payload in 32 hex digits, `changes` the number of lanes it writes; a frame of less than a whole tensor has an eighth
entry, the box: its offsets, then its lengths. A reader that knows where the index starts fetches it and the trailer
in one piece, and then the frames it needs; each part is checked before it is believed.

This module imports neither torch nor numba.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from deltavc import canonical
from deltavc.change import Box, Operation
from deltavc.delta.codecs import zstd
from deltavc.delta.codecs.base import MAX_FRAME_BYTES, Buffer
from deltavc.delta.frames import Frame, check_payload
from deltavc.errors import BadPayload

MAGIC = b"DELTAVC\x01"
ALIGNMENT = 64
MAX_INDEX_BYTES = canonical.MAX_BYTES
"""Bytes of an unpacked index; about 300,000 frames."""

MAX_STORED_INDEX = MAX_INDEX_BYTES + (1 << 20)
"""Bytes of a stored one; zstd adds less than that to what it cannot compress."""

MAX_PAYLOAD = 2 * MAX_FRAME_BYTES
"""Bytes of a frame's payload. Codecs add next to nothing to what they cannot compress; positions may double it."""

_HEAD_BYTES = len(MAGIC) + 16
_ENTRY_BYTES, _NUMBER_BYTES = 120, 17
"""What a frame takes in the index at most, and each number of its box."""

_TRAILER = struct.Struct("<QQQ16s8s")
TRAILER_BYTES = _TRAILER.size
_ID = re.compile(r"[0-9a-f]{64}")
_CHECKSUM = re.compile(r"[0-9a-f]{32}")
_CODEC = re.compile(r"[a-z0-9-]{1,40}")
_OPERATIONS: tuple[Operation, ...] = ("add", "xor")


@dataclass(frozen=True, slots=True)
class Trailer:
    """The fixed end of a pack: where the index lies, its stored and unpacked size, and its BLAKE3-128."""

    offset: int
    nbytes: int
    unpacked: int
    checksum: bytes


@dataclass(frozen=True, slots=True)
class PackIndex:
    """What is in a pack: the id of the layout that places refer to, and the frames by offset."""

    layout: str
    frames: tuple[Frame, ...]

    @classmethod
    def parse(cls, stored: Buffer, trailer: Trailer) -> PackIndex:
        """Read a stored index, whose checksum was compared, of the pack with this trailer.

        Raises:
            BadPayload: not what `PackBuilder` writes, frames outside the pack or over one another.
        """
        body = zstd.decompress(stored, trailer.unpacked)
        item = canonical.loads(body)
        try:
            names = [_match(_CODEC, name) for name in item["codecs"]]
            index = cls(_match(_ID, item["layout"]), tuple(_parse_frame(entry, names) for entry in item["frames"]))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise BadPayload(f"not a pack's index: {error}") from error
        if _index_body(index.layout, index.frames) != body:
            raise BadPayload("a pack's index that is not in canonical form")
        index._check_offsets(trailer.offset)
        return index

    def _check_offsets(self, end: int) -> None:
        due = _aligned(_HEAD_BYTES)
        for frame in self.frames:
            if frame.nbytes > MAX_PAYLOAD:
                raise BadPayload(f"a frame of {frame.nbytes} bytes")
            if frame.offset != due:
                raise BadPayload(f"a frame at {frame.offset} where one is due at {due}")
            due = _aligned(due + frame.nbytes)
        if due != end:
            raise BadPayload(f"the frames end at {due}, and the index starts at {end}")


@dataclass(frozen=True, slots=True)
class Pack:
    """A finished pack.

    id: BLAKE3 of `body` in 64 hex digits. index: offset, stored and unpacked bytes of the index, as edges keep them.
    """

    id: str
    body: bytes
    index: tuple[int, int, int]
    frames: tuple[Frame, ...]


class PackBuilder:
    """Collects frames, and writes the pack once it has them all."""

    def __init__(self, layout: str) -> None:
        self._layout = layout
        self._pieces = [MAGIC, os.urandom(16)]
        self._end = _HEAD_BYTES
        self._frames: list[Frame] = []
        self._index_nbytes = 0

    @property
    def full(self) -> bool:
        """Whether its index has become so large that another frame should go to another pack."""
        return self._index_nbytes > MAX_INDEX_BYTES // 2

    @property
    def nbytes(self) -> int:
        """Bytes of the pack so far, without its index; 0 when no frame was added."""
        return self._end if self._frames else 0

    def add(
        self, place: int, box: Box | None, codec: str, operation: Operation, payload: bytes, num_changes: int
    ) -> None:
        """Add the frame of one box of the tensor at `place`; `box` is None when it is the whole tensor."""
        self._pad()
        checksum = blake3(payload).digest(length=16)
        self._frames.append(Frame(place, box, codec, operation, self._end, len(payload), checksum, num_changes))
        self._append(payload)
        self._index_nbytes += _ENTRY_BYTES + (0 if box is None else _NUMBER_BYTES * 2 * len(box.lengths))

    def finish(self) -> Pack:
        """Write the index and return the pack. The builder is spent then."""
        self._pad()
        body = _index_body(self._layout, self._frames)
        stored = zstd.compress(body)
        index = (self._end, len(stored), len(body))
        self._append(stored)
        self._append(_TRAILER.pack(*index, blake3(stored).digest(length=16), MAGIC))
        joined = b"".join(self._pieces)
        self._pieces.clear()
        return Pack(canonical.content_id(joined), joined, index, tuple(self._frames))

    def _pad(self) -> None:
        self._append(bytes(_aligned(self._end) - self._end))

    def _append(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._end += len(piece)


def check_place(place: tuple[int, int, int], pack_nbytes: int) -> None:
    """Check where an index is said to lie (offset, stored and unpacked bytes) in a pack of this size.

    Raises:
        BadPayload: it cannot lie there, or is larger than any index.
    """
    offset, nbytes, unpacked = place
    if offset < _HEAD_BYTES or offset + nbytes + TRAILER_BYTES != pack_nbytes:
        raise BadPayload(f"an index of {nbytes} bytes at {offset} in {pack_nbytes} bytes")
    if not 1 <= unpacked <= MAX_INDEX_BYTES or nbytes > MAX_STORED_INDEX:
        raise BadPayload(f"an index of {nbytes} bytes, {unpacked} unpacked; at most {MAX_INDEX_BYTES} are read")


def read_trailer(tail: Buffer, pack_nbytes: int) -> Trailer:
    """Read the last TRAILER_BYTES of a pack.

    Raises:
        BadPayload: not a trailer, or not of a pack of this size.
    """
    if len(tail) != TRAILER_BYTES:
        raise BadPayload(f"a trailer of {len(tail)} bytes")
    offset, nbytes, unpacked, checksum, magic = _TRAILER.unpack(tail)
    if magic != MAGIC:
        raise BadPayload("no pack ends with these bytes")
    check_place((offset, nbytes, unpacked), pack_nbytes)
    return Trailer(offset, nbytes, unpacked, checksum)


def read_index(end: Buffer, pack_nbytes: int) -> PackIndex:
    """Read the index from the end of a pack: its bytes from the index's offset on.

    Args:
        pack_nbytes: size of the pack.

    Raises:
        BadPayload: anything in it is damaged, or there is more or less than the index and the trailer.
    """
    view = memoryview(end)
    trailer = read_trailer(view[max(len(view) - TRAILER_BYTES, 0) :], pack_nbytes)
    stored = view[:-TRAILER_BYTES]
    if len(stored) != trailer.nbytes:
        raise BadPayload(f"an index of {trailer.nbytes} bytes in a piece of {len(stored)}")
    if blake3(stored).digest(length=16) != trailer.checksum:
        raise BadPayload("the index does not have its checksum")
    return PackIndex.parse(stored, trailer)


def check_pack(body: Buffer, pack: str) -> PackIndex:
    """Check a whole pack, every byte of it, and return its index.

    Args:
        pack: the id it is stored under.

    Raises:
        BadPayload: anything is not as `PackBuilder` wrote it.
    """
    view = memoryview(body)
    if canonical.content_id(view) != pack:
        raise BadPayload("the bytes are not those the pack is named by")
    if len(view) < _HEAD_BYTES + TRAILER_BYTES or view[: len(MAGIC)] != MAGIC:
        raise BadPayload("no pack starts with these bytes")
    trailer = read_trailer(view[-TRAILER_BYTES:], len(view))
    index = read_index(view[trailer.offset :], len(view))
    end = _HEAD_BYTES
    for frame in index.frames:
        _check_zeros(view[end : frame.offset])
        end = frame.offset + frame.nbytes
        check_payload(view[frame.offset : end], frame)
    _check_zeros(view[end : trailer.offset])
    return index


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _check_zeros(padding: memoryview) -> None:
    if any(padding):
        raise BadPayload("padding that is not zero")


def _index_body(layout: str, frames: Sequence[Frame]) -> bytes:
    names = sorted({frame.codec for frame in frames})
    numbers = {name: number for number, name in enumerate(names)}
    entries = [
        (
            frame.place,
            numbers[frame.codec],
            _OPERATIONS.index(frame.operation),
            frame.offset,
            frame.nbytes,
            frame.checksum.hex(),
            frame.num_changes,
            *(() if frame.box is None else ((*frame.box.offsets, *frame.box.lengths),)),
        )
        for frame in frames
    ]
    # Integers and ASCII under sorted keys, which the standard library writes as RFC 8785 does, and three times faster.
    return json.dumps({"codecs": names, "frames": entries, "layout": layout}, separators=(",", ":")).encode()


def _parse_frame(entry: list[Any], names: list[str]) -> Frame:
    place, number, operation, offset, nbytes, checksum, num_changes, *box = entry
    return Frame(
        _count(place),
        _parse_box(*box) if box else None,
        names[_count(number)],
        _OPERATIONS[_count(operation)],
        _count(offset),
        _count(nbytes),
        bytes.fromhex(_match(_CHECKSUM, checksum)),
        _count(num_changes),
    )


def _parse_box(entry: list[Any]) -> Box:
    numbers = tuple(_count(number) for number in entry)
    dims, odd = divmod(len(numbers), 2)
    if odd:
        raise ValueError(f"a box of {len(numbers)} numbers")
    return Box(numbers[:dims], numbers[dims:])


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= canonical.MAX_INTEGER:
        raise ValueError(f"{str(value)[:40]!r} is not a count")
    return value


def _match(pattern: re.Pattern[str], value: Any) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{str(value)[:80]!r} does not have the form {pattern.pattern}")
    return value
