"""Kernels: difference, application, composition and fingerprints of lanes, with one result on every device.

    change, moved = diff(old, new, "add", box, shape)      # what happened, and what it does to the fingerprint
    apply(lanes, change, box, shape)                       # old becomes new, in its own storage
    apply(lanes, change, box, shape, sign=-1)              # and back
    fingerprint(new, box, shape) == (fingerprint(old, box, shape) + moved) % 2**64
    moved(positions, old_lanes, new_lanes, box, shape)     # the same of a list of lanes, read from nowhere else

`box` is where the lanes lie and `shape` the whole tensor's lane shape: a lane counts in the fingerprint by
its index in the whole, so that shards add up. CPU tensors go to compiled loops (`host`), others to plain
torch (`reference`), which gives the same bits. Any function may be called from any thread, from inside the
pool's workers, and in a forked child.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from deltavc.change import Box, Change, Dense, Operation, Sparse
from deltavc.kernels import devices
from deltavc.kernels.devices import batches, together
from deltavc.kernels.many import apply_all, check_changes, compose_all, diff_all, fingerprint_all, moved_all
from deltavc.kernels.part import Listed, Part
from deltavc.kernels.segment import Segment
from deltavc.kernels.swapping import SwapTable, gather, gather_all, memory_of, offsets_of, swap

__all__ = [
    "Listed",
    "Part",
    "Segment",
    "SwapTable",
    "apply",
    "apply_all",
    "batches",
    "compose",
    "compose_all",
    "densify",
    "diff",
    "diff_all",
    "fingerprint",
    "fingerprint_all",
    "gather",
    "gather_all",
    "memory_of",
    "moved",
    "moved_all",
    "offsets_of",
    "sparsify",
    "swap",
    "together",
    "zero_fingerprint",
]


def diff(
    old: Tensor | None,
    new: Tensor,
    operation: Operation,
    box: Box,
    shape: tuple[int, ...],
    *,
    prefer: Literal["sparse", "dense"] | None = None,
    advance: bool = False,
) -> tuple[Change, int]:
    """Say what turns old lanes into new ones, and by how much that moves the fingerprint.

    Args:
        old: lanes as `new`, or None for nothing, where every lane is zero.
        new: int8, int16, int32 or int64 of shape `box.lengths`, any strides, any device.
        operation: "add" for wrapping differences, "xor" for differing bits.
        box, shape: where the lanes lie, and the whole tensor's lane shape.
        prefer: the kind of change. By default Dense when more than a quarter of the lanes changed or `old`
            is None, else Sparse.
        advance: also store `new` in `old`. If anything is raised meanwhile, even by an interrupt, `old` gets
            back what it held.

    Returns:
        The change, in memory of its own on the lanes' device, and the sum of mix64(new) - mix64(old) over
        the lanes that changed, in [0, 2**64): `fingerprint(new)` is that of `old` (of zeros) plus this.

    Raises:
        ValueError: arguments that do not fit each other.
    """
    return diff_all([old], [Part(new, box, shape)], operation, prefer=prefer, advance=advance)[0]


def apply(lanes: Tensor, change: Change, box: Box, shape: tuple[int, ...], sign: Literal[1, -1] = 1) -> int:
    """Change lanes in place, in their own storage.

    Args:
        lanes: int8, int16, int32 or int64 of shape `box.lengths`, any strides without overlap, any device.
        change: on the same device, of the same lane width.
        box, shape: where the lanes lie, and the whole tensor's lane shape.
        sign: -1 takes the change back. An "xor" is its own inverse.

    Returns:
        The sum of mix64(after) - mix64(before) over the lanes, in [0, 2**64).

    Raises:
        BadPayload: the change is not one of these lanes: values of another width or number, positions
            outside the box or out of order. The lanes are as they were.
        ValueError: other arguments that do not fit each other.
    """
    return apply_all([Part(lanes, box, shape)], [change], sign)[0]


def compose(first: Change, second: Change, num_lanes: int) -> Change:
    """Make one change of two in a row over a box of `num_lanes` lanes.

    Returns:
        Sparse if both are, without the lanes that end as they began; else Dense. On their device, in memory
        of its own.

    Raises:
        BadPayload: one is not a change of such a box, or they differ in lane width.
        ValueError: they differ in operation.
    """
    return compose_all([first], [second], [num_lanes])[0]


def fingerprint(lanes: Tensor, box: Box, shape: tuple[int, ...]) -> int:
    """Return the position-aware sum that names these lanes: of mix64(global index, value), modulo 2**64.

    Additive: the fingerprint of a tensor is the sum of the fingerprints of its boxes, so ranks can compute
    their shares without seeing the whole.

    Args:
        lanes: int8, int16, int32 or int64 of shape `box.lengths`, any strides, any device.
        box, shape: where the lanes lie, and the whole tensor's lane shape.

    Raises:
        ValueError: arguments that do not fit each other.

    Source: the additive construction of Bellare and Micciancio (EUROCRYPT 1997), with `reference.mix64` as
    the mixer. It detects faults; it does not resist someone who chooses the weights.
    """
    return fingerprint_all([Part(lanes, box, shape)])[0]


def moved(positions: Tensor, old: Tensor, new: Tensor, box: Box, shape: tuple[int, ...]) -> int:
    """Say by how much the fingerprint moves when listed lanes of a box go from `old` to `new`.

    Args:
        positions: int64, shape (n,), strictly ascending row-major indices within the box.
        old, new: int8, int16, int32 or int64, shape (n,), on the positions' device. They may be equal.
        box, shape: where the lanes lie, and the whole tensor's lane shape.

    Returns:
        The sum of mix64(global index, new) - mix64(global index, old), in [0, 2**64).

    Raises:
        BadPayload: positions outside the box or out of order, or not one old and one new lane of the same
            width for each.
        ValueError: other arguments that do not fit each other.
    """
    return moved_all([Listed(positions, old, new, box, shape)])[0]


def zero_fingerprint(box: Box, shape: tuple[int, ...]) -> int:
    """The fingerprint of a box whose lanes are all zero, of whatever width."""
    if not box.fits(shape):
        raise ValueError(f"{box} does not lie in a tensor of lane shape {shape}")
    return int(devices.host().zero_fingerprint(box, shape))


def densify(change: Change, num_lanes: int, lane_dtype: torch.dtype) -> Dense:
    """The same change with a value for every lane of its box.

    Raises:
        BadPayload: it is not a change of a box of `num_lanes` lanes of this dtype.
    """
    check_changes([change], [num_lanes], [lane_dtype])
    if isinstance(change, Dense):
        return change
    dense: Dense = devices.single(change.values.device).densify(change, num_lanes)
    return dense


def sparsify(change: Change) -> Sparse:
    """The same change with only the lanes that it changes."""
    if isinstance(change, Sparse):
        return change
    box = Box.whole((change.num_changes,))
    sparse, _ = diff(None, change.values, change.operation, box, box.lengths, prefer="sparse")
    assert isinstance(sparse, Sparse)
    return sparse
