"""Delta directories of Miles and slime: published versions, read and written.

    deltas/weight_v000001/model-00000-of-00002.safetensors     a change for each tensor that changed, see `payload`;
                                                               its checksums are the header's metadata
           weight_v000001/model.safetensors.index.json         {"metadata": {"version": "000001",
                                                               "base_version": "000000", "delta_encoding": "xor",
                                                               "compression_format": "zstd",
                                                               "checksum_format": "blake3"}, "weight_map": {...}}
           weight_v000002/...                                  builds on version 1

Version 0 is the receiver's own checkpoint. A version without `delta_encoding` is a whole checkpoint, which the ones
after it build on. What deltavc writes names the versions it leads from and to in two more members of `metadata`, which
receivers pass over; by them it knows where to go on.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from deltavc import canonical
from deltavc.errors import BadCheckpoint, BadDelta, BadPayload
from deltavc.interchange.payload import Bytes, Checksum, Encoding
from deltavc.layout import TensorSpec
from deltavc.weights.output import flush, reported
from deltavc.weights.tensorfile import TensorFile, lay_out, refusal

INDEX = "model.safetensors.index.json"
FILE_BYTES = 256 << 20
"""Changes in one file, in bytes: as many as the writer keeps, and the receiver reads, at once."""

_VERSION = re.compile(r"weight_v([0-9]{6,12})")
_NUMBER = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, slots=True)
class Published:
    """A published version. base: the number it builds on; None for a whole checkpoint, which has no encoding either.

    leads: the ids of the versions of deltavc that it leads from and to, if deltavc wrote it.
    """

    path: Path
    number: int
    base: int | None
    encoding: Encoding = "xor"
    checksum: Checksum = "xxh3-128"
    names: frozenset[str] = frozenset()
    leads: tuple[str, str] | None = None

    def changes(self) -> Iterator[tuple[str, Bytes, str]]:
        """Name, stored change and checksum of each tensor that changed, file by file.

        Raises:
            BadDelta: a file is damaged, or the files do not hold what the index names.
        """
        seen: set[str] = set()
        for path in sorted(self.path.glob("*.safetensors")):
            try:
                file = TensorFile(path)
            except BadCheckpoint as error:
                raise BadDelta(str(self.path), self.number, f"{path.name} {error.reason}") from error
            for spec in file.specs:
                wanted = (file.metadata or {}).get(spec.name)
                if spec.dtype != "uint8" or len(spec.shape) != 1 or wanted is None:
                    raise BadDelta(str(self.path), self.number, "is no change with a checksum", spec.name)
                if spec.name not in self.names or spec.name in seen:
                    raise BadDelta(str(self.path), self.number, "is not in the index, or in two files", spec.name)
                seen.add(spec.name)
                yield spec.name, file.load(spec.name).numpy(), wanted
        if missing := self.names - seen:
            raise BadDelta(str(self.path), self.number, "is in the index, and in no file", min(missing))


def published(directory: Path) -> list[Published]:
    """The versions of a delta directory in order; other names in it are passed over.

    Raises:
        BadDelta: it cannot be read, or the index of a version says what it cannot.
    """
    try:
        found = {int(told[1]): path for path in directory.iterdir() if (told := _VERSION.fullmatch(path.name))}
    except OSError as error:
        raise BadDelta(str(directory), None, f"it cannot be read: {error.strerror or error}") from error
    return [_read(path, number) for number, path in sorted(found.items()) if path.is_dir()]


def version_name(number: int) -> str:
    """What the directory of a published version is called."""
    return f"weight_v{number:06d}"


def write(
    directory: Path,
    number: int,
    changes: Iterable[tuple[str, bytes, str]],
    encoding: Encoding,
    algorithm: Checksum,
    leads: tuple[str, str],
) -> Path:
    """Publish a version: its directory appears whole, by one rename.

    Args:
        changes: name, stored change and checksum of each tensor that changed.
        leads: the ids of the versions it leads from and to.

    Raises:
        BadDelta: a name that a file cannot hold, or a place that is taken.
        StoreFull, StoreDenied, BadCheckpoint: the disk is full; the directory may not be written to, or cannot.
    """
    with reported(directory):
        directory.mkdir(parents=True, exist_ok=True)
        staging = directory / f".deltavc-{secrets.token_hex(8)}"
        staging.mkdir()
        try:
            files = list(_written(staging, number, changes))
            weight_map = {}
            for place, (path, names) in enumerate(files):
                name = f"model-{place:05d}-of-{len(files):05d}.safetensors"
                path.rename(staging / name)
                weight_map.update(dict.fromkeys(names, name))
            metadata = {
                "version": f"{number:06d}",
                "base_version": f"{number - 1:06d}",
                "delta_encoding": encoding,
                "compression_format": "zstd",
                "checksum_format": algorithm,
                "deltavc_base": leads[0],
                "deltavc_version": leads[1],
            }
            (staging / INDEX).write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}), encoding="utf-8")
            for path in (*staging.iterdir(), staging):
                flush(path)
            target = directory / version_name(number)
            if os.path.lexists(target):
                raise BadDelta(str(directory), number, "it is there already")
            staging.rename(target)
            flush(directory)
            return target
        finally:
            with suppress(FileNotFoundError):  # it was renamed into place
                shutil.rmtree(staging)


def _written(
    staging: Path, number: int, changes: Iterable[tuple[str, bytes, str]]
) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Write changes into files of about FILE_BYTES; each file and the names in it."""
    held: list[tuple[str, bytes, str]] = []
    nbytes = 0
    for change in changes:
        held.append(change)
        nbytes += len(change[1])
        if nbytes >= FILE_BYTES:
            yield _write_file(staging, number, held)
            held, nbytes = [], 0
    if held:
        yield _write_file(staging, number, held)


