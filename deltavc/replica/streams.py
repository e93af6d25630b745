"""Streams: staging works beside those of serving, and a pause waits for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch


@contextlib.contextmanager
def beside(devices: Sequence[torch.device]) -> Iterator[None]:
    """Work on streams of its own, so that serving's do not wait."""
    with contextlib.ExitStack() as stack:
        for device in devices:
            if device.type == "cuda":
                stack.enter_context(torch.cuda.stream(torch.cuda.Stream(device)))  # type: ignore[no-untyped-call]
        yield


def synchronize(devices: Sequence[torch.device]) -> None:
    """Wait for what was asked of the current streams."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()


def fence(devices: Sequence[torch.device], streams: Sequence[Any] | None) -> None:
    """Wait until the devices have done what serving asked of them, on these streams or, if None, on any."""
    if streams is not None:
        for stream in streams:
            stream.synchronize()
        return
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
