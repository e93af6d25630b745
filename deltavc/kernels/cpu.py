"""The loops of the CPU kernels, compiled by numba: contiguous arrays of unsigned lanes, one thread.

`host` cuts tensors into such arrays and spreads them over the pool. Every loop lets go of the GIL, is
compiled once per lane width when it is first called, and leaves numba's own threads alone: those cannot
outlive a fork. Inner loops run over slices that start where the loop does, with nothing but additions for
indices, so that LLVM vectorises them. What mixes stays in this one file: numba tells by its date whether
compiled code that it kept is stale, and would not notice a change to a function from another.

`runs` is where the lanes lie in the whole tensor (see `pack_runs`); `place` is the position in the box of
an array's first lane. Arithmetic on lanes is in unsigned 64 bits and is cut to the lane's width when stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from deltavc.kernels.cpu_compile import count_ones, kernel, trailing_zeros
from deltavc.kernels.runs import Runs

Array = np.ndarray[Any, np.dtype[Any]]
PackedRuns = tuple[np.uint64, int, np.uint64, Array, Array]

BLOCK = 1 << 15
"""Lanes that `find` compares at a time: old, new and masks stay in the second-level cache, and positions
within a block fit 16 bits."""

ADD, SUBTRACT, XOR = 0, 1, 2

SLACK = 4
"""Entries beyond the last that `find` may write to, because it writes four at a time."""

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_FAR = (1 << 63) - 1
u64: Any = np.uint64


def pack_runs(runs: Runs) -> PackedRuns:
    """Runs as the loops take them: indices already times the golden ratio, modulo 2**64.

    Mixing an index begins with that product, and products of a series are a series.
    """
    return (
        np.uint64(runs.first * _GOLDEN & _MASK),
        runs.length,
        np.uint64(runs.stride * _GOLDEN & _MASK),
        np.array([count for count, _ in runs.outer], np.int64),
        np.array([stride * _GOLDEN & _MASK for _, stride in runs.outer], np.uint64),
    )


@kernel
def _mix(z: int) -> int:
    """The finaliser of splitmix64; `reference.mix64` names the sources."""
    z = (z ^ (z >> u64(30))) * u64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> u64(27))) * u64(0x94D049BB133111EB)
    mixed: int = z ^ (z >> u64(31))
    return mixed


@kernel
def _stretch(runs: PackedRuns, place: int, stop: int) -> tuple[int, int]:
    """How far the run at `place` goes, at most to `stop`, and the packed index of the lane at `place`."""
    first, length, stride, counts, strides = runs
    run = place // length
    start = first + u64(place - run * length) * stride
    end = min(stop, (run + 1) * length)
    for dim in range(len(counts)):
        up = run // counts[dim]
        start += u64(run - up * counts[dim]) * strides[dim]
        run = up
    return end, start


@kernel
def fingerprint(lanes: Array, place: int, runs: PackedRuns) -> int:
    """The sum of mix64 over the lanes."""
    total: int = u64(0)
    done = 0
    while done < len(lanes):
        end, start = _stretch(runs, place + done, place + len(lanes))
        part = lanes[done : end - place]
        for j in range(len(part)):
            total += _mix((start + u64(j) * runs[2]) ^ u64(part[j]))
        done = end - place
    return total


@kernel
def zero_fingerprint(place: int, stop: int, runs: PackedRuns) -> int:
    """The sum of mix64 over zero lanes at positions `place` to `stop`."""
    total: int = u64(0)
    while place < stop:
        end, start = _stretch(runs, place, stop)
        for j in range(end - place):
            total += _mix(start + u64(j) * runs[2])
        place = end
    return total


@kernel
def find(
    old: Array,
    new: Array,
    relative: Array,
    values: Array,
    counts: Array,
    progress: Array,
    place: int,
    runs: PackedRuns,
    xor: bool,
    from_nothing: bool,
    advance: bool,
) -> int:
    """Extract the lanes that differ, block by block, until all are done or the next block's do not fit.

    Args:
        old: as many lanes as new; when `from_nothing`, a block of zeros instead.
        new: the lanes to compare.
        relative: uint16, receives the position within its block of each changed lane.
        values: of the lanes' type, receives their differences.
        counts: int64, one per block, receives how many were found in it.
        progress: int64, entries found and lanes done so far; the next call goes on from there. SLACK
            entries of `relative` stay free.
        place, runs: where the first of the lanes lies.
        xor: differences are `new ^ old` instead of `new - old`.
        from_nothing: see old.
        advance: store the changed lanes of `new` in `old`.

    Returns:
        The sum of mix64(new) - mix64(old) over the changed lanes of this call.
    """
    mask = np.empty(BLOCK, np.uint8)
    mask_words = mask.view(np.uint64)
    bits = np.empty(BLOCK // 8, np.uint8)
    bit_words = bits.view(np.uint64)
    delta: int = u64(0)
    num_found, done = progress[0], progress[1]
    while done < len(new):
        n = min(BLOCK, len(new) - done)
        after = new[done : done + n]
        before = old[:n] if from_nothing else old[done : done + n]
        num_words = (n + 63) >> 6

        # A byte per lane, then a bit per lane: the product gathers the lowest bits of eight bytes in its top
        # byte. Both loops vectorise; scanning bits mispredicts once in 64 lanes instead of once in eight.
        for j in range(n):
            mask[j] = before[j] != after[j]
        for j in range(n, num_words << 6):
            mask[j] = 0
        for w in range(num_words << 3):
            bits[w] = np.uint8((mask_words[w] * u64(0x0102040810204080)) >> u64(56))
        ones = u64(0)
        for w in range(num_words):
            ones += count_ones(bit_words[w])
        found = np.int64(ones)
        if num_found + found + SLACK > len(relative):
            break

        where = relative[num_found : num_found + found + SLACK]
        _list_ones(bit_words[:num_words], where)
        where = where[:found]
        delta += _extract(before, after, where, values[num_found : num_found + found], place + done, runs, xor)
        if advance:
            for q in range(found):
                before[u64(where[q])] = after[u64(where[q])]
        counts[done // BLOCK] = found
        num_found += found
        done += n
        progress[0], progress[1] = num_found, done
    return delta


@kernel
def _list_ones(words: Array, where: Array) -> None:
    """Write the places of the bits that are set, ascending."""
    k = u64(0)
    for w in range(len(words)):
        word = words[w]
        if word != 0:
            at = u64(w) << u64(6)
            # Four without asking: most words have fewer, and what is too many is overwritten by the next.
            for j in range(4):
                where[k + u64(j)] = at + trailing_zeros(word)
                word &= word - u64(1)
            rest = k + u64(4)
            k += count_ones(words[w])
            while word != 0:
                where[rest] = at + trailing_zeros(word)
                word &= word - u64(1)
                rest += u64(1)


@kernel
def _extract(before: Array, after: Array, where: Array, values: Array, place: int, runs: PackedRuns, xor: bool) -> int:
    """Write the differences of the lanes at `where`, and return by how much they move the fingerprint."""
    delta: int = u64(0)
    begin, stop = place, place + len(before)
    end, start = _stretch(runs, begin, stop)
    if end == stop:
        for q in range(len(where)):
            at = u64(where[q])
            x, y = u64(before[at]), u64(after[at])
            values[q] = x ^ y if xor else y - x
            z = start + at * runs[2]
            delta += _mix(z ^ y) - _mix(z ^ x)
        return delta
    for q in range(len(where)):
        at = u64(where[q])
        x, y = u64(before[at]), u64(after[at])
        values[q] = x ^ y if xor else y - x
        position = place + int(where[q])
        if position >= end:
            begin = position
            end, start = _stretch(runs, position, stop)
        z = start + u64(position - begin) * runs[2]
        delta += _mix(z ^ y) - _mix(z ^ x)
    return delta


@kernel
def expand(relative: Array, counts: Array, place: int, positions: Array) -> None:
    """Turn what `find` wrote in `relative` into positions in the box; the first block begins at `place`."""
    at = 0
    for block in range(len(counts)):
        source = relative[at : at + counts[block]]
        target = positions[at : at + counts[block]]
        for j in range(len(target)):
            target[j] = np.int64(source[j]) + place
        at += counts[block]
        place += BLOCK


@kernel
def difference(
    old: Array,
    new: Array,
    values: Array,
    progress: Array,
    place: int,
    runs: PackedRuns,
    xor: bool,
    from_nothing: bool,
    advance: bool,
) -> int:
    """Write every lane's difference. Otherwise like `find`.

    `new` begins after the lanes that were searched. Written to `progress` when all is done: in [2] that the
    piece is, in [3] how many of these lanes changed.
    """
    delta: int = u64(0)
    changed = 0
    done = 0
    while done < len(new):
        end, start = _stretch(runs, place + done, min(place + done + BLOCK, place + len(new)))
        after = new[done : end - place]
        before = old[: len(after)] if from_nothing else old[done : end - place]
        target = values[done : end - place]
        for j in range(len(after)):
            x, y = u64(before[j]), u64(after[j])
            target[j] = x ^ y if xor else y - x
            changed += x != y
            z = start + u64(j) * runs[2]
            delta += _mix(z ^ y) - _mix(z ^ x)
        if advance:
            before[:] = after
        done = end - place
    progress[2], progress[3] = progress[1] + len(new), changed
    return delta


@kernel
def change_all(lanes: Array, values: Array, place: int, runs: PackedRuns, how: int) -> int:
    """Change every lane by its value, in place: ADD, SUBTRACT or XOR. Returns the fingerprint's move."""
    delta: int = u64(0)
    done = 0
    while done < len(lanes):
        end, start = _stretch(runs, place + done, place + len(lanes))
        target = lanes[done : end - place]
        source = values[done : end - place]
        for j in range(len(target)):
            x, v = u64(target[j]), u64(source[j])
            target[j] = x ^ v if how == XOR else (x + v if how == ADD else x - v)
            z = start + u64(j) * runs[2]
            delta += _mix(z ^ u64(target[j])) - _mix(z ^ x)
        done = end - place
    return delta


