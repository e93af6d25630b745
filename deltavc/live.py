"""Live tensors: a caller's own mapping or module that lanes are written into, in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deltavc.errors import BadState, LayoutMismatch, WrongWeights
from deltavc.held import HeldLanes
from deltavc.kernels import pool
from deltavc.lanes import lanes
from deltavc.layout import Layout
from deltavc.weights.describe import describe


@dataclass(frozen=True, slots=True)
class Live:
    """The tensors of a live state by name, tied names included, and the layout that describes them."""

    layout: Layout
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, into: Mapping[str, Tensor] | torch.nn.Module) -> Live:
        """Take in a mapping of names to tensors, or a module (parameters and persistent buffers).

        Raises:
            BadState: anything else, or a tensor in it that has no memory to write to.
        """
        named = named_tensors(into)
        return cls(describe(named, None), dict(named))

    def lanes(self, name: str) -> Tensor:
        """The lanes of a tensor, to write to."""
        return lanes(self.tensors[name])

    def buffers(self, layout: Layout, names: list[str], complete: bool) -> dict[str, Tensor]:
        """The lanes that hold `names` of a version's layout, by stored name, once everything was checked.

        Args:
            complete: whether live tensors that the version lacks are an error.

        Raises:
            LayoutMismatch: a tensor is missing, of another dtype or shape, or shares memory where the version
                does not.
        """
        found: dict[str, Tensor] = {}
        for name in names:
            self._check(layout, name)
            found.setdefault(stored_name(layout, name), self.lanes(name))
        if complete:
            extra = next((live.name for live in self.layout.tensors if live.name not in layout.place), None)
            if extra is not None:
                raise LayoutMismatch(extra, "is in the live state but not in the version")
        self._check_ties(layout, set(names))
        return found

    def fill_tied(self, layout: Layout, names: list[str], held: HeldLanes) -> None:
        """Write the names that the version ties but the live state holds apart."""
        for name in names:
            source, target = held[stored_name(layout, name)], self.lanes(name)
            if _is(target, source):
                continue
            if target.untyped_storage().data_ptr() == source.untyped_storage().data_ptr():
                source = pool.apart(source.device, source.clone)  # torch refuses to copy where they overlap
            _copy(target, source)

    def write(self, version: str, layout: Layout, held: HeldLanes) -> None:
        """Copy proven lanes of a whole version into the live tensors, and compare.

        Raises:
            LayoutMismatch: they do not fit; nothing was written.
            WrongWeights: live tensors hold other values now: they overlap in memory.
        """
        names = [tensor.name for tensor in layout.tensors]
        for name, buffer in self.buffers(layout, names, complete=True).items():
            _copy(buffer, held[name])
        self.fill_tied(layout, names, held)
        self.compare(version, layout, names, held)

    def compare(self, version: str, layout: Layout, names: list[str], held: HeldLanes) -> None:
        """Raise WrongWeights unless each live tensor has the lanes that are held for it, or is where they are held."""
        wrong = []
        for name in names:
            source, live = held[stored_name(layout, name)], self.lanes(name)
            if not _is(live, source) and not _equal(live, source):
                wrong.append(name)
        if wrong:
            raise WrongWeights(version, tuple(wrong))

    def _check(self, layout: Layout, name: str) -> None:
        wanted = layout.tensors[layout.place[name]]
        place = self.layout.place.get(name)
        if place is None:
            raise LayoutMismatch(name, "is in the version but not in the live state")
        live = self.layout.tensors[place]
        if (live.dtype, live.shape) != (wanted.dtype, wanted.shape):
            has, needs = f"{live.dtype} {list(live.shape)}", f"{wanted.dtype} {list(wanted.shape)}"
            raise LayoutMismatch(name, f"is {has} in the live state, {needs} in the version")
        tensor = self.tensors[name]
        if tensor.is_conj() or tensor.is_neg():
            raise LayoutMismatch(name, "is a lazy conjugate or negative in the live state; resolve it first")
        if any(stride == 0 and length > 1 for stride, length in zip(tensor.stride(), tensor.shape, strict=True)):
            raise LayoutMismatch(name, "is expanded in the live state: its elements share memory")

    def _check_ties(self, layout: Layout, names: set[str]) -> None:
        """Writing these names must not change others, which share their memory here but not in the version."""
        sharing: dict[str, list[str]] = {}
        for live in self.layout.tensors:
            if live.name in layout.place:
                sharing.setdefault(live.tie or live.name, []).append(live.name)
        for first, *others in sharing.values():
            apart = [name for name in others if stored_name(layout, name) != stored_name(layout, first)]
            if apart and not names.isdisjoint((first, *others)):
                reason = f"shares memory with {first!r} in the live state, but not in the version"
                raise LayoutMismatch(apart[0], reason)


def named_tensors(live: Any) -> Mapping[Any, Any]:
    """What a live state holds by name, not looked at yet: a mapping as it is, a module's parameters and persistent
    buffers, tied names included.

    Raises:
        BadState: it is neither.
    """
    if isinstance(live, torch.nn.Module):
        named: Mapping[Any, Any] = live.state_dict(keep_vars=True)
        return named
    if isinstance(live, Mapping):
        return live
    raise BadState(f"live tensors are a mapping of names to tensors or a module, not a {type(live).__name__}")


def _is(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of a shape are one: a transposed view begins at the same place and holds other values."""
    return one.data_ptr() == other.data_ptr() and one.stride() == other.stride()


def _copy(target: Tensor, source: Tensor) -> None:
    pool.apart(target.device, lambda: target.copy_(source))


def _equal(one: Tensor, other: Tensor) -> bool:
    return pool.apart(one.device, lambda: torch.equal(one, other.to(one.device)))


def stored_name(layout: Layout, name: str) -> str:
    """The name under which a tensor's values are stored: its own, or that of the tensor it is tied to."""
    return layout.tensors[layout.place[name]].tie or name
