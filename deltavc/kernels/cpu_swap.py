"""Loops of a live update on the CPU: gather, compare, write.

A swap is a table of rows, each with the addresses of a stretch of one segment; a thread walks many rows in one
call, because a model has hundreds of tensors and a pause of a millisecond has no time to enter Python for each.

    row    memory, offsets (0: a block, which begins at memory), old, new, lanes

Live lanes are far apart, and most of the time goes into reaching them. `compare_and_write` therefore goes there
once: it writes a row as soon as all its lanes are found to be the old ones, while the caches hold them, and tells
which rows it wrote, so that they can be written back if a lane of another row is not.
"""

from __future__ import annotations

from typing import Any

from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from deltavc.kernels.cpu import Array, u64
from deltavc.kernels.cpu_compile import kernel

MEMORY, OFFSETS, OLD, NEW, LANES = range(5)


def _as_pointer(typing: Any, address: Any, like: Any) -> Any:
    """An address as a pointer to what `like` is an array of."""
    pointer: Any = types.CPointer(like.dtype)  # type: ignore[no-untyped-call]

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(pointer))

    return pointer(types.int64, like), generate


_pointer: Any = intrinsic(_as_pointer)


@kernel
def gather(memory: Array, offsets: Array, values: Array) -> None:
    """Read the lanes at the offsets."""
    for q in range(len(offsets)):
        values[q] = memory[u64(offsets[q])]


@kernel
def compare(rows: Array, counts: Array, like: Array) -> None:
    """Count each row's lanes that are not the old ones. `like` has the lanes' type."""
    for r in range(len(rows)):
        counts[r] = _differ(rows[r], like)


@kernel
def compare_and_write(rows: Array, counts: Array, written: Array, like: Array) -> None:
    """Count as `compare` does, and write the new lanes of rows before the first that has any to count."""
    clear = True
    for r in range(len(rows)):
        counts[r] = _differ(rows[r], like)
        clear = clear and counts[r] == 0
        # Said before it is done: writing old lanes over old ones does no harm.
        written[r] = clear
        if clear:
            _put(rows[r], NEW, like)


@kernel
def write(rows: Array, wanted: Array, values: int, like: Array) -> None:
    """Write the lanes of the rows that are wanted: the column of their addresses is `values`, OLD or NEW."""
    for r in range(len(rows)):
        if wanted[r]:
            _put(rows[r], values, like)


@kernel
def _differ(row: Array, like: Array) -> int:
    n = row[LANES]
    old = carray(_pointer(row[OLD], like), (n,))
    found = 0
    if row[OFFSETS] == 0:
        block = carray(_pointer(row[MEMORY], like), (n,))
        for j in range(n):
            found += block[j] != old[j]
    else:
        memory = carray(_pointer(row[MEMORY], like), (1,))  # how long it is was asked while staging
        offsets = carray(_pointer(row[OFFSETS], row), (n,))
        for q in range(n):
            found += memory[u64(offsets[q])] != old[q]
    return found


@kernel
def _put(row: Array, values: int, like: Array) -> None:
    n = row[LANES]
    source = carray(_pointer(row[values], like), (n,))
    if row[OFFSETS] == 0:
        block = carray(_pointer(row[MEMORY], like), (n,))
        for j in range(n):
            block[j] = source[j]
    else:
        memory = carray(_pointer(row[MEMORY], like), (1,))
        offsets = carray(_pointer(row[OFFSETS], row), (n,))
        for q in range(n):
            memory[u64(offsets[q])] = source[q]