@kernel
def change_some(storage: Array, offsets: Array, positions: Array, values: Array, runs: PackedRuns, how: int) -> int:
    """Change the lanes at `positions`, which lie at `offsets` of the storage. Otherwise like `change_all`."""
    # Lanes are far apart, and reading them takes as long as memory takes to answer. A loop that does nothing
    # else asks for many at once; with the mixing in it, it took four times as long.
    size = min(len(positions), 1024)
    before, after, indices = np.empty(size, np.uint64), np.empty(size, np.uint64), np.empty(size, np.uint64)
    delta: int = u64(0)
    begin, end, start = 0, 0, u64(0)
    for first in range(0, len(positions), 1024):
        n = min(size, len(positions) - first)
        at, where, change = offsets[first : first + n], positions[first : first + n], values[first : first + n]
        for q in range(n):
            before[q] = storage[u64(at[q])]
        for q in range(n):
            if where[q] >= end:
                begin = where[q]
                end, start = _stretch(runs, begin, _FAR)
            indices[q] = start + u64(where[q] - begin) * runs[2]
        for q in range(n):
            x, v = before[q], u64(change[q])
            storage[u64(at[q])] = x ^ v if how == XOR else (x + v if how == ADD else x - v)
            after[q] = storage[u64(at[q])]
        for q in range(n):
            delta += _mix(indices[q] ^ after[q]) - _mix(indices[q] ^ before[q])
    return delta


@kernel
def moved(before: Array, after: Array, positions: Array, runs: PackedRuns) -> int:
    """The sum of mix64(after) - mix64(before) over lanes at `positions`."""
    # Finding an index branches, and mixing vectorises once it does not.
    size = min(len(positions), 1024)
    indices = np.empty(size, np.uint64)
    delta: int = u64(0)
    begin, end, start = 0, 0, u64(0)
    for first in range(0, len(positions), 1024):
        n = min(size, len(positions) - first)
        where, x, y = positions[first : first + n], before[first : first + n], after[first : first + n]
        for q in range(n):
            if where[q] >= end:
                begin = where[q]
                end, start = _stretch(runs, begin, _FAR)
            indices[q] = start + u64(where[q] - begin) * runs[2]
        for q in range(n):
            delta += _mix(indices[q] ^ u64(y[q])) - _mix(indices[q] ^ u64(x[q]))
    return delta
