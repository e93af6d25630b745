"""Which tensor goes to which file: as the source had it, or as Hugging Face would have it.

    model.safetensors                        up to 5 GB
    model-00001-of-00002.safetensors ...     beyond, with model.safetensors.index.json

What a version says about its files was written by whoever committed it, so it is read with suspicion.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deltavc.errors import BadCheckpoint
from deltavc.layout import Layout, TensorSpec
from deltavc.weights.extras import is_index, is_tensor_file
from deltavc.weights.tensorfile import refusal

MAX_SHARD_BYTES = 5_000_000_000
"""Of tensors in one file, where nothing says otherwise; the "5GB" of Hugging Face's save_pretrained."""

DEFAULT_METADATA = {"format": "pt"}
"""What Hugging Face loaders look for in a file written from PyTorch."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One file to write. The name may still be unfit; the writer checks it with all others."""

    name: str
    metadata: dict[str, str] | None
    specs: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class Index:
    """The index to write beside them; `metadata` without its total size."""

    name: str
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """The files of a checkpoint to be."""

    shards: tuple[Shard, ...]
    index: Index | None

    @property
    def names(self) -> list[str]:
        """The files in the order they are written: weights, then the index."""
        return [shard.name for shard in self.shards] + ([self.index.name] if self.index else [])

    def index_text(self) -> str:
        """The index as JSON, as Hugging Face writes it. `total_size` counts bytes of tensors."""
        assert self.index is not None
        total = sum(spec.nbytes for shard in self.shards for spec in shard.specs)
        weight_map = {spec.name: shard.name for shard in self.shards for spec in shard.specs}
        content = {"metadata": {**self.index.metadata, "total_size": total}, "weight_map": weight_map}
        return json.dumps(content, indent=2, sort_keys=True) + "\n"


def plan(path: str, layout: Layout, source: Mapping[str, Any] | None, max_shard: int | None = None) -> Plan:
    """Plan the files for a layout.

    Args:
        path: where they will be written; for errors.
        layout: all of its names are written, tied ones too.
        source: `files.Checkpoint.source`, or None for the default.
        max_shard: bytes of tensors in a file; one tensor is never cut. None: as in `source`, or MAX_SHARD_BYTES. With a
            number, `source` only says which metadata they have: that of its files, if they agree.

    Raises:
        BadCheckpoint: tensors that the format cannot hold, all listed; a source that does not fit the layout.
    """
    faults = [f"{spec.name!r} ({fault})" for spec in layout.tensors if (fault := refusal(spec))]
    if faults:
        raise BadCheckpoint(path, f"a .safetensors file cannot hold these tensors: {', '.join(faults)}")
    if source is None:
        return _default(layout, max_shard or MAX_SHARD_BYTES, DEFAULT_METADATA, {})
    try:
        as_source = _as_source(layout, source)
        if max_shard is None:
            return as_source
        headers = [shard.metadata for shard in as_source.shards]
        agreed = headers[0] if headers and all(header == headers[0] for header in headers) else DEFAULT_METADATA
        return _default(layout, max_shard, agreed, as_source.index.metadata if as_source.index else {})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadCheckpoint(path, f"what the version says about its files is damaged: {error}") from error


def _default(layout: Layout, max_shard: int, header: dict[str, str] | None, of_index: dict[str, Any]) -> Plan:
    parts: list[list[TensorSpec]] = [[]]
    room = max_shard
    for spec in layout.tensors:
        if spec.nbytes > room and parts[-1]:
            parts.append([])
            room = max_shard
        parts[-1].append(spec)
        room -= spec.nbytes
    if len(parts) == 1:
        return Plan((Shard("model.safetensors", header, tuple(parts[0])),), None)
    shards = tuple(
        Shard(f"model-{number:05d}-of-{len(parts):05d}.safetensors", header, tuple(part))
        for number, part in enumerate(parts, start=1)
    )
    return Plan(shards, Index("model.safetensors.index.json", of_index))


def _as_source(layout: Layout, source: Mapping[str, Any]) -> Plan:
    files, numbers, index = source["files"], source["tensors"], source["index"]
    if numbers is None and len(files) == 1:
        numbers = [0] * len(layout.tensors)
    parts: list[list[TensorSpec]] = [[] for _ in files]
    for spec, number in zip(layout.tensors, numbers, strict=True):
        if type(number) is not int or not 0 <= number < len(parts):
            raise ValueError(f"there is no file {number!r} for tensor {spec.name!r}")
        parts[number].append(spec)
    shards = tuple(
        Shard(_file_name(file["name"], is_tensor_file), _texts(file["metadata"]), tuple(part))
        for file, part in zip(files, parts, strict=True)
    )
    if len({shard.name for shard in shards}) != len(shards):
        raise ValueError("two files have one name")
    if index is None:
        return Plan(shards, None)
    metadata = index["metadata"] or {}
    if not isinstance(metadata, dict):
        raise ValueError("the metadata of the index is not an object")
    return Plan(shards, Index(_file_name(index["name"], is_index), metadata))


def _file_name(name: Any, fits: Any) -> str:
    if not isinstance(name, str) or not fits(name) or "/" in name:
        raise ValueError(f"{str(name)[:200]!r} is not the name of such a file")
    return name


def _texts(metadata: Any) -> dict[str, str] | None:
    if metadata is None:
        return None
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for pair in metadata.items() for text in pair):
        raise ValueError("metadata of a file that is not text")
    return metadata
