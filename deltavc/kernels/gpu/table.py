"""Tables: one launch for many tensors.

A launch gets a table with a row for each tensor: addresses, counts and strides. Every program is told its row
by `owners`, works on the CHUNK of lanes (or entries of a list) that is its own, and walks it BLOCK by BLOCK.

    rows    ┌ first program │ lanes │ strides at │ ... │ addresses ┐     owners  [0, 0, 0, 1, 2, 2]
            │ 0             │ 40000 │          0 │     │           │                └─ program 3 works on row 1
            │ 3             │   100 │          4 │     │           │
            └ 4             │ 20000 │          8 │     │           ┘

Strides are stored with the dimensions merged where they can be, so a contiguous tensor has one dimension
whatever its shape, and finding a lane's place costs a division for each dimension but the outermost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

from deltavc.kernels.part import Listed, Part

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")

LANES: dict[int, Any] = {1: tl.uint8, 2: tl.uint16, 4: tl.uint32, 8: tl.uint64}
"""Triton's type for lanes of 1, 2, 4 and 8 bytes."""


def kernel(function: _F) -> _F:
    """Mark a function that Triton compiles, or that its interpreter runs when TRITON_INTERPRET was set."""
    marked: _F = triton.jit(function)
    return marked


@kernel
def _nothing() -> None:
    pass


INTERPRETED = not isinstance(_nothing, triton.JITFunction)
"""Whether kernels run in Triton's interpreter, on CPU tensors."""

# Eight lanes a thread: 16 bytes of bf16, the widest load there is. The interpreter wants few, wide programs,
# and still several of them for a tensor of a test.
BLOCK = 1 << 14 if INTERPRETED else 1 << 11
CHUNK = 2 * BLOCK if INTERPRETED else 8 * BLOCK
NUM_WARPS = 8

ALIGNMENT = 16
"""Bytes. Tensors that begin there can be read in the widest loads."""

Dims = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Row:
    """What a launch does with one tensor or list; the kernels say which fields they read.

    count: lanes or entries. dims: from the innermost, each with its length and its steps in the global index
    and in the memory of `a` and `b`. index: the first lane's global index. a, b, c, d: addresses.
    """

    count: int
    dims: Dims = ()
    index: int = 0
    how: int = 0
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    steps: int = 0
    own: int = 0
    other: int = 0


class Table:
    """Rows on the device, and the programs that work on them."""

    def __init__(self, rows: Sequence[Row], device: torch.device) -> None:
        self.num_rows = len(rows)
        self.firsts = [0]
        body: list[int] = []
        tail: list[int] = []
        for given in rows:
            row = given if given.count else Row(0)  # of an empty tensor, steps may be of any size
            programs = -(-row.count // CHUNK)
            body += (self.firsts[-1], programs, row.count, NUM_COLUMNS * len(rows) + len(tail), len(row.dims))
            body += (_wrapped(row.index), row.how, row.a, row.b, row.c, row.d, row.steps, row.own, row.other)
            for length, index_step, *steps in row.dims:
                tail += (length, _wrapped(index_step), *steps, *[0] * (2 - len(steps)))
            self.firsts.append(self.firsts[-1] + programs)
        self.num_programs = self.firsts[-1]
        self.device = device
        self._rows = torch.tensor(body + tail, dtype=torch.int64).to(device)
        columns = self._rows[: len(body)].view(len(rows), NUM_COLUMNS)
        numbers = torch.arange(len(rows), dtype=torch.int32, device=device)
        # By the device itself: a model of 55 GB has a million programs. The size is said so that nobody waits.
        self.owners = torch.repeat_interleave(numbers, columns[:, 1], output_size=self.num_programs)

    def launch(self, function: Callable[..., None], *arguments: Tensor, **constants: Any) -> None:
        """Start a kernel on the current stream of the rows' device."""
        if not self.num_programs:
            return
        run: Any = function
        with torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext():
            run[(self.num_programs,)](
                self._rows,
                self.owners,
                *arguments,
                **constants,
                BLOCK=BLOCK,
                CHUNK=CHUNK,
                num_warps=NUM_WARPS,
                enable_fp_fusion=False,  # there are no floats; unsaid, some releases of Triton warn
            )


def dims_of(part: Part | Listed, *tensors: Tensor) -> Dims:
    """Lengths and steps of a part's lanes, for their global indices and the memory of up to two tensors."""
    lengths, shape = part.box.lengths, part.shape
    steps = [1]
    for bound in shape[:0:-1]:
        steps.append(steps[-1] * bound)
    found: list[list[int]] = []
    strides = [tensor.stride() for tensor in tensors]
    for dim in range(len(shape) - 1, -1, -1):
        length, here = lengths[dim], [steps[len(shape) - 1 - dim], *[stride[dim] for stride in strides]]
        if length == 1:
            continue
        if found and here == [found[-1][0] * step for step in found[-1][1:]]:
            found[-1][0] *= length
        else:
            found.append([length, *here])
    return tuple(tuple(dim) for dim in found) or ((1, *[0] * (1 + len(tensors))),)


def first_index(part: Part | Listed) -> int:
    """The global index of a part's first lane."""
    index = 0
    for offset, bound in zip(part.box.offsets, part.shape, strict=True):
        index = index * bound + offset
    return index


def flat(*tensors: Tensor | None) -> bool:
    """Whether all of them can be walked from end to end in wide loads."""
    return all(tensor is None or (tensor.is_contiguous() and tensor.data_ptr() % ALIGNMENT == 0) for tensor in tensors)


def groups(items: Iterable[_T], key: Callable[[_T], Hashable]) -> list[list[_T]]:
    """Items that go into one launch."""
    found: dict[Hashable, list[_T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.values())


def _wrapped(number: int) -> int:
    """A number modulo 2**64, as the signed one that stands for it: global indices wrap."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


# The columns of a row.
FIRST, PROGRAMS, COUNT, DIMS, NUM_DIMS, INDEX, HOW, A, B, C, D, STEPS, OWN, OTHER = map(tl.constexpr, range(14))
NUM_COLUMNS = 14
COLUMNS = tl.constexpr(NUM_COLUMNS)
