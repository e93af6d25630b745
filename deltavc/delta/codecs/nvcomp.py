"""Blocks decoded on an NVIDIA GPU by nvCOMP, where there is one and the package is installed.

nvCOMP is proprietary, and so an extra (`deltavc[cu12]`, `deltavc[cu13]`). The bytes are the same with and without it:
blocks are found and checked on the CPU, then decoded there or here.

    frames ── codec.peel ──> peeled ── open_on_device ──> dense changes on the device

All blocks of all frames given are one batch. The backend is nvCOMP's default: the decompression engine of a GPU
that has one, for memory that it can reach, otherwise ordinary kernels.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from deltavc.change import Dense
from deltavc.delta.codecs.base import Buffer, FrameHeader, TwoLayer
from deltavc.kernels.cpu_blocks import BLOCK
from deltavc.lanes import LANE_DTYPES

_ALIGNMENT = 16
"""Of every block on the device: what nvCOMP's documentation of `as_arrays` asks for if in doubt."""


def open_on_device(
    codec: TwoLayer, frames: Sequence[tuple[Buffer, FrameHeader]], device: torch.device | str
) -> list[Dense]:
    """Open peeled frames of one codec where their changes are wanted.

    Without nvCOMP, and on devices that are not NVIDIA's, they are opened on the CPU and copied.

    Args:
        frames: what `codec.peel` left, and the header it was given; 1 or more.

    Returns:
        A dense change for each, values on `device`, ready for its current stream.

    Raises:
        BadPayload: bytes that are no change with their header. Nothing has been sent to the device then.
        RuntimeError: the device fails.
    """
    device = torch.device(device)
    library = _library() if device.type == "cuda" and torch.version.cuda else None
    if library is None:
        opened = (codec.open(peeled, header) for peeled, header in frames)
        return [Dense(change.operation, change.values.to(device)) for change in opened]
    return _open(library, codec, frames, device)


@functools.cache
def _library() -> Any:
    """nvCOMP, or None where it is not installed."""
    try:
        from nvidia import nvcomp
    except ImportError:
        return None
    return nvcomp


def _open(
    library: Any, codec: TwoLayer, frames: Sequence[tuple[Buffer, FrameHeader]], device: torch.device
) -> list[Dense]:
    pieces: list[Buffer] = []
    made: list[tuple[int, int]] = []  # (offset, size) of each block's bytes in the output
    places: list[tuple[int, int]] = []  # and of each frame's
    total = 0
    for peeled, header in frames:
        ends = codec.block_ends(peeled, header).tolist()
        data, nbytes = memoryview(peeled), header.num_lanes * header.lane_bytes
        pieces += [data[start:end] for start, end in itertools.pairwise(ends)]
        made += [(total + first, min(BLOCK, nbytes - first)) for first in range(0, nbytes, BLOCK)]
        places.append((total, nbytes))
        total += _aligned(nbytes)
    sizes = [len(piece) for piece in pieces]
    offsets = np.cumsum([0, *(_aligned(size) for size in sizes)]).tolist()
    staging = torch.empty(offsets.pop(), dtype=torch.uint8, pin_memory=True)
    for piece, offset, size in zip(pieces, offsets, sizes, strict=True):
        staging.numpy()[offset : offset + size] = np.frombuffer(piece, np.uint8)

    # A stream of its own, because nvCOMP takes the number 0, which is torch's default stream, for "none given".
    out = torch.empty(total, dtype=torch.uint8, device=device)
    current, stream = torch.cuda.current_stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        stored = staging.to(device, non_blocking=True)
        # A codec for each call: one must not be used by two threads.
        tool = library.Codec(
            algorithm=codec.algorithm,
            device_id=out.device.index,
            cuda_stream=stream.cuda_stream,
            uncomp_chunk_size=BLOCK,
            bitstream_kind=library.BitstreamKind.RAW,
        )
        tool.decode(
            library.as_arrays(stored, offsets, sizes, stream.cuda_stream),
            out=library.as_arrays(out, *map(list, zip(*made, strict=True)), stream.cuda_stream),
        )
    current.wait_stream(stream)
    return [
        Dense(header.operation, out[start : start + nbytes].view(LANE_DTYPES[header.lane_bytes]))
        for (start, nbytes), (_, header) in zip(places, frames, strict=True)
    ]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
