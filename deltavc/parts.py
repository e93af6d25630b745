"""Parts: what this rank holds of a state that many ranks hold together.

value of the state                     part
tensor                                 the whole tensor, which others may hold too
DTensor, Shard and Replicate           the box that its mesh and placements give this rank
deltavc.Shard                          the box that it says

Nothing is copied, and nothing is asked of other ranks. What makes DTensors is imported only where there are some.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from deltavc.errors import BadState
from deltavc.live import named_tensors
from deltavc.shard import Shard

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def shards_of(state: Mapping[str, Any] | torch.nn.Module) -> dict[str, Shard]:
    """What this rank holds under each name: the part, or all of it, as a shard in the memory that it lies in.

    Raises:
        BadState: a value that is neither a tensor, a DTensor nor a Shard, or has no values that it could be asked for.
    """
    found = {name: _held(name, value) for name, value in named_tensors(state).items()}
    return {name: shard for name, shard in found.items() if shard is not None}


def localized(
    state: Mapping[str, Any] | torch.nn.Module, bindings: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """A live state as `bindings.bind` takes it: this rank's memory by name, and bindings of what is a part.

    Values that are neither DTensors nor Shards are left as they are, for `bind` to look at.

    Raises:
        BadState: a DTensor that has no values that it could be asked for.
    """
    live, parts = {}, {}
    for name, value in named_tensors(state).items():
        if not isinstance(value, Shard) and not is_dtensor(value):
            live[name] = value
        elif (shard := _held(name, value)) is not None:
            live[name] = shard.tensor
            if tuple(shard.tensor.shape) != shard.global_shape:
                parts[name] = shard
    return live, parts if bindings is None else {**parts, **bindings} if isinstance(bindings, Mapping) else bindings


def in_parts(state: Mapping[str, Any] | torch.nn.Module) -> bool:
    """Whether a state has DTensors or shards."""
    return any(isinstance(value, Shard) or is_dtensor(value) for value in named_tensors(state).values())


def is_dtensor(value: Any) -> bool:
    """Whether a value is a DTensor, without importing what makes them."""
    return type(value).__name__ == "DTensor"


def _held(name: Any, value: Any) -> Shard | None:
    """What this rank holds under a name; None if that is nothing."""
    if isinstance(value, Shard):
        return value
    if is_dtensor(value):
        return _part_of(name, value)
    if isinstance(value, Tensor):
        return Shard(value, tuple(value.shape), (0,) * value.dim())
    raise BadState(f"is not a tensor but a {type(value).__name__}", str(name))


def _part_of(name: str, value: DTensor) -> Shard | None:
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    for placement in value.placements:
        if placement.is_partial():
            reason = "its values are spread over ranks and not added up: redistribute it to Shard or Replicate first"
            raise BadState(f"is a DTensor with a Partial placement; {reason}", name)
    if value.device_mesh.get_coordinate() is None:
        return None
    with torch.no_grad():
        local = value.to_local()
    if isinstance(local, AsyncCollectiveTensor):
        local = local.wait()
    shape, offsets = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
    if tuple(local.shape) != tuple(shape):
        has, due = list(local.shape), list(shape)
        raise BadState(f"is a DTensor whose part here has the shape {has}, where its placements give {due}", name)
    return Shard(local, tuple(value.shape), tuple(offsets))
