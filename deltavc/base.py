"""The writer's base: a copy of the last lanes it read, which the next commit is a change from.

The base advances as a commit reads its state, so that the caller may go on at once. Until the commit has
landed, its changes are kept and can be taken back, newest first:

    base at v7 ──read step 8──> base at step 8 ──commit fails──> base at v7 again

A change is exact, so taking it back is too. Where keeping the changes would cost more memory than allowed,
or an exception came between a lane and its record, the base is *lost* instead and is read from the store
when it is next needed.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor

from deltavc import held, kernels
from deltavc.change import Box, Change
from deltavc.held import Held
from deltavc.layout import Layout, TensorSpec
from deltavc.store.files import temporary_directory

L = TypeVar("L", bound=Held)

Keep = Literal["device", "host", "disk"]


class Room:
    """Where a base's lanes lie: beside the tensors they were read from, in main memory, or in temporary files.

    devices: by name, where the tensors are that are read next.
    """

    def __init__(self, keep: Keep) -> None:
        self.devices: Mapping[str, torch.device] = {}
        self._keep = keep
        self._directory = temporary_directory("deltavc-base-") if keep == "disk" else None

    def allocate(self, tensor: TensorSpec) -> Tensor:
        """Lanes of the tensor's lane shape, all zero."""
        if self._directory is not None:
            return held.on_disk(self._directory)(tensor)
        device = self.devices.get(tensor.name) if self._keep == "device" else None
        return held.fresh(device or "cpu")(tensor)

    def close(self) -> None:
        """Let go of the files."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


@dataclass
class Point(Generic[L]):
    """What the base was before a commit read its state: enough to go back."""

    version: str | None
    layout: Layout | None
    fingerprints: dict[str, int]
    lanes: L


@dataclass
class Undo(Generic[L]):
    """The changes that one commit has made to the base, in no particular order (boxes do not overlap)."""

    before: Point[L]
    limit: int
    """bytes of changes to keep"""
    changes: list[tuple[str, Box, Change]] = field(default_factory=list)
    nbytes: int = 0
    complete: bool = True
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open: int = 0

    def opening(self) -> None:
        """A change is about to be made; until `closing`, what the box holds is uncertain."""
        with self._lock:
            self._open += 1

    def closing(self, name: str, box: Box, change: Change | None) -> None:
        """The change was made; None when the tensor is new and needs no taking back."""
        with self._lock:
            self._open -= 1
            if change is None or change.num_changes == 0 or not self.complete:
                return
            self.nbytes += change.nbytes
            if self.nbytes > self.limit:
                self.complete = False
                self.changes.clear()
            else:
                self.changes.append((name, box, change))

    @property
    def usable(self) -> bool:
        return self.complete and self._open == 0


class Base(Generic[L]):
    """Lanes, layout and fingerprints of the last state read; `version` is what they are once it has landed.

    Where boxes of tensors are held, fingerprints are the shares that these boxes have in their tensors'.
    """

    def __init__(self, lanes: L) -> None:
        """
        Args:
            lanes: where to hold them; empty.
        """
        self.lanes = lanes
        self.lost = False
        self.clear()

    def clear(self) -> None:
        """Hold nothing: the state before the first version."""
        self.version: str | None = None
        self.layout: Layout | None = None
        self.fingerprints: dict[str, int] = {}
        self.lanes = self.lanes.copy()
        self.lanes.keep(frozenset())

    def begin(self, limit: int) -> Undo[L]:
        """Remember where the base is before a commit changes it; keep at most `limit` bytes of changes."""
        before = Point(self.version, self.layout, dict(self.fingerprints), self.lanes.copy())
        return Undo(before, limit)

    def take_back(self, undo: Undo[L]) -> None:
        """Return to where the base was before a commit read its state."""
        before = undo.before
        if not undo.usable:
            self.lost = True
        if not self.lost and before.layout is not None:
            specs, place = before.layout.tensors, before.layout.place
            parts = [
                kernels.Part(before.lanes.at(name, box), box, specs[place[name]].lane_shape)
                for name, box, _ in undo.changes
            ]
            kernels.apply_all(parts, [change for _, _, change in undo.changes], sign=-1)
        self.version, self.layout = before.version, before.layout
        self.fingerprints, self.lanes = before.fingerprints, before.lanes
