"""Bit strings: gaps, signs and magnitudes in as few bits as they need.

A bit string is an array of 64-bit words, filled from the least significant bit of the first word upwards, so on
a little-endian machine its bytes are the bytes that are stored. Writers are told by a plan how long it gets;
readers are told where it ends, and want two words of zeros behind it, because they look at 64 bits at a time.
Every reader returns the bit after what it read, or -1 for bits that no writer wrote.

    group of 128 gaps    5 bits: k, or 31 when every gap is 0 (then nothing follows)
    gap                  q = gap >> k zeros, a one, the low k bits; when q would reach 16: 16 zeros, a one, and
                         the gap itself in as many bits as the box's last position has

Rice codes: R. F. Rice, "Some practical universal noiseless coding techniques", JPL 79-22, 1979. Golomb's code with
other divisors than powers of two, and groups of 256 gaps, save less than half a per cent on a fine-tuning run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from deltavc.kernels.cpu_compile import kernel, trailing_zeros

GROUP = 128
"""Gaps that share one k."""

_RUN = np.uint64(31)
_ESCAPE = np.uint64(16)
_U0, _U1, _U5, _U6, _U63, _U64 = (np.uint64(value) for value in (0, 1, 5, 6, 63, 64))


@kernel
def _put(words: Any, bit: Any, value: Any, length: Any) -> Any:
    """Write the low `length` (0 to 64) bits of `value`, which has no others, into bits that are zero."""
    word = bit >> _U6
    offset = bit & _U63
    words[word] |= value << offset
    if offset + length > _U64:
        words[word + _U1] |= value >> (_U64 - offset)
    return bit + length


@kernel
def _peek(words: Any, bit: Any) -> Any:
    """The 64 bits from `bit` on."""
    word = bit >> _U6
    offset = bit & _U63
    return (words[word] >> offset) | ((words[word + _U1] << (_U63 - offset)) << _U1)


@kernel
def plan_gaps(positions: Any, escape_bits: int, ks: Any) -> Any:
    """Choose every group's k, and return the length in bits of the whole.

    Args:
        positions: int64, shape (n,), ascending, below 2**26.
        escape_bits: bits of an escaped gap.
        ks: uint8, shape (ceil(n / 128),), written.
    """
    gaps = np.empty(GROUP, np.int32)
    total = 0
    before = -1
    for group in range(ks.size):
        block = positions[group * GROUP : (group + 1) * GROUP]
        size = block.size
        for i in range(size):
            gaps[i] = block[i] - before - 1
            before = block[i]
        span = before + 1 - (block[0] - gaps[0]) - size
        if span == 0:
            ks[group] = 31
            total += 5
            continue
        top = 0
        while size << top <= span:
            top += 1
        best = 1 << 62
        # Around the mean would do for gaps of one kind; rows that trained beside rows that did not make two kinds,
        # and then the best k lies far below.
        for k in range(top, -1, -1):
            cost = 0
            for i in range(size):
                quotient = gaps[i] >> np.int32(k)
                cost += quotient + 1 + k if quotient < 16 else 17 + escape_bits
            if cost < best:
                best = cost
                ks[group] = k
        total += 5 + best
    return total


@kernel
def write_gaps(words: Any, start: int, positions: Any, escape_bits: int, ks: Any) -> Any:
    """Write the gaps between positions, planned by `plan_gaps`, from bit `start` on."""
    # The word being filled stays in a register and is stored after every code: a store costs nothing here, and
    # a branch that asks whether the word is full cannot be predicted.
    word = np.uint64(start) >> _U6
    filled = np.uint64(start) & _U63
    pending = words[word]
    escape_length = _ESCAPE + _U1 + np.uint64(escape_bits)
    before = -1
    for group in range(ks.size):
        k = np.uint64(ks[group])
        mask = (_U1 << k) - _U1
        block = positions[group * GROUP : (group + 1) * GROUP]
        size = block.size
        code = k
        length = _U5
        i = -1
        while True:
            pending |= code << filled
            words[word] = pending
            spilled = (code >> (_U63 - filled)) >> _U1
            filled += length
            pending = spilled if filled >= _U64 else pending
            word += filled >> _U6
            filled &= _U63
            i += 1
            if i == size or k == _RUN:
                break
            gap = np.uint64(block[i] - before - 1)
            before = block[i]
            quotient = gap >> k
            if quotient < _ESCAPE:
                code = (((gap & mask) << _U1) | _U1) << quotient
                length = quotient + _U1 + k
            else:
                code = ((gap << _U1) | _U1) << _ESCAPE
                length = escape_length
        before = block[size - 1]
    words[word] = pending
    return np.int64((word << _U6) + filled)


@kernel
def read_gaps(words: Any, start: int, end: int, escape_bits: int, bound: int, positions: Any) -> Any:
    """Fill `positions` (int64, shape (n,)) from the gaps at bit `start`; -1 when one is not below `bound`."""
    bit = np.uint64(start)
    last = np.uint64(end)
    escape_mask = (_U1 << np.uint64(escape_bits)) - _U1
    escape_length = _ESCAPE + _U1 + np.uint64(escape_bits)
    position = np.int64(-1)
    for first in range(0, positions.size, GROUP):
        block = positions[first : first + GROUP]
        if bit + _U5 > last:
            return -1
        k = _peek(words, bit) & _RUN
        bit += _U5
        if k == _RUN:
            for i in range(block.size):
                position += 1
                block[i] = position
        elif k > np.uint64(26):
            return -1
        else:
            mask = (_U1 << k) - _U1
            base = k + _U1
            for i in range(block.size):
                window = _peek(words, bit)
                quotient = trailing_zeros(window)
                if quotient < _ESCAPE:
                    gap = (quotient << k) | ((window >> (quotient + _U1)) & mask)
                    bit += quotient + base
                elif quotient == _ESCAPE:
                    gap = (window >> (_ESCAPE + _U1)) & escape_mask
                    bit += escape_length
                else:
                    return -1
                if bit > last:
                    return -1
                position += np.int64(gap) + 1
                block[i] = position
        if position >= bound:
            return -1
    return np.int64(bit)


@kernel
def write_signs(words: Any, start: int, values: Any) -> Any:
    """Write one bit a value: whether it is negative."""
    bit = np.uint64(start)
    for i in range(values.size):
        words[bit >> _U6] |= np.uint64(values[i] < 0) << (bit & _U63)
        bit += _U1
    return np.int64(bit)


@kernel
def read_signs(words: Any, start: int, end: int, values: Any) -> Any:
    """Fill `values` (signed, shape (n,)) with 1 and -1."""
    if start + values.size > end:
        return -1
    bit = np.uint64(start)
    for i in range(values.size):
        values[i] = 1 - 2 * np.int64((words[bit >> _U6] >> (bit & _U63)) & _U1)
        bit += _U1
    return np.int64(bit)


@kernel
def plan_magnitudes(values: Any, indices: Any) -> Any:
    """The length in bits of what `write_magnitudes` writes."""
    total = 0
    for i in range(indices.size):
        rest = np.uint64(abs(np.int64(values[indices[i]]))) - _U1
        while rest > _U1:
            total += 2
            rest >>= _U1
        total += 1
    return total


@kernel
def write_magnitudes(words: Any, start: int, values: Any, indices: Any) -> Any:
    """Write |value| - 1 of each value that `indices` names, none of them 1 or -1, in Elias's gamma code.

    Its bit length less one as so many zeros, a one, and the bits below the leading one.
    """
    bit = np.uint64(start)
    for i in range(indices.size):
        # The absolute value of the least int64 is itself, and right again as unsigned.
        rest = np.uint64(abs(np.int64(values[indices[i]]))) - _U1
        length = _U0
        while (rest >> length) > _U1:
            length += _U1
        bit = _put(words, bit, _U1 << length, length + _U1)
        bit = _put(words, bit, rest ^ (_U1 << length), length)
    return np.int64(bit)


@kernel
def read_magnitudes(words: Any, start: int, end: int, values: Any, indices: Any) -> Any:
    """Give the values that `indices` names, now 1 or -1 by their sign, their magnitudes."""
    bit = np.uint64(start)
    last = np.uint64(end)
    largest = (_U1 << np.uint64(8 * values.itemsize - 1)) - _U1
    for i in range(indices.size):
        length = trailing_zeros(_peek(words, bit))
        bit += length + _U1
        if bit > last or length > np.uint64(62):
            return -1
        rest = (_peek(words, bit) & ((_U1 << length) - _U1)) | (_U1 << length)
        bit += length
        negative = values[indices[i]] < 0
        # |value| = rest + 1; only a negative value reaches 2 to the number of bits less one.
        if bit > last or rest > largest or (rest == largest and not negative):
            return -1
        magnitude = np.int64(rest + _U1)
        values[indices[i]] = -magnitude if negative else magnitude
    return np.int64(bit)
