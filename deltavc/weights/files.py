"""Checkpoints on disk, opened without loading: names, dtypes and shapes at once, values when asked for.

    one .safetensors file
    a directory of one or several of them, with or without an index
    one .pt file of plain tensors

A checkpoint that does not add up (an index that promises what no file has, a name in two files) is refused
whole: half of a model is not a model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from deltavc import canonical
from deltavc.errors import BadCheckpoint, BadMetadata, BadPayload
from deltavc.layout import Layout
from deltavc.weights.describe import describe
from deltavc.weights.extras import file_name_fault, find_extras, is_index, is_tensor_file
from deltavc.weights.pickled import SUFFIXES, load_pickled
from deltavc.weights.tensorfile import TensorFile

_NUMBERED = re.compile(r"(?P<name>.*)-[0-9]+-of-(?P<count>[0-9]{1,9})\.safetensors", re.IGNORECASE)
"""What `save_pretrained` calls the files of a model that takes several."""


@dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint. Iterating gives (name, tensor) in name order, tied names too.

    load: name to tensor on the CPU, mapped from its file, so asking is cheap and reading is what costs. It
        raises BadCheckpoint for a file that became unreadable.
    source: how the tensors lay in their files, as plain JSON, for `output.write_checkpoint`:
        single    whether the path named a file
        index     {"name", "metadata"} of the index, or None
        files     [{"name", "metadata"}]
        tensors   by place in the layout, the number of its file; None when there is one file
        None as a whole for a .pt file, which is not written again.
    extras: relative name to path of the directory's other files.
    """

    path: Path
    layout: Layout
    load: Callable[[str], Tensor]
    source: dict[str, Any] | None = None
    extras: Mapping[str, Path] = field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for tensor in self.layout.tensors:
            yield tensor.name, self.load(tensor.name)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a .safetensors file, a directory of them, or a .pt, .pth, .bin or .ckpt file of plain tensors.

    Raises:
        BadCheckpoint: there is no checkpoint there, or one that is damaged or incomplete.
        BadState: a tensor whose name or kind cannot be committed.
        UnsupportedDtype: a tensor of a dtype that has no lanes.
    """
    path = Path(path)
    if path.is_dir():
        return _open_directory(path)
    if not path.exists():
        raise BadCheckpoint(str(path), "there is no such file or directory")
    if not path.is_file():
        raise BadCheckpoint(str(path), "is not a plain file")
    if is_tensor_file(path.name):
        return _together(path, [TensorFile(path)], index=None)
    if path.suffix.lower() in SUFFIXES:
        tensors = load_pickled(path)
        return Checkpoint(path, describe(tensors), tensors.__getitem__)
    if is_index(path.name):
        raise BadCheckpoint(str(path), "is the index of a checkpoint; name the directory it is in")
    raise BadCheckpoint(str(path), f"is neither a .safetensors file nor one of {', '.join(SUFFIXES)}")


def _open_directory(directory: Path) -> Checkpoint:
    try:
        names = sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise BadCheckpoint(str(directory), f"cannot be read: {error.strerror}") from error
    indices = [name for name in names if is_index(name)]
    present = [name for name in names if is_tensor_file(name)]
    for name in (*indices, *present):
        fault = file_name_fault(name)
        if fault:
            raise BadCheckpoint(str(directory), f"cannot keep the file {name!r}: {fault}")
    if len(indices) > 1:
        raise BadCheckpoint(str(directory), f"has several indices ({listed(indices)}); leave one of them")
    index = _read_index(directory / indices[0]) if indices else None
    if index is not None:
        absent = set(index.weight_map.values()) - set(present)
        if absent:
            raise BadCheckpoint(str(directory / indices[0]), f"names files that are not there: {listed(absent)}")
    if not present:
        raise BadCheckpoint(str(directory), _what_instead(names))
    if index is None:
        _check_numbered(directory, present)
    return _together(directory, [TensorFile(directory / name) for name in present], index)


def _check_numbered(directory: Path, present: list[str]) -> None:
    """Refuse files that are numbered and not all there. Who writes a checkpoint writes its index last."""
    there: dict[tuple[str, str], list[str]] = {}
    for name in present:
        if (told := _NUMBERED.fullmatch(name)) is not None:
            there.setdefault((told["name"], told["count"]), []).append(name)
    for (_, count), files in there.items():
        if len(files) < int(count):
            raise BadCheckpoint(
                str(directory),
                f"has no index, and {len(files)} of the {int(count)} files {files[0]} and so on: it is still being "
                "written, or some are gone",
            )


def _what_instead(names: list[str]) -> str:
    others = [name for name in names if name.lower().endswith(SUFFIXES)]
    if others:
        return f"has no .safetensors file; to read {listed(others)}, name the file itself"
    return "is a directory without weights" if names else "is an empty directory"


@dataclass(frozen=True, slots=True)
class _Index:
    path: Path
    metadata: Any
    weight_map: dict[str, str]


def _read_index(path: Path) -> _Index:
    try:
        content = canonical.loads(path.read_bytes())
        weight_map = content["weight_map"]
        metadata = content.get("metadata")
        canonical.check_nesting(metadata, "metadata")
        canonical.dumps(metadata)  # it will have to fit into a version
    except OSError as error:
        raise BadCheckpoint(str(path), f"cannot be read: {error.strerror}") from error
    except (BadPayload, BadMetadata, KeyError, TypeError) as error:
        raise BadCheckpoint(str(path), f"is not an index with a weight_map: {error}") from error
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise BadCheckpoint(str(path), "is not an index: its weight_map does not map names to files")
    return _Index(path, metadata, weight_map)


def _together(path: Path, files: list[TensorFile], index: _Index | None) -> Checkpoint:
    """One checkpoint of these files, which the index, if there is one, describes exactly."""
    held_by: dict[str, int] = {}
    for number, file in enumerate(files):
        for spec in file.specs:
            before = held_by.setdefault(spec.name, number)
            if before != number:
                raise BadCheckpoint(
                    str(path), f"tensor {spec.name!r} is in both {files[before].path.name} and {file.path.name}"
                )
    if index is not None:
        _compare(index, {name: files[number].path.name for name, number in held_by.items()})
    if not held_by:
        raise BadCheckpoint(str(path), "holds no tensors")
    single = not path.is_dir()
    layout = Layout.of(spec for file in files for spec in file.specs)
    source = {
        "single": single,
        "index": None if index is None else {"name": index.path.name, "metadata": index.metadata},
        "files": [{"name": file.path.name, "metadata": file.metadata} for file in files],
        "tensors": [held_by[tensor.name] for tensor in layout.tensors] if len(files) > 1 else None,
    }
    extras = {} if single else find_extras(path)
    return Checkpoint(path, layout, lambda name: files[held_by[name]].load(name), source, extras)


def _compare(index: _Index, found: dict[str, str]) -> None:
    absent = [name for name in index.weight_map if name not in found]
    if absent:
        raise BadCheckpoint(str(index.path), f"names tensors that no file has: {listed(absent)}")
    unnamed = [name for name in found if name not in index.weight_map]
    if unnamed:
        files = {found[name] for name in unnamed}
        raise BadCheckpoint(
            str(index.path), f"does not name tensors that are in the files: {listed(unnamed)} in {listed(files)}"
        )
    moved = [name for name, file in index.weight_map.items() if found[name] != file]
    if moved:
        raise BadCheckpoint(str(index.path), f"names the wrong file for tensors: {listed(moved)}")


def listed(names: Iterable[str]) -> str:
    """A few names, and how many more there are."""
    ordered = sorted(names)
    more = f" and {len(ordered) - 5} more" if len(ordered) > 5 else ""
    return ", ".join(ordered[:5]) + more
