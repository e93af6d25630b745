"""Shards: a live tensor that is a box of a checkpoint's tensor, as the ranks of a trainer or an engine hold it.

Shard(rows, global_shape=(4096, 1024), offsets=(2048, 0))     # rows of shape (1024, 1024): 2048..3071 of 4096
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

from torch import Tensor

from deltavc.change import Box
from deltavc.errors import BadState


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """A tensor that is the box at `offsets` of a tensor of `global_shape`.

    tensor: any dtype, strides and device; its shape is the box's. A view is fine: it is never copied.
    global_shape: of the whole tensor, in elements. offsets: where the box begins, in elements, one a dimension.

    Raises:
        BadState: no tensor; the numbers of dimensions differ; or the box does not lie in the whole tensor.
    """

    tensor: Tensor
    global_shape: tuple[int, ...]
    offsets: tuple[int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.tensor, Tensor):
            raise BadState(f"a shard is of a tensor, not of a {type(self.tensor).__name__}")
        object.__setattr__(self, "global_shape", tuple(map(operator.index, self.global_shape)))
        object.__setattr__(self, "offsets", tuple(map(operator.index, self.offsets)))
        shape = tuple(self.tensor.shape)
        if not len(shape) == len(self.global_shape) == len(self.offsets):
            dims = (
                f"{len(shape)} dimensions, its global shape {len(self.global_shape)}, its offsets {len(self.offsets)}"
            )
            raise BadState(f"a shard has {dims}; they have to be equal")
        if not Box(self.offsets, shape).fits(self.global_shape):
            where = f"a shard of shape {list(shape)} at {list(self.offsets)}"
            raise BadState(f"{where} does not lie in a tensor of shape {list(self.global_shape)}")
