"""Bindings: which live memory holds which tensors of a version, as inference engines arrange it.

Checkpoint tensors are held by name, unless bindings say otherwise: as a view of a live tensor (a slice of a fused
weight, a transposed one), or as a shard or several.

    live                              version
    qkv   ┌ rows 0..7 ────────────── q           {**concatenated(qkv, {"q": 8, "k": 2, "v": 2}),
          ├ rows 8..9 ────────────── k            "out": sharded(out, (8, 8), dim=1, rank=0, world=2)}
          └ rows 10..11 ──────────── v
    out   ────────────────────────── out, columns 0..3

`bind` checks that every lane has one place and every place one lane. It copies nothing and replaces no storage.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from deltavc.bound import Bound, Cell
from deltavc.change import Box
from deltavc.delta.frames import frame_boxes
from deltavc.errors import BadState, InputError, LayoutMismatch
from deltavc.lanes import lanes
from deltavc.layout import Layout
from deltavc.live import named_tensors, stored_name
from deltavc.packing import FRAME_BYTES
from deltavc.patterns import matching
from deltavc.places import Place, check_apart, live_tensor, place_of, places_of, storage_id
from deltavc.regions import Region, uncovered
from deltavc.shard import Shard

__all__ = ["Bindings", "Bound", "Cell", "bind", "concatenated", "sharded"]

Bindings = Mapping[str, Tensor | Shard | Sequence[Shard]]
"""By the name of a checkpoint tensor: a live tensor or a view of one that is the whole of it, or shards of it."""


def concatenated(live: Tensor, lengths: Mapping[str, int], dim: int = 0) -> dict[str, Tensor]:
    """Name the tensors that a fused live tensor is the concatenation of.

    Args:
        live: the fused tensor, such as a qkv or gate_up weight; any strides.
        lengths: how long each checkpoint tensor is along `dim`, in the order in which they lie.
        dim: the dimension along which they are concatenated.

    Returns:
        Bindings: a view of `live` for each name.

    Raises:
        BadState: the lengths do not add up to the length of `live`, or one is negative.
    """
    if not -live.dim() <= dim < live.dim():
        raise BadState(f"concatenated along dimension {dim}, which a tensor of shape {list(live.shape)} does not have")
    if sum(lengths.values()) != live.shape[dim] or any(length < 0 for length in lengths.values()):
        parts = " + ".join(map(str, lengths.values())) or "nothing"
        raise BadState(f"{', '.join(lengths)}: {parts} does not cover dimension {dim} of {list(live.shape)} exactly")
    starts = itertools.accumulate(lengths.values(), initial=0)
    return {name: live.narrow(dim, start, lengths[name]) for name, start in zip(lengths, starts, strict=False)}


def sharded(view: Tensor, global_shape: Sequence[int], dim: int, rank: int, world: int) -> Shard:
    """Say that a view is what a rank holds of a checkpoint tensor that is cut along one dimension.

    The cut is that of `torch.chunk`, and so of DTensor and FSDP: every rank has ceil(length / world), the last ones
    less or nothing. Where the length is a multiple of `world`, engines' tensor-parallel slices are the same.

    Args:
        view: what this rank holds; shape `global_shape` but along `dim`.
        global_shape: of the checkpoint tensor, in elements.
        dim: the dimension that is cut.
        rank, world: which of how many parts. Ranks that hold the same part pass the same numbers.

    Raises:
        BadState: no such dimension or rank, or the view is not of the shape that the rank holds.
    """
    shape = tuple(global_shape)
    if not -len(shape) <= dim < len(shape):
        raise BadState(f"sharded along dimension {dim}, which a tensor of shape {list(shape)} does not have")
    if not 0 <= rank < world:
        raise BadState(f"there is no rank {rank} among {world}")
    dim %= len(shape)
    size = -(-shape[dim] // world)
    start = min(rank * size, shape[dim])
    held = (*shape[:dim], min(size, shape[dim] - start), *shape[dim + 1 :])
    if tuple(view.shape) != held:
        cut = f"dimension {dim} of {list(shape)} cut for {world} ranks"
        raise BadState(f"{cut} gives rank {rank} the shape {list(held)}; this view has {list(view.shape)}")
    return Shard(view, shape, tuple(start if each == dim else 0 for each in range(len(shape))))


def bind(
    live: Mapping[str, Tensor] | torch.nn.Module,
    layout: Layout,
    bindings: Bindings | None = None,
    ignore: Sequence[str] = (),
    *,
    complete: bool = True,
) -> Bound:
    """Find the place of each of a version's lanes in live memory.

    Args:
        live: names to tensors, or a module (parameters and persistent buffers).
        layout: the version's.
        bindings: checkpoint tensors that live elsewhere than under their own name, or in part.
        ignore: names, or patterns as in fnmatch, of checkpoint tensors that need not be held and of live tensors
            that need not be covered. They are not bound by name; bindings of them count.
        complete: whether every checkpoint tensor that is not ignored has to be held.

    Raises:
        LayoutMismatch: a checkpoint tensor that is not held, live elements that nothing of the version covers, dtypes
            or shapes that differ, memory that is shared where the version does not tie it, a name that is not there.
        BadState: something that is not a live state or a binding, or a tensor whose memory cannot be written to.
        UnsupportedDtype: a live tensor of a dtype without lanes.
    """
    given = {} if bindings is None else bindings
    if not isinstance(given, Mapping):
        raise BadState(f"bindings are a mapping of checkpoint names to tensors or shards, not a {type(given).__name__}")
    named = named_tensors(live)
    ignored = _ignored(ignore, layout.place.keys() | named.keys())
    tensors = _writable(named, ignored)
    held = _held(layout, tensors, given, ignored)
    missing = _missing(layout, held.keys(), ignored if complete else layout.place.keys())
    held = _once(layout, held)
    places = [place for name in held for place in held[name]]
    check_apart(places)
    _check_covered(tensors, places, ignored)
    whole = (name for name, parts in held.items() if sum(place.view.numel() for place in parts) == _numel(parts))
    by_name = {name: tuple(cell for place in parts for cell in _cells(place)) for name, parts in held.items()}
    return Bound(layout, by_name, frozenset(whole), missing)


def _ignored(patterns: Sequence[str], names: Set[str]) -> set[str]:
    found: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matched = matching(pattern, names)
        if not matched:
            raise LayoutMismatch(pattern, "is to be ignored, and matches no tensor of the version or the live state")
        found |= matched
    return found


def _writable(named: Mapping[Any, Any], ignored: Set[str]) -> dict[str, Tensor]:
    """The live state's tensors, without those that are ignored and could not be bound anyway."""
    tensors: dict[str, Tensor] = {}
    for name, value in named.items():
        if not isinstance(name, str):
            raise BadState(f"{name!r} is not a name: tensor names are strings")
        try:
            tensors[name] = live_tensor(name, value)
        except InputError:
            if name not in ignored:
                raise
    return tensors


