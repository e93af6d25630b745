"""Ways to write one step of a model as bytes.

A scheme is made from the lanes before and after a step; what it needs beside them, such as files, it makes then.

    encode   both states -> bytes
    decode   bytes -> what is to be done to the weights
    apply    that, done to the live weights, in place

Those that work tensor by tensor do so in the frames in which deltavc writes them, on the same threads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from bench.peers import commands
from deltavc import kernels, packing
from deltavc.change import Box, Change, Sparse
from deltavc.delta import codecs
from deltavc.delta.codecs.base import FrameHeader
from deltavc.delta.frames import frame_boxes
from deltavc.kernels import pool

Lanes = dict[str, Tensor]


class Scheme(Protocol):
    """One step, by one way of writing it."""

    nbytes: int

    def encode(self) -> None: ...

    def decode(self) -> None: ...

    def apply(self, live: Lanes) -> None: ...


@dataclass(frozen=True, slots=True)
class Frame:
    """A part of a tensor before and after a step, and where it lies."""

    name: str
    box: Box
    shape: tuple[int, ...]
    old: Tensor
    new: Tensor


@dataclass(frozen=True, slots=True)
class _Written:
    codec: str
    header: FrameHeader
    payload: bytes


class OwnCodec:
    """deltavc's kernels and codecs: one codec for all frames, or the one that each frame chooses."""

    def __init__(self, old: Lanes, new: Lanes, codec: str | None = None) -> None:
        self._frames = list(frames(old, new))
        self._codec = codec
        self._written: list[_Written] = []
        self._changes: list[Change] = []

    @property
    def nbytes(self) -> int:
        return sum(len(one.payload) for one in self._written)

    def encode(self) -> None:
        self._written = pool.run([functools.partial(write_frame, frame, self._codec) for frame in self._frames])

    def decode(self) -> None:
        self._changes = pool.run([functools.partial(read_frame, one) for one in self._written])

    def apply(self, live: Lanes) -> None:
        tasks = [
            functools.partial(kernels.apply, live[frame.name][frame.box.index], change, frame.box, frame.shape)
            for frame, change in zip(self._frames, self._changes, strict=True)
        ]
        pool.run(tasks)


def write_frame(frame: Frame, codec: str | None) -> _Written:
    """What a commit does to a frame, but for decoding it again to check."""
    named = None if codec is None else codecs.codec(codec)
    operation, prefer = ("add", None) if named is None else (named.operation, named.kind)
    change, _ = kernels.diff(frame.old, frame.new, operation, frame.box, frame.shape, prefer=prefer)
    if named is None:
        named = codecs.codec(codecs.choose(change, frame.box.num_lanes))
        if named.kind == "dense" and isinstance(change, Sparse):
            change = kernels.densify(change, frame.box.num_lanes, change.values.dtype)
        elif named.kind == "sparse":
            change = kernels.sparsify(change)
    payload = named.encode(change, frame.box.num_lanes)
    header = FrameHeader(frame.box.num_lanes, frame.new.element_size(), change.operation, change.num_changes)
    return _Written(named.name, header, payload)


def read_frame(written: _Written) -> Change:
    return codecs.codec(written.codec).decode(written.payload, written.header)


