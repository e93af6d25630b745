"""Plans of saves: what dcp has chosen for a rank to write, as tensors and values by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner

from deltavc.change import Box, overlapping
from deltavc.errors import BadState
from deltavc.integrations import dcp_values
from deltavc.shard import Shard


def resolved(plan: SavePlan, planner: SavePlanner) -> tuple[dict[str, Shard], dict[str, Any]]:
    """The tensors and the other values that a plan is to write, by name.

    Raises:
        BadState: something in it cannot be committed.
    """
    parts: dict[str, list[Shard]] = {}
    values: dict[str, Any] = {}
    for item in plan.items:
        name, found = item.index.fqn, planner.resolve_data(item)
        if not isinstance(found, Tensor):
            values[name] = dcp_values.value_of(name, found)
            continue
        if item.tensor_data is None:
            raise BadState("is a tensor, and was planned as another value", name)
        chunk = item.tensor_data.chunk
        if found.shape != chunk.sizes:
            raise BadState(f"is of shape {list(found.shape)}, where {list(chunk.sizes)} was planned", name)
        parts.setdefault(name, []).append(Shard(found.detach(), tuple(item.tensor_data.size), tuple(chunk.offsets)))
    return {name: joined(name, shards) for name, shards in parts.items()}, values


def joined(name: str, shards: Sequence[Shard]) -> Shard:
    """The parts of one tensor that a rank writes, as one part.

    Raises:
        BadState: they make up no box.
    """
    full = [shard for shard in shards if shard.tensor.numel()] or shards[:1]
    if len(full) == 1:
        return full[0]
    boxes = [Box(shard.offsets, tuple(shard.tensor.shape)) for shard in full]
    starts = tuple(map(min, zip(*(box.offsets for box in boxes), strict=True)))
    ends = map(max, zip(*(map(sum, zip(box.offsets, box.lengths, strict=True)) for box in boxes), strict=True))
    around = Box(starts, tuple(end - start for start, end in zip(starts, ends, strict=True)))
    if overlapping(boxes) is not None or sum(box.num_lanes for box in boxes) != around.num_lanes:
        raise BadState(f"is written by one rank in {len(boxes)} parts that make up no box", name)
    joined = full[0].tensor.new_empty(around.lengths)
    for shard, box in zip(full, boxes, strict=True):
        joined[box.within(around).index].copy_(shard.tensor)
    return Shard(joined, full[0].global_shape, starts)


def whole(name: str, shard: Shard) -> Tensor:
    """All of a tensor, as one process has it. Raises BadState where it has a part only."""
    if tuple(shard.tensor.shape) != shard.global_shape:
        part = f"{list(shard.tensor.shape)} of {list(shard.global_shape)}"
        raise BadState(f"is held in part, {part}: save on all ranks that hold the rest, and without no_dist", name)
    return shard.tensor


def nesting(planner: SavePlanner) -> Any:
    """How names are nested, as planners that derive from dcp's own know it on the coordinator."""
    return getattr(getattr(planner, "metadata", None), "planner_data", None)
