"""Which kernels a tensor goes to, by its device.

    CPU                          host       compiled by numba
    CUDA and ROCm, with Triton   gpu        compiled by Triton, checked once for each device
    anything else                reference  plain torch

Each is imported by its first use: numba and Triton take half a second, which reading a log should not cost.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import TypeVar

import torch

from deltavc.change import Box
from deltavc.kernels import reference
from deltavc.kernels.part import Part

T = TypeVar("T")


@functools.cache
def host() -> ModuleType:
    """The CPU's kernels."""
    from deltavc.kernels import host

    return host


@functools.cache
def gpu(device: torch.device) -> ModuleType | None:
    """The kernels that Triton compiles for a device, or None where there are none that work.

    They take many tensors in one call, the others one. Before they are first used on a device they have to
    get one fingerprint right; if they cannot (Triton wants a C compiler, and devices it knows), a
    RuntimeWarning says why, and plain torch does the work.
    """
    if device.type != "cuda":
        return None
    try:
        from deltavc.kernels import gpu
    except ImportError:
        return None
    reason = fault(gpu, device)
    if reason is not None:
        warnings.warn(
            f"Triton's kernels do not run on {device}, torch stands in: {reason}", RuntimeWarning, stacklevel=2
        )
        return None
    return gpu


def fault(kernels: ModuleType, device: torch.device) -> str | None:
    """Why kernels that take many tensors cannot be used on a device; None if they can."""
    box = Box((1 << 40,), (1000,))
    shape = (1 << 41,)
    try:
        lanes = torch.arange(-500, 500, dtype=torch.int16, device=device)
        found = kernels.fingerprint_all([Part(lanes, box, shape)])
    except Exception as error:  # whatever compilers and drivers raise
        return f"{type(error).__name__}: {error}"
    return None if found == [reference.fingerprint(lanes, box, shape)] else "a fingerprint came out wrong"


def together(device: torch.device) -> bool:
    """Whether many tensors in one call take less time than one after another: where every call is a launch.

    On the CPU they do not: there, callers spread tensors over the pool.
    """
    return device.type != "cpu"


def batches(items: Iterable[T], nbytes: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Items in a row that together have up to `most` bytes, or one that has more: for one call each."""
    batch: list[T] = []
    held = 0
    for item in items:
        size = nbytes(item)
        if batch and held + size > most:
            yield batch
            batch, held = [], 0
        batch.append(item)
        held += size
    if batch:
        yield batch


def single(device: torch.device) -> ModuleType:
    """The kernels for a device that take one tensor."""
    return host() if device.type == "cpu" else reference


def by_device(devices: Sequence[torch.device], run: Callable[[torch.device, list[int]], Sequence[T]]) -> list[T]:
    """Run each device's share of some numbered items, and put the results in order."""
    shares: dict[torch.device, list[int]] = {}
    for number, device in enumerate(devices):
        shares.setdefault(device, []).append(number)
    found: dict[int, T] = {}
    for device, numbers in shares.items():
        found.update(zip(numbers, run(device, numbers), strict=True))
    return [found[number] for number in range(len(devices))]