def _write_file(staging: Path, number: int, held: list[tuple[str, bytes, str]]) -> tuple[Path, tuple[str, ...]]:
    specs = [TensorSpec(name, "uint8", (len(stored),)) for name, stored, _ in held]
    for spec in specs:
        if (fault := refusal(spec)) is not None:
            raise BadDelta(str(staging.parent), number, fault, spec.name)
    head, starts, _ = lay_out(specs, {name: digest for name, _, digest in held})
    path = staging / f"part-{secrets.token_hex(4)}"
    with path.open("xb") as out:
        out.write(head)
        for _, stored in sorted((starts[name], stored) for name, stored, _ in held):
            out.write(stored)
    return path, tuple(name for name, _, _ in held)


def _read(path: Path, number: int) -> Published:
    index = path / INDEX
    if not index.is_file():
        return Published(path, number, None)
    try:
        content = canonical.loads(index.read_bytes())
        metadata, weight_map = content.get("metadata") or {}, content["weight_map"]
        if "delta_encoding" not in metadata:
            return Published(path, number, None)
        if not isinstance(weight_map, dict):
            raise ValueError("its weight_map is no map")
        if metadata["compression_format"] != "zstd":
            raise ValueError(f"it is compressed by {str(metadata['compression_format'])[:40]!r}, and only zstd is read")
        if _number(metadata, "version") != number:
            raise ValueError("it says that it is another version")
        leads = (metadata.get("deltavc_base"), metadata.get("deltavc_version"))
        return Published(
            path,
            number,
            _number(metadata, "base_version"),
            _one_of(metadata, "delta_encoding", get_args(Encoding)),
            _one_of(metadata, "checksum_format", get_args(Checksum)),
            frozenset(weight_map),
            (leads[0], leads[1]) if isinstance(leads[0], str) and isinstance(leads[1], str) else None,
        )
    except OSError as error:
        raise BadDelta(str(path), number, f"{INDEX} cannot be read: {error.strerror or error}") from error
    except (BadPayload, KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadDelta(str(path), number, f"{INDEX} does not say what it should: {str(error)[:200]}") from error


def _number(metadata: Mapping[str, Any], member: str) -> int:
    value = metadata[member]
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        raise ValueError(f"its {member} is no number")
    return int(value)


def _one_of(metadata: Mapping[str, Any], member: str, known: tuple[str, ...]) -> Any:
    if metadata[member] not in known:
        raise ValueError(f"its {member} is {str(metadata[member])[:40]!r}, which is none of {', '.join(known)}")
    return metadata[member]
