"""Which versions hold exactly these weights.

A version records one root over its layout and its tensors' fingerprints. Files forget which tensors are tied,
so a state is tried in the place of every layout that it fits: with all the names, or without the tied ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from deltavc import fingerprints, kernels
from deltavc.change import Box
from deltavc.layout import Layout, TensorSpec
from deltavc.weights.state import StateView


def state_fingerprints(view: StateView) -> dict[str, int]:
    """The fingerprint of every tensor of a state by name, tied names included."""
    found: dict[str, int] = {}
    for tensor in view.layout.tensors:
        if tensor.tie is None:
            box = Box.whole(tensor.lane_shape)
            found[tensor.name] = kernels.fingerprint(view.lanes(tensor.name, box), box, tensor.lane_shape)
    for tensor in view.layout.tensors:
        if tensor.tie is not None:
            found[tensor.name] = found[tensor.tie]
    return found


def root_as(layout: Layout, tensors: Mapping[str, TensorSpec], values: Mapping[str, int]) -> str | None:
    """The root these tensors have in a layout, or None if they are not of it.

    Every tensor has to be in the layout with its dtype and shape, and every stored tensor of the layout has to
    be among them, under its own name or one tied to it; tied names have to be equal.
    """
    stored: dict[str, int] = {}
    for tensor in layout.tensors:
        given = tensors.get(tensor.name)
        if given is None:
            continue
        if (given.dtype, given.shape) != (tensor.dtype, tensor.shape):
            return None
        if stored.setdefault(tensor.tie or tensor.name, values[tensor.name]) != values[tensor.name]:
            return None
    if len(stored) != len(layout.stored) or any(name not in layout.place for name in tensors):
        return None
    return fingerprints.root(layout, stored)
