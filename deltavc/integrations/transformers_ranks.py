"""What several processes that train copies of one model have to agree on: the first decides, the others hear of it.

Where there is only one process, nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")


def many() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_first() -> bool:
    return not many() or dist.get_rank() == 0


def shared(value: T) -> T:
    """What the first process has, on all of them."""
    if not many():
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def by_the_first(work: Callable[[], T]) -> T:
    """Do something on the first process; all get what it gave, or raise what it raised."""
    outcome: tuple[T | None, Exception | None] = None, None
    if is_first():
        try:
            outcome = work(), None
        except Exception as error:
            if not many():
                raise
            outcome = None, error
    result, failure = shared(outcome)
    if failure is not None:
        raise failure
    return result  # type: ignore[return-value]


def of_all(value: Any) -> list[Any]:
    """What every process has, by rank."""
    if not many():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