def _held(
    layout: Layout, tensors: Mapping[str, Tensor], given: Mapping[str, Any], ignored: Set[str]
) -> dict[str, list[Place]]:
    """The places of each checkpoint name that is bound, in the layout's order."""
    for name in given:
        if name not in layout.place:
            near = difflib.get_close_matches(str(name), layout.place, n=3)
            meant = f"; did you mean {', '.join(map(repr, near))}?" if near else ""
            raise LayoutMismatch(name, f"is bound, but is not in the version{meant}")
    storages = {storage_id(tensor) for tensor in tensors.values()}
    held: dict[str, list[Place]] = {}
    for spec in layout.tensors:
        if spec.name in given:
            held[spec.name] = places_of(spec, given[spec.name], storages)
        elif spec.name in tensors and spec.name not in ignored:
            held[spec.name] = [place_of(spec, tensors[spec.name])]
    return held


def _missing(layout: Layout, held: Set[str], ignored: Set[str]) -> frozenset[str]:
    """Tensors with values that are held under none of their names; raises LayoutMismatch if one is not ignored."""
    reached = {stored_name(layout, name) for name in held}
    lost = [spec.name for spec in layout.tensors if (spec.tie or spec.name) not in reached and spec.name not in ignored]
    if lost:
        reason = "is in the version, but no live tensor has its name and nothing is bound to it"
        raise LayoutMismatch(lost[0], f"{reason}{_others(lost)}: use bindings=, or name it in ignore=")
    return layout.stored_names - reached


def _once(layout: Layout, held: Mapping[str, list[Place]]) -> dict[str, list[Place]]:
    """Without tied names that are held in the very places of a name before them."""
    shared = {spec.tie for spec in layout.tensors if spec.tie is not None}
    first: dict[Any, str] = {}
    once = {}
    for name, places in held.items():
        if (stored := stored_name(layout, name)) not in shared:
            once[name] = places
            continue
        identity = frozenset(place.identity for place in places if place.region is not None)
        if not identity or first.setdefault((stored, identity), name) == name:
            once[name] = places
    return once


def _check_covered(tensors: Mapping[str, Tensor], places: Sequence[Place], ignored: Set[str]) -> None:
    """Raise LayoutMismatch if a live element is in no place and its tensor is not ignored."""
    bound = {id(place.view) for place in places}
    checked = {
        name: Region.of(tensor)
        for name, tensor in tensors.items()
        if id(tensor) not in bound and tensor.numel() and name not in ignored
    }
    covering = [place.region for place in places if place.region is not None]
    bare = {
        name: nbytes for name, nbytes in zip(checked, uncovered([*checked.values()], covering), strict=True) if nbytes
    }
    for name, nbytes in bare.items():
        tensor = tensors[name]
        elements = f"{-(-nbytes // tensor.element_size())} of {tensor.numel()} elements in the live state"
        reason = f"has {elements} that no tensor of the version is bound to{_others(bare)}"
        raise LayoutMismatch(name, f"{reason}: bind them with bindings=, or name it in ignore=")


def _others(names: Sequence[str] | Mapping[str, Any]) -> str:
    return f" (and so for {len(names) - 1} more)" if len(names) > 1 else ""


def _numel(places: Sequence[Place]) -> int:
    return math.prod(places[0].spec.shape)


def _cells(place: Place) -> Iterator[Cell]:
    """Cut a place as `commit` cuts tensors into frames."""
    spec = place.spec
    bits = lanes(place.view)
    inner = (0,) * (bits.dim() - place.view.dim())  # complex128 has lanes within elements
    boxes = frame_boxes(tuple(bits.shape), spec.lane_bytes, FRAME_BYTES)
    for box in boxes:
        starts = zip((*place.box.offsets, *inner), box.offsets, strict=True)
        within = Box(tuple(start + offset for start, offset in starts), box.lengths)
        yield Cell(spec.name, within, spec.lane_shape, bits[box.index] if len(boxes) > 1 else bits)
