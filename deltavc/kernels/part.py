"""Parts: lanes and where they lie, as the kernels that take many tensors at once want them."""

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
