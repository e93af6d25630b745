"""The `.metadata` of a DCP directory: a pickle, read as data.

A pickle is a program: it names what to call. This reader looks nothing up: the few names that
torch.distributed.checkpoint writes stand for inert records of ours, all others are refused, so nothing that a file
names is ever imported or called.

    Metadata                     tensors by name ── size, dtype, chunks (offsets and sizes)
                                 storage: chunk ──> file, offset, length
                                 planner: flat name ──> the path of keys it was flattened from

Source: torch/distributed/checkpoint/{metadata,filesystem}.py of torch 2.13; TensorProperties lay elsewhere up to 2.2.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from deltavc.change import Box
from deltavc.errors import BadCheckpoint
from deltavc.weights.extras import file_name_fault

METADATA = ".metadata"
MAX_BYTES = 256 << 20
"""Bytes of a `.metadata` that is read; a chunk takes about 200."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a tensor, and the bytes of a file that hold it, as torch.save wrote them."""

    box: Box
    file: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a DCP directory. path: the keys that lead to it in the dict that was saved."""

    path: tuple[str, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


def read_metadata(directory: Path) -> dict[str, Tensor]:
    """The tensors of a DCP directory by flat name, without any value. Everything that is no tensor is passed over.

    Raises:
        BadCheckpoint: it cannot be read, names what DCP does not write, or does not add up.
    """
    path = directory / METADATA
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadCheckpoint(str(path), f"has more than {MAX_BYTES} bytes")
        root = _Reader(io.BytesIO(path.read_bytes())).load()
    except OSError as error:
        raise BadCheckpoint(str(path), f"cannot be read: {error.strerror or error}") from error
    except BadCheckpoint:
        raise
    except Exception as error:  # a damaged pickle can make its reader fail in any way
        raise BadCheckpoint(str(path), f"is not the metadata of a DCP checkpoint: {str(error)[:200]}") from error
    try:
        return _tensors(root)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise BadCheckpoint(str(path), f"does not add up: {str(error)[:200]}") from error


class _Record:
    """What a pickle builds in the place of an object: the arguments it was made with, and its state."""

    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> Self:  # pickles make some without a call of __init__
        record = super().__new__(cls)
        record.args, record.state = args, {}
        return record

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __getitem__(self, name: str) -> Any:
        return self.state[name]


class _Metadata(_Record):
    pass


class _TensorStorage(_Record):
    pass


class _Chunk(_Record):
    pass


class _Properties(_Record):
    @property
    def dtype(self) -> Any:
        return self.state[0] if isinstance(self.state, tuple) else self.state["dtype"]


class _Index(_Record):
    pass


class _Storage(_Record):
    pass


class _Size(_Record):
    @property
    def lengths(self) -> tuple[int, ...]:
        (lengths,) = self.args
        if not all(type(length) is int and length >= 0 for length in lengths):
            raise ValueError("a size that is not one")
        return tuple(lengths)


_METADATA = "torch.distributed.checkpoint.metadata"
_RECORDS: dict[tuple[str, str], type[_Record]] = {
    (_METADATA, "Metadata"): _Metadata,
    (_METADATA, "TensorStorageMetadata"): _TensorStorage,
    (_METADATA, "ChunkStorageMetadata"): _Chunk,
    (_METADATA, "TensorProperties"): _Properties,
    ("torch.distributed._shard.sharded_tensor.metadata", "TensorProperties"): _Properties,
    ("torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"): _Record,
    (_METADATA, "_MEM_FORMAT_ENCODING"): _Record,
    (_METADATA, "BytesStorageMetadata"): _Record,
    (_METADATA, "MetadataIndex"): _Index,
    (_METADATA, "StorageMeta"): _Record,
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): _Storage,
    ("torch.serialization", "_get_layout"): _Record,
    ("torch", "Size"): _Size,
    ("pathlib", "PosixPath"): _Record,
    ("pathlib", "WindowsPath"): _Record,
    ("pathlib._local", "PosixPath"): _Record,
    ("pathlib._local", "WindowsPath"): _Record,
}
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _RECORDS:
            return _RECORDS[module, name]
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        raise pickle.UnpicklingError(
            f"it names {module[:60]}.{name[:60]}, which no DCP checkpoint needs; it was refused, "
            "because pickles are never executed"
        )


def _tensors(root: Any) -> dict[str, Tensor]:
    if not isinstance(root, _Metadata):
        raise ValueError(f"it holds a {type(root).__name__.strip('_')}")
    stored = _chunks_by_place(root["storage_data"])
    paths = root["planner_data"]
    found = {}
    for name, item in root["state_dict_metadata"].items():
        if isinstance(item, _TensorStorage):
            path = tuple(map(str, paths[name])) if isinstance(paths, Mapping) and name in paths else (name,)
            found[_text(name)] = _tensor(name, path, item, stored)
    return found


def _tensor(name: str, path: tuple[str, ...], item: _TensorStorage, stored: dict[Any, tuple[str, int, int]]) -> Tensor:
    dtype, shape = item["properties"].dtype, item["size"].lengths
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"the dtype of {name!r} is none")
    chunks = []
    for chunk in item["chunks"]:
        box = Box(chunk["offsets"].lengths, chunk["sizes"].lengths)
        if not box.fits(shape):
            raise ValueError(f"a chunk of {name!r} lies outside it")
        chunks.append(Chunk(box, *stored[name, box.offsets]))
    if sum(chunk.box.num_lanes for chunk in chunks) != Box.whole(shape).num_lanes or _overlap(chunks):
        raise ValueError(f"the chunks of {name!r} do not make it up")
    return Tensor(path, dtype, shape, tuple(chunks))


def _overlap(chunks: list[Chunk]) -> bool:
    """Whether two chunks have an element in common. Those that are cut along the first dimension are told at once."""
    ordered = sorted(chunks, key=lambda chunk: chunk.box.offsets)
    for place, one in enumerate(ordered):
        end = one.box.offsets[0] + one.box.lengths[0] if one.box.offsets else 1
        for other in ordered[place + 1 :]:
            if other.box.offsets and other.box.offsets[0] >= end:
                break
            if one.box.meet(other.box) is not None:
                return True
    return False


def _chunks_by_place(storage: Mapping[Any, Any]) -> dict[Any, tuple[str, int, int]]:
    """File, offset and length by the name of a tensor and the offsets of a chunk in it."""
    found = {}
    for index, info in storage.items():
        offset = index.state.get("offset") if isinstance(index, _Index) and isinstance(index.state, dict) else None
        if not isinstance(offset, _Size) or not isinstance(info, _Storage):
            continue  # not of a tensor
        if info.state.get("transform_descriptors"):
            raise ValueError("it was written through an extension of DCP, which is not read")
        file = _text(info["relative_path"])
        if "/" in file or (fault := file_name_fault(file)) is not None:
            raise ValueError(f"it names the file {file[:80]!r}" + ("" if "/" in file else f": {fault}"))
        start, length = info["offset"], info["length"]
        if type(start) is not int or type(length) is not int or min(start, length) < 0:
            raise ValueError("a place in a file that is none")
        found[_text(index["fqn"]), offset.lengths] = (file, start, length)
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a {type(value).__name__} in the place of a name")
    return value
