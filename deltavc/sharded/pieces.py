"""Pieces: what one rank holds of a state that is spread over many.

A piece is memory of this rank and where in the whole tensor it lies. Nothing is copied, and nothing is asked of
other ranks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from deltavc.change import Box
from deltavc.delta.codecs import zstd
from deltavc.layout import Layout, TensorSpec
from deltavc.parts import shards_of
from deltavc.weights.state import StateView, open_state

MAX_DESCRIPTION = 1 << 30
"""Bytes of a part of a description that another rank may send, unpacked."""

_LENGTH = 4


@dataclass(frozen=True, slots=True)
class Piece:
    """The box that a rank holds of a tensor. tensor: the whole one, tied as on this rank. box: in lanes."""

    tensor: TensorSpec
    box: Box


@dataclass(frozen=True, slots=True)
class Pieces:
    """A rank's part of a state, as `packing.read` reads it."""

    pieces: Mapping[str, Piece]
    _local: StateView

    @classmethod
    def of(cls, state: Mapping[str, Any] | torch.nn.Module, dtype: torch.dtype | str | None = None) -> Pieces:
        """Take in what a rank wants to commit: a mapping of names to tensors, DTensors and Shards, or a module.

        Args:
            dtype: as for a commit: floating tensors are cast to it as they are read.

        Raises:
            BadState, UnsupportedDtype: something in it cannot be committed.
        """
        held = shards_of(state)
        view = _view({name: shard.tensor for name, shard in held.items()}, dtype)
        pieces = {}
        for local in view.layout.tensors:
            shard = held[local.name]
            whole = replace(local, shape=shard.global_shape)
            inner = (0,) * (len(whole.lane_shape) - len(whole.shape))  # complex128 has lanes within elements
            pieces[local.name] = Piece(whole, Box((*shard.offsets, *inner), local.lane_shape))
        return cls(pieces, view)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """This rank's memory of each tensor, by name. Names may share it, and be tied on no other rank."""
        return {name: self._local.tensors[piece.tensor.tie or name] for name, piece in self.pieces.items()}

    def lanes(self, name: str, box: Box) -> Tensor:
        """The lanes of a box of a tensor, which lies in this rank's piece; as `StateView.lanes` gives them."""
        piece = self.pieces[name]
        return self._local.lanes(piece.tensor.tie or name, box.within(piece.box))

    def description(self, files: Iterable[str]) -> bytes:
        """What this rank holds, and the names of the files it was given, for the others.

        The tensors, which many ranks tell alike, and then where this rank's boxes of them lie.
        """
        tensors, at = [], []
        boxes: dict[Box, int] = {}
        for name, piece in self.pieces.items():
            spec, box, tie = piece.tensor, piece.box, piece.tensor.tie
            if tie is not None and self.pieces[tie].box != box:
                tie = None  # the same memory, as other parts of two tensors
            tensors.append([name, spec.dtype, spec.shape, tie])
            at.append(boxes.setdefault(box, len(boxes)))
        alike = zstd.compress(json.dumps(tensors).encode())
        held = {"boxes": [[box.offsets, box.lengths] for box in boxes], "at": at, "files": sorted(files)}
        return len(alike).to_bytes(_LENGTH, "little") + alike + zstd.compress(json.dumps(held).encode())


@dataclass(frozen=True, slots=True)
class Description:
    """What a rank says it holds.

    tensors: whole ones; the same object for all ranks that hold pieces of the same. at: for each of them, which of
    `Told.boxes` is held. files: names of those that came with it.
    """

    tensors: tuple[TensorSpec, ...]
    at: tuple[int, ...]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """What all ranks say they hold, by rank. boxes: all that there are, each once."""

    boxes: Sequence[Box]
    ranks: Sequence[Description]

    @classmethod
    def read(cls, bodies: Iterable[bytes]) -> Told:
        """What `Pieces.description` wrote on each rank.

        Ranks times tensors may be millions, and few of them differ: what is equal is read and kept once.
        """
        numbers: dict[Box, int] = {}
        alike: dict[bytes, tuple[TensorSpec, ...]] = {}
        ranks = []
        for body in bodies:
            end = _LENGTH + int.from_bytes(body[:_LENGTH], "little")
            first = body[_LENGTH:end]
            if first not in alike:
                alike[first] = tuple(
                    TensorSpec(name, dtype, tuple(shape), tie) for name, dtype, shape, tie in _json(first)
                )
            held = _json(body[end:])
            boxes = [Box(tuple(offsets), tuple(lengths)) for offsets, lengths in held["boxes"]]
            known = [numbers.setdefault(box, len(numbers)) for box in boxes]
            ranks.append(Description(alike[first], tuple(known[number] for number in held["at"]), tuple(held["files"])))
        return cls(tuple(numbers), ranks)


def _json(body: bytes) -> Any:
    return json.loads(zstd.decompress_within(body, 1, MAX_DESCRIPTION))


def _view(tensors: Mapping[str, Tensor], dtype: torch.dtype | str | None) -> StateView:
    return open_state(tensors, dtype) if tensors else StateView(Layout(()), {})
