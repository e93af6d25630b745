"""Places: the live memory that one checkpoint tensor, or a box of it, is held in.

binding ── places_of ──> places, each checked against the checkpoint's tensor and the live state's storages
places ── check_apart ──> no byte is in two of them
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deltavc.change import Box
from deltavc.errors import BadState, LayoutMismatch
from deltavc.lanes import dtype_name
from deltavc.layout import TensorSpec
from deltavc.regions import Region, meeting
from deltavc.shard import Shard
from deltavc.weights.describe import CASTABLE, check_tensor

StorageId = tuple[torch.device, int]
"""A storage: its device and its address there."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A view of live memory, and the box of a checkpoint tensor that it holds.

    spec: of the checkpoint tensor. box: in elements. region: the bytes of the view; None if it has no elements.
    """

    spec: TensorSpec
    view: Tensor
    box: Box
    region: Region | None

    @property
    def identity(self) -> Hashable:
        """Equal for places that hold the same elements of a tensor at the same addresses."""
        dims = zip(self.view.stride(), self.view.shape, strict=True)
        strides = tuple(stride if length != 1 else 0 for stride, length in dims)
        return self.view.device, self.view.data_ptr(), strides, self.box


def live_tensor(name: str, value: Any) -> Tensor:
    """Return `value` if it is a dense tensor of a supported dtype with values in its own storage.

    Raises:
        BadState, UnsupportedDtype: it is not; says which and why.
    """
    if type(value).__name__ == "DTensor":
        raise BadState("is a DTensor: give its to_local() as live tensor, and bind that as a deltavc.Shard", name)
    tensor = check_tensor(name, value)
    dtype_name(tensor.dtype, name)
    return tensor


def storage_id(tensor: Tensor) -> StorageId:
    return tensor.device, tensor.untyped_storage().data_ptr()


def places_of(spec: TensorSpec, binding: Any, storages: Set[StorageId]) -> list[Place]:
    """Check what a checkpoint tensor was bound to.

    Args:
        spec: the checkpoint tensor.
        binding: a tensor that is the whole of it, a shard of it or a sequence of shards.
        storages: those of the live state.

    Raises:
        BadState: it is none of these; shards that overlap; memory that is not the live state's or that cannot be
            written to.
        LayoutMismatch: another dtype or shape.
    """
    if isinstance(binding, Tensor):
        _check_storage(spec, binding, storages)
        return [place_of(spec, binding)]
    shards = [binding] if isinstance(binding, Shard) else binding
    if not isinstance(shards, Sequence) or not all(isinstance(shard, Shard) for shard in shards) or not shards:
        raise BadState(
            "is bound to something that is not a tensor, a deltavc.Shard or a list of these shards", spec.name
        )
    for shard in shards:
        _check_storage(spec, shard.tensor, storages)
    places = [_place(spec, shard.tensor, shard.global_shape, shard.offsets) for shard in shards]
    boxes = [place.box for place in places if place.box.num_lanes]
    if (met := meeting([Region.of_box(box, spec.shape) for box in boxes])) is not None:
        one, other = (f"{list(boxes[number].lengths)} at {list(boxes[number].offsets)}" for number in met)
        raise BadState(f"is bound to shards that overlap: {one} and {other}", spec.name)
    return places


def place_of(spec: TensorSpec, view: Tensor) -> Place:
    """The place of a tensor that is held as a whole.

    Raises:
        LayoutMismatch: another dtype or shape than the checkpoint tensor's.
        BadState: memory that cannot be written to element by element.
    """
    shape = tuple(view.shape)
    return _place(spec, view, shape, (0,) * len(shape))


def check_apart(places: Sequence[Place]) -> None:
    """Raise LayoutMismatch if a byte of live memory is in two of these places, or twice in one."""
    held = [(place, place.region) for place in places if place.region is not None]
    met = meeting([region for _, region in held])
    if met is None:
        return
    one, other = (held[number][0].spec for number in sorted(met))
    if met[0] == met[1]:
        raise LayoutMismatch(one.name, "is bound to a view whose elements share memory")
    if one.name == other.name:
        raise LayoutMismatch(one.name, "is bound to two shards in the same memory")
    if (one.tie or one.name) == (other.tie or other.name):
        reason = f"shares memory with {one.name!r}, which it is tied to, but not all of it in the same order"
        raise LayoutMismatch(other.name, f"{reason}: bind both to the same view, or leave one out")
    reason = f"shares memory with {one.name!r} in the live state, but not in the version"
    raise LayoutMismatch(other.name, f"{reason}: bind each to memory of its own, or commit them tied")


def _check_storage(spec: TensorSpec, view: Tensor, storages: Set[StorageId]) -> None:
    if storage_id(live_tensor(spec.name, view)) not in storages and view.numel():
        raise BadState(
            "is bound to memory of no live tensor: bind a view, not a copy, of a tensor of the live state; what is "
            "computed from a checkpoint tensor cannot follow changes of its bits",
            spec.name,
        )


def _place(spec: TensorSpec, view: Tensor, global_shape: tuple[int, ...], offsets: tuple[int, ...]) -> Place:
    dtype = dtype_name(view.dtype, spec.name)
    if dtype != spec.dtype:
        instead = (
            f"with dtype={dtype!r}" if {dtype, spec.dtype} <= CASTABLE else "the values that the live state is to hold"
        )
        raise LayoutMismatch(
            spec.name,
            f"is {dtype} in the live state, {spec.dtype} in the version; a cast does not commute with changes of bits, "
            f"so it cannot be made on the way: commit {instead}",
        )
    if global_shape != spec.shape:
        has, needs = list(global_shape), list(spec.shape)
        raise LayoutMismatch(
            spec.name,
            f"is of shape {has} in the live state, {needs} in the version; bind it to the view that has its shape, "
            "or to a deltavc.Shard",
        )
    if view.is_conj() or view.is_neg():
        raise BadState("is a lazy conjugate or negative in the live state; resolve it first", spec.name)
    if any(stride == 0 and length > 1 for stride, length in zip(view.stride(), view.shape, strict=True)):
        raise BadState("is expanded in the live state: its elements share memory", spec.name)
    region = Region.of(view) if view.numel() else None
    return Place(spec, view, Box(offsets, tuple(view.shape)), region)
