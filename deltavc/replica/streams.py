"""Streams: staging works beside those of serving, and a pause waits for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch


class Beside:
    """A stream of one's own on each device, so that serving's do not wait.

    They are kept: what is allocated on a stream is cached for that stream alone.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._streams: list[Any] = [
            torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            for device in devices
            if device.type == "cuda"
        ]

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """Work on them. However it ends, the devices have done what was asked of them by then: what is written to an
        arena after that is written after it."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.wait)
            for stream in self._streams:
                stack.enter_context(torch.cuda.stream(stream))
            yield

    def wait(self) -> None:
        """Wait for what was asked of them."""
        for stream in self._streams:
            stream.synchronize()


def fence(devices: Sequence[torch.device], streams: Sequence[Any] | None) -> None:
    """Wait until the devices have done what serving asked of them, on these streams or, if None, on any."""
    if streams is not None:
        for stream in streams:
            stream.synchronize()
        return
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