class PositionsAndValues:
    """An int32 position and the new value for every lane that changed: 48 bits of bf16, 40 of one byte."""

    def __init__(self, old: Lanes, new: Lanes) -> None:
        self._frames = [
            (frame.name, frame.box, frame.old.numpy().reshape(-1), frame.new.numpy().reshape(-1))
            for frame in frames(old, new)
        ]
        self._written: list[bytes] = []
        self._read: list[tuple[Any, Any]] = []

    @property
    def nbytes(self) -> int:
        return sum(map(len, self._written))

    def encode(self) -> None:
        self._written = pool.run([functools.partial(self._write, old, new) for _, _, old, new in self._frames])

    def decode(self) -> None:
        tasks = zip(self._written, self._frames, strict=True)
        self._read = pool.run([functools.partial(self._split, body, new.dtype) for body, (*_, new) in tasks])

    def apply(self, live: Lanes) -> None:
        tasks = [
            functools.partial(self._put, live[name][box.index].view(-1).numpy(), *changes)
            for (name, box, *_), changes in zip(self._frames, self._read, strict=True)
        ]
        pool.run(tasks)

    @staticmethod
    def _write(old: Any, new: Any) -> bytes:
        positions = np.flatnonzero(old != new)
        return positions.astype(np.int32).tobytes() + new[positions].tobytes()

    @staticmethod
    def _split(body: bytes, dtype: Any) -> tuple[Any, Any]:
        count = len(body) // (4 + dtype.itemsize)
        return np.frombuffer(body, np.int32, count), np.frombuffer(body, dtype, count, offset=4 * count)

    @staticmethod
    def _put(lanes: Any, positions: Any, values: Any) -> None:
        lanes[positions] = values


class FullCheckpoint:
    """All weights in safetensors, in memory; `apply` is the copy that nothing dense can be faster than."""

    def __init__(self, old: Lanes, new: Lanes) -> None:
        self._new = new
        self._body = b""
        self._read: Lanes = {}

    @property
    def nbytes(self) -> int:
        return len(self._body)

    def encode(self) -> None:
        self._body = safetensors.torch.save(self._new)

    def decode(self) -> None:
        self._read = safetensors.torch.load(self._body)

    def apply(self, live: Lanes) -> None:
        for name, tensor in live.items():
            tensor.copy_(self._read[name])


class ZstdPatch:
    """`zstd --patch-from`, from file to file. Nothing is applied: it writes the whole new file."""

    def __init__(self, folder: Path, old: Lanes, new: Lanes) -> None:
        self._old, self._new, self._patch, self._back = (folder / name for name in ("old", "new", "patch", "back"))
        safetensors.torch.save_file(old, self._old)
        safetensors.torch.save_file(new, self._new)

    @property
    def nbytes(self) -> int:
        return self._patch.stat().st_size

    def encode(self) -> None:
        make_patch(self._old, self._new, self._patch)

    def decode(self) -> None:
        apply_patch(self._old, self._patch, self._back)

    def apply(self, live: Lanes) -> None:
        for name, tensor in safetensors.torch.load_file(self._back).items():
            live[name].copy_(tensor)


def make_patch(old: Path, new: Path, patch: Path) -> None:
    commands.run("zstd", "-q", "-f", "-T0", _window(new), f"--patch-from={old}", new, "-o", patch)


def apply_patch(old: Path, patch: Path, new: Path) -> None:
    commands.run("zstd", "-q", "-f", "-d", _window(old), f"--patch-from={old}", patch, "-o", new)


def _window(file: Path) -> str:
    """The window has to hold the whole file, or most of the old one cannot be found."""
    return f"--long={max(27, file.stat().st_size.bit_length() + 1)}"


def frames(old: Lanes, new: Lanes) -> Iterator[Frame]:
    """Both states in the frames in which a commit writes them."""
    for name, after in new.items():
        for box in frame_boxes(tuple(after.shape), after.element_size(), packing.FRAME_BYTES):
            yield Frame(name, box, tuple(after.shape), old[name][box.index], after[box.index])


def schemes(folder: Path) -> dict[str, Callable[[Lanes, Lanes], Scheme]]:
    """All schemes that can be had here, by the names that they have in tables. `folder` is for files."""
    found: dict[str, Callable[[Lanes, Lanes], Scheme]] = {"deltavc": OwnCodec}
    for name in ("xor-zstd", "xor-lz4", "xor-snappy-zstd", "xor-lz4hc-zstd"):
        found[name] = functools.partial(OwnCodec, codec=name)
    found["int32 + values"] = PositionsAndValues
    if commands.installed("zstd"):
        found["zstd --patch-from"] = functools.partial(ZstdPatch, folder)
    found["full"] = FullCheckpoint
    return found


def same(a: Lanes, b: Lanes) -> bool:
    return a.keys() == b.keys() and all(torch.equal(tensor, b[name]) for name, tensor in a.items())
