"""What `commit` is given, as one thing: a layout, and lanes of any box of it.

A mapping, a module, pairs, or the path of a checkpoint become a StateView. Nothing is copied: a box of a
contiguous tensor is a view of its memory, and a box that has to be cast or gathered is the only part that
is in memory twice.

    view = open_state(model, dtype="bfloat16")      # float32 masters, read as bfloat16
    view.lanes("embed", box)                        # int16, on the device where the tensor is
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deltavc.change import Box
from deltavc.errors import BadState
from deltavc.lanes import lanes
from deltavc.layout import Layout, TensorSpec
from deltavc.weights.describe import CASTABLE, cast, cast_dtype, check_tensor, describe
from deltavc.weights.files import Checkpoint, open_checkpoint

State = Mapping[str, Tensor] | torch.nn.Module | Iterable[tuple[str, Tensor]] | str | Path
"""What can be committed. An open Checkpoint is one too, and keeps what is known of its files."""


@dataclass(frozen=True, slots=True)
class StateView:
    """A state as its lanes.

    layout: as it is to be committed: after casting, with ties.
    tensors: the tensors that hold values, by name; before casting.
    source, extras: of the checkpoint it came from (see `files.Checkpoint`); None and empty for live states.
    """

    layout: Layout
    tensors: Mapping[str, Tensor]
    source: dict[str, Any] | None = None
    extras: Mapping[str, Path] = field(default_factory=dict)

    def lanes(self, name: str, box: Box) -> Tensor:
        """The lanes of one box, in the layout's dtype.

        Args:
            name: a tensor that holds values (not one tied to another).
            box: within its lane shape.

        Returns:
            int8, int16, int32 or int64, shape `box.lengths`, contiguous, on the tensor's device; sharing its
            memory when that is possible, so it is not to be written to.
        """
        tensor = self.tensors[name]
        dtype = self.layout.tensors[self.layout.place[name]].dtype
        outer, inner = box.index[: tensor.dim()], box.index[tensor.dim() :]  # complex128 has lanes within elements
        bits = lanes(cast(tensor[outer], dtype))
        bits = (bits[..., inner[0]] if inner else bits).contiguous()
        # Files by other writers may start a tensor at any byte; compiled kernels want whole lanes.
        return bits.clone() if bits.data_ptr() % bits.element_size() else bits


def open_state(state: State, dtype: torch.dtype | str | None = None) -> StateView:
    """Take in what a caller wants to commit.

    The tensors are not copied: they have to keep their values until they were read.

    Args:
        state: a mapping of names to tensors; a module (parameters and persistent buffers); an iterable of
            (name, tensor), which is read to its end; or a checkpoint, open or by its path.
        dtype: bfloat16, float16, float32 or float64: cast tensors of these four dtypes as they are read.

    Raises:
        BadState: something that is not a state, or a tensor in it that cannot be committed.
        UnsupportedDtype: a tensor of a dtype that has no lanes.
        BadCheckpoint: a path that is not a checkpoint.
    """
    target = cast_dtype(dtype)
    if isinstance(state, str | Path | Checkpoint):
        checkpoint = state if isinstance(state, Checkpoint) else open_checkpoint(state)
        layout = checkpoint.layout if target is None else _retyped(checkpoint.layout, target)
        tensors = {name: checkpoint.load(name) for name in _stored(layout)}
        return StateView(layout, tensors, checkpoint.source, checkpoint.extras)
    if isinstance(state, torch.nn.Module):
        named: Mapping[Any, Any] = state.state_dict(keep_vars=True)
    elif isinstance(state, Mapping):
        named = state
    else:
        named = _gathered(state)
    layout = describe(named, target)
    return StateView(layout, {name: named[name] for name in _stored(layout)})


def _stored(layout: Layout) -> Iterator[str]:
    return (layout.tensors[place].name for place in layout.stored)


def _retyped(layout: Layout, dtype: str) -> Layout:
    return Layout.of(
        TensorSpec(tensor.name, dtype, tensor.shape, tensor.tie) if tensor.dtype in CASTABLE else tensor
        for tensor in layout.tensors
    )


def _gathered(pairs: Any) -> dict[Any, Any]:
    """The pairs of an iterable as a dict.

    A generator that fills one buffer again and again would look like tied tensors with the last one's values, so what
    was written to after it was given is refused.
    """
    if not isinstance(pairs, Iterable) or isinstance(pairs, Tensor | bytes):
        raise BadState(f"a {type(pairs).__name__} is not a state")
    named: dict[Any, Any] = {}
    given: dict[str, int] = {}
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise BadState(f"an iterable of (name, tensor) pairs is a state; this one gave a {type(pair).__name__}")
        name, tensor = pair
        if not isinstance(name, str):
            raise BadState(f"{name!r} is not a name: tensor names are strings")
        if name in named:
            raise BadState("appears twice in this iterable", name)
        named[name] = check_tensor(name, tensor)
        given[name] = _writes(tensor)
    for name, tensor in named.items():
        if _writes(tensor) != given[name]:
            raise BadState("was written to after the iterable gave it; give a tensor of its own each time", name)
    return named


def _writes(tensor: Tensor) -> int:
    """How often torch wrote to it in place, where torch counts that."""
    return 0 if tensor.is_inference() else tensor._version
