"""Runs: the global indices of a box's lanes as a few arithmetic series.

A lane's global index is its row-major place in the tensor's whole lane shape. Within a box, indices rise by
a constant along its innermost dimension, and along several when they meet end to end: a whole tensor, or a
range of its leading dimension, is one run. A kernel's inner loop then only adds.

    Runs.of(Box((2, 0), (3, 8)), (100, 8))    # rows 2..4:    one run of 24 lanes from 16
    Runs.of(Box((0, 2), (100, 4)), (100, 8))  # columns 2..5: 100 runs of 4 lanes, 8 apart, from 2
"""

from __future__ import annotations

from dataclasses import dataclass

from deltavc.change import Box


@dataclass(frozen=True, slots=True)
class Runs:
    """Where a box's lanes lie in the whole tensor, in row-major order of the box.

    first: the global index of the first lane. length, stride: lanes of one run and the distance between
    two of them. outer: how many runs lie how far apart, as (count, stride) from the innermost outwards.
    """

    first: int
    length: int
    stride: int
    outer: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, box: Box, shape: tuple[int, ...]) -> Runs:
        """Describe a box of a tensor of this lane shape, in as few and long runs as can be."""
        first, step = 0, 1
        dims: list[tuple[int, int]] = []
        for offset, length, bound in zip(reversed(box.offsets), reversed(box.lengths), reversed(shape), strict=True):
            first += offset * step
            if dims and step == dims[-1][0] * dims[-1][1]:
                dims[-1] = (dims[-1][0] * length, dims[-1][1])
            elif length != 1:
                dims.append((length, step))
            step *= bound
        inner, *outer = dims or [(1, 1)]
        return cls(first, *inner, tuple(outer))
