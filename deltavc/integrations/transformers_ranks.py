"""What several processes that train copies of one model have to agree on: the first decides, the others hear of it.

Where there is only one process, nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState

from deltavc.errors import BadState
from deltavc.parts import in_parts

T = TypeVar("T")

_WHOLE = ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_XPU", "MULTI_MLU", "MULTI_MUSA", "MULTI_HPU")
"""What accelerate calls the ways to train in which every process has the whole model."""


def check_whole(model: torch.nn.Module) -> None:
    """Refuse a model of which every process holds a part. Raises BadState."""
    kind = AcceleratorState().distributed_type.value
    if kind not in _WHOLE or in_parts(model):
        raise BadState(
            f"the model is held in parts ({kind}), which this callback cannot commit: commit it from all ranks, with "
            "repo.writer(group=...), as the guide to many ranks shows"
        )


def num_processes() -> int:
    """How many there are."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is. The one that commits is 0."""
    return dist.get_rank() if num_processes() > 1 else 0


def shared(value: T) -> T:
    """What the first process has, on all of them."""
    if num_processes() == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def by_the_first(work: Callable[[], T]) -> T:
    """Do something on the first process; all get what it gave, or raise what it raised."""
    outcome: tuple[T | None, Exception | None] = None, None
    if rank() == 0:
        try:
            outcome = work(), None
        except Exception as error:
            if num_processes() == 1:
                raise
            outcome = None, error
    result, failure = shared(outcome)
    if failure is not None:
        raise failure
    return result  # type: ignore[return-value]


def of_all(value: Any) -> list[Any]:
    """What every process has, by rank."""
    if num_processes() == 1:
        return [value]
    values: list[Any] = [None] * num_processes()
    dist.all_gather_object(values, value)
    return values
