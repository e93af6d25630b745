"""Held lanes: one whole tensor per name, or some boxes of it, in memory, on a device, on disk, or in the caller's own.

A walk works on them; a writer keeps them between commits as its base. One of many ranks holds boxes only.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Protocol, Self

import torch
from torch import Tensor

from deltavc.change import Box
from deltavc.errors import WeightsTooLarge
from deltavc.kernels import pool
from deltavc.lanes import LANE_DTYPES
from deltavc.layout import Layout, TensorSpec
from deltavc.store.files import file_errors

Allocate = Callable[[TensorSpec], Tensor]
"""Gives lanes of the tensor's lane shape, all zero."""

MAPPED = 64 << 10
"""Bytes of the smallest tensor that is worth a file. Linux maps 65,530 of them into a process at most."""


class Held(Protocol):
    """Lanes of boxes of tensors, by name; allocated zero when a tensor starts, forgotten when it is not kept."""

    def boxes(self, tensor: TensorSpec) -> Sequence[Box]:
        """The boxes of this tensor that are held, or would be once it starts."""

    def at(self, name: str, box: Box) -> Tensor:
        """The lanes of a box within one that is held, shape `box.lengths`; a view."""

    def start(self, name: str, layout: Layout) -> None:
        """Make the tensor of this name in `layout` present, all zero."""

    def keep(self, names: Set[str]) -> None:
        """Forget every tensor but these."""

    def copy(self) -> Self:
        """Another collection of the same lanes, to go back to after tensors came and went."""


class HeldLanes:
    """Whole tensors."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._lanes: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self._lanes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lanes)

    def boxes(self, tensor: TensorSpec) -> Sequence[Box]:
        return [Box.whole(tensor.lane_shape)]

    def at(self, name: str, box: Box) -> Tensor:
        whole = self._lanes[name]
        return whole[box.index] if box.lengths else whole

    def start(self, name: str, layout: Layout) -> None:
        self._lanes[name] = self._allocate(layout.tensors[layout.place[name]])

    def keep(self, names: Set[str]) -> None:
        self._lanes = {name: lanes for name, lanes in self._lanes.items() if name in names}

    def copy(self) -> HeldLanes:
        copied = HeldLanes(self._allocate)
        copied._lanes = dict(self._lanes)
        return copied


def machine_memory() -> int:
    """Bytes of main memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_room(nbytes: int) -> None:
    """Refuse to hold more than the machine has: what a version says of its size may be anything.

    Raises:
        WeightsTooLarge
    """
    if nbytes > (has := machine_memory()):
        raise WeightsTooLarge(nbytes, has)


def fresh(device: torch.device | str) -> Allocate:
    """New tensors on a device. Raises WeightsTooLarge when it allocates."""

    def allocate(tensor: TensorSpec) -> Tensor:
        if torch.device(device).type == "cpu":
            check_room(tensor.nbytes)
        lanes = torch.empty(tensor.lane_shape, dtype=LANE_DTYPES[tensor.lane_bytes], device=device)
        return pool.apart(lanes.device, lanes.zero_)

    return allocate


def borrowed(buffers: Mapping[str, Tensor], layout: Layout) -> Allocate:
    """The caller's own lanes where a tensor is as in `layout`, new tensors on the CPU otherwise."""
    other = fresh("cpu")

    def allocate(tensor: TensorSpec) -> Tensor:
        place = layout.place.get(tensor.name)
        if place is None or tensor.name not in buffers:
            return other(tensor)
        target = layout.tensors[place]
        if (target.dtype, target.shape) != (tensor.dtype, tensor.shape):
            return other(tensor)
        lanes = buffers[tensor.name]
        return pool.apart(lanes.device, lanes.zero_)

    return allocate


def on_disk(directory: Path) -> Allocate:
    """Files in this directory, mapped into memory; small tensors in memory. No file outlives its tensor or its process:
    once it is mapped it has no name.

    Raises:
        StoreFull, StoreDenied, StoreUnavailable: when it allocates. The room is taken at once: a disk that turned out
            to be full at a write to mapped memory would kill the process.
    """

    def allocate(tensor: TensorSpec) -> Tensor:
        if tensor.nbytes < MAPPED:
            return fresh("cpu")(tensor)
        with file_errors(str(directory), "keeping the base"), tempfile.NamedTemporaryFile(dir=directory) as file:
            os.posix_fallocate(file.fileno(), 0, tensor.nbytes)
            # Unlike Python's own mmap, this keeps no file open: models have more tensors than a process may have files.
            dtype = LANE_DTYPES[tensor.lane_bytes]
            mapped = torch.from_file(file.name, shared=True, size=tensor.num_lanes, dtype=dtype)
        return mapped.view(tensor.lane_shape)

    return allocate
