"""Pieces: what one rank holds of a state that is spread over many.

A piece is memory of this rank and where in the whole tensor it lies. Nothing is copied, and nothing is asked of
other ranks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
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
"""Bytes of a description that another rank may send, unpacked."""


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
        """What this rank holds, and the names of the files it was given, for the others."""
        tensors = []
        for name, piece in self.pieces.items():
            spec, box, tie = piece.tensor, piece.box, piece.tensor.tie
            if tie is not None and self.pieces[tie].box != box:
                tie = None  # the same memory, as other parts of two tensors
            tensors.append([name, spec.dtype, spec.shape, tie, box.offsets, box.lengths])
        return zstd.compress(json.dumps({"tensors": tensors, "files": sorted(files)}).encode())


@dataclass(frozen=True, slots=True)
class Description:
    """What another rank says it holds."""

    pieces: Mapping[str, Piece]
    files: tuple[str, ...]

    @classmethod
    def read(cls, bodies: Iterable[bytes]) -> list[Description]:
        """What `Pieces.description` wrote on each rank.

        Many ranks hold pieces of the same tensors, and many tensors are cut alike: what is equal is kept once.
        """
        boxes: dict[Box, Box] = {}
        tensors: dict[tuple[Any, ...], TensorSpec] = {}

        def piece(
            name: str, dtype: str, shape: list[int], tie: str | None, offsets: list[int], lengths: list[int]
        ) -> Piece:
            box = Box(tuple(offsets), tuple(lengths))
            key = (name, dtype, tie, *shape)
            tensor = tensors.get(key)
            if tensor is None:
                tensor = tensors[key] = TensorSpec(name, dtype, tuple(shape), tie)
            return Piece(tensor, boxes.setdefault(box, box))

        described = []
        for body in bodies:
            found = json.loads(zstd.decompress_within(body, 1, MAX_DESCRIPTION))
            described.append(cls({told[0]: piece(*told) for told in found["tensors"]}, tuple(found["files"])))
        return described


def _view(tensors: Mapping[str, Tensor], dtype: torch.dtype | str | None) -> StateView:
    return open_state(tensors, dtype) if tensors else StateView(Layout(()), {})
