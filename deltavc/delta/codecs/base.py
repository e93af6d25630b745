"""What a codec is, and what a reader knows of a frame before it decodes one.

A codec is a pure pair: change to bytes, bytes to change. Everything a decoder needs beyond the payload
stands in the frame's header, which the pack's index keeps, so a decoder can refuse before it allocates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from deltavc.change import Change, Operation
from deltavc.errors import BadPayload

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Buffer = bytes | bytearray | memoryview
Kind = Literal["sparse", "dense"]
Algorithm = Literal["LZ4", "Snappy"]

MAX_FRAME_BYTES = 64 << 20
"""Bytes of lanes in the box of one frame; larger tensors are cut along their leading dimensions."""


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """What is known of a frame before its payload is looked at.

    num_lanes: lanes in the frame's box. lane_bytes: 1, 2, 4 or 8. num_changes: entries of a sparse
    change, or num_lanes for a dense one.
    """

    num_lanes: int
    lane_bytes: int
    operation: Operation
    num_changes: int

    def check(self, kind: Kind) -> None:
        """Refuse counts that no frame of this kind has.

        Raises:
            BadPayload: they are impossible.
        """
        if self.lane_bytes not in (1, 2, 4, 8) or self.operation not in ("add", "xor"):
            raise BadPayload(f"a frame of {self.lane_bytes}-byte lanes and operation {str(self.operation)[:20]!r}")
        if not 1 <= self.num_lanes <= MAX_FRAME_BYTES // self.lane_bytes:
            raise BadPayload(f"a frame of {self.num_lanes} lanes of {self.lane_bytes} bytes")
        lowest = self.num_lanes if kind == "dense" else 0
        if not lowest <= self.num_changes <= self.num_lanes:
            raise BadPayload(f"a {kind} frame of {self.num_lanes} lanes with {self.num_changes} changes")


class Codec(Protocol):
    """Writes one change as bytes and reads it back, exactly.

    Pure and synchronous, so a caller may run it on any thread. Changes are on the CPU.
    """

    @property
    def name(self) -> str:
        """Stored with every frame; never reused for other bytes."""

    @property
    def kind(self) -> Kind:
        """The kind of change it encodes and decodes."""

    @property
    def operation(self) -> Operation:
        """The operation a writer should diff with for this codec. Decoding takes the header's."""

    def encode(self, change: Change, num_lanes: int) -> bytes:
        """Write a change of `kind` over a box of `num_lanes` lanes."""

    def decode(self, payload: Buffer, header: FrameHeader) -> Change:
        """Read the change back.

        Raises:
            BadPayload: for bytes that are no encoding of a change with this header, before it allocates
                what they promise. Nothing else.
        """


class TwoLayer(Codec, Protocol):
    """A codec that comes off in two steps: `decode` is `open` after `peel`.

    What `peel` leaves are blocks that decode independently of each other, in a format that devices decode: the
    outer layer comes off on the CPU, at any time, and the inner one where the change is wanted (`nvcomp`).
    """

    @property
    def algorithm(self) -> Algorithm:
        """What the blocks are in."""

    def peel(self, payload: Buffer, header: FrameHeader) -> Buffer:
        """Take the outer layer off; the payload itself where there is none.

        Raises:
            BadPayload: for bytes that are no such layer, or one around more than this frame can take.
        """

    def block_ends(self, peeled: Buffer, header: FrameHeader) -> npt.NDArray[np.int64]:
        """Check peeled bytes, so that any decoder decodes them, and find the blocks.

        Returns:
            int64, shape (blocks + 1,): block i lies from entry i to entry i + 1 of `peeled`.

        Raises:
            BadPayload: for bytes that are no change with this header.
        """

    def open(self, peeled: Buffer, header: FrameHeader) -> Change:
        """Read the change from peeled bytes, on the CPU.

        Raises:
            BadPayload: as `block_ends` does.
        """
