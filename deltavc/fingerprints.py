"""Fingerprints of whole states: the root that names them, and what edges tell of each tensor.

A tensor's fingerprint is a sum over its lanes (see kernels.fingerprint). The root is one hash over the
layout's id and every stored tensor's fingerprint in the layout's order; a version records only the root.
Edges record the fingerprints of the tensors they change, so the whole vector of a version can be put
together from the edges on its way from nothing, and the root proves that it was put together rightly.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Set

from blake3 import blake3

from deltavc.layout import Layout, TensorSpec

MODULUS = 1 << 64


def root(layout: Layout, values: Mapping[str, int]) -> str:
    """The fingerprint of a state: BLAKE3 over the layout's id and the tensors' fingerprints, as 64 hex digits.

    Args:
        values: fingerprint of each stored (untied) tensor by name.
    """
    stored = [values[layout.tensors[place].name] for place in layout.stored]
    return blake3(bytes.fromhex(layout.id) + struct.pack(f"<{len(stored)}Q", *stored)).hexdigest()


def carried(before: Layout, after: Layout) -> frozenset[str]:
    """Names of the tensors that an edge between these layouts carries over.

    A stored tensor is carried when the other layout stores one of the same name, dtype and shape. All
    others start from zero.
    """
    if before.id == after.id:
        return after.stored_names
    kept = {_identity(before.tensors[place]) for place in before.stored}
    places = (place for place in after.stored if _identity(after.tensors[place]) in kept)
    return frozenset(after.tensors[place].name for place in places)


def follow(values: dict[str, int], names: Set[str], changed: Iterable[tuple[str, int]]) -> None:
    """Move fingerprints over an edge, in place: those of the carried `names` stay, and those it records are set."""
    for name in [name for name in values if name not in names]:
        del values[name]
    values.update(changed)


def _identity(tensor: TensorSpec) -> tuple[str, str, tuple[int, ...]]:
    return tensor.name, tensor.dtype, tensor.shape
