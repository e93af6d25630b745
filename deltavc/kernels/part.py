"""Parts and lists: lanes and where they lie, as the kernels that take many tensors at once want them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltavc.change import Box

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Lanes of a box of a tensor.

    lanes: int8, int16, int32 or int64 of shape `box.lengths`, any strides, any device. shape: the whole
    tensor's lane shape.
    """

    lanes: Tensor
    box: Box
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """Some lanes of a box of a tensor: what they were and what they are.

    positions: int64, shape (n,), strictly ascending row-major indices within the box. old, new: int8, int16,
    int32 or int64, shape (n,). All three on one device. shape: the whole tensor's lane shape.
    """

    positions: Tensor
    old: Tensor
    new: Tensor
    box: Box
    shape: tuple[int, ...]
