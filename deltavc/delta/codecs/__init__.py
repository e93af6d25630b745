"""Codecs by name, and the choice of one for a change.

A name that was stored once means the same bytes for ever. Codecs bring torch and, at their first use, compiled
loops, so that this module imports them only when one is asked for.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from deltavc.errors import UnknownCodec

if TYPE_CHECKING:
    from deltavc.change import Change
    from deltavc.delta.codecs.base import Codec

_NAMES = ("sparse", "planes", "raw", "xor-zstd", "xor-lz4", "xor-snappy-zstd", "xor-lz4hc-zstd")


def names() -> tuple[str, ...]:
    """The codecs that this release knows."""
    return _NAMES


def codec(name: str) -> Codec:
    """The codec of this name.

    Raises:
        UnknownCodec: there is none.
    """
    try:
        return _codecs()[name]
    except KeyError:
        raise UnknownCodec(name, _NAMES) from None


def choose(change: Change, num_lanes: int) -> str:
    """Name the codec that is expected to write this change of operation "add" in the fewest bytes.

    It estimates from a sample, and may name a codec of the other kind, for which the caller has to
    make the change dense or sparse.

    Args:
        change: of either kind, on the CPU, over a box of `num_lanes` lanes.
    """
    from deltavc.delta.codecs import choice

    return choice.choose(change, num_lanes)


@functools.cache
def _codecs() -> dict[str, Codec]:
    from deltavc.delta.codecs import planes, sparse, xor, xor_blocks

    known = (sparse.SparseGaps(), planes.Planes(), planes.Raw(), xor.XorZstd(), *xor_blocks.CODECS)
    return {each.name: each for each in known}
