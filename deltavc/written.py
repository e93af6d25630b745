"""A version as files: which there are, what each of them holds, writing some and reading them back.

What a file holds has a name: the BLAKE3 of its header and its tensors' fingerprints, or of its bytes. Where two
versions have a file with equal contents, moving from one to the other leaves it alone.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

import torch
from blake3 import blake3
from torch import Tensor

from deltavc import fingerprints
from deltavc.errors import BadCheckpoint, WrongWeights
from deltavc.files import digest, write_file
from deltavc.held import HeldLanes
from deltavc.kernels import pool
from deltavc.lanes import LANE_DTYPES, from_lanes, lanes
from deltavc.layout import Layout
from deltavc.lineage.records import VersionRecord
from deltavc.reader import fingerprint
from deltavc.store.objects import Store
from deltavc.weights import output, shards
from deltavc.weights.tensorfile import TensorFile


class VersionFiles:
    """The files of a version in a directory: its weights, laid out as they were committed, and those kept with it.

    names: of all of them, weights first.

    Args:
        directory: where they are, or are to be.
        leave_out: names of kept files that have no place there.

    Raises:
        BadCheckpoint: the version cannot be written as .safetensors files, or has a file name that is not fit.
    """

    def __init__(self, directory: Path, record: VersionRecord, layout: Layout, leave_out: Collection[str] = ()) -> None:
        self._directory = directory
        self._record = record
        self._layout = layout
        self._planned = shards.plan(str(directory), layout, record.source)
        self._kept = {name: file for name, file in record.files.items() if name not in leave_out}
        self.names = (*self._planned.names, *self._kept)
        output.check_names(directory, self._planned, list(self.names))
        heads = output.lay_out_shards(directory, self._planned)
        self._shards = list(zip(self._planned.shards, heads, strict=True))

    def contents(self, values: Mapping[str, int]) -> dict[str, str]:
        """What each file holds, by the file's name.

        Args:
            values: fingerprint of every stored tensor by name.
        """
        found = {}
        for shard, (head, _, _) in self._shards:
            told = [values[spec.tie or spec.name] for spec in shard.specs]
            found[shard.name] = blake3(head + struct.pack(f"<{len(told)}Q", *told)).hexdigest()
        return found | self.others()

    def others(self) -> dict[str, str]:
        """What the files hold that are no weights, by the file's name."""
        found = {name: file.id[:64] for name, file in self._kept.items()}
        if self._planned.index is not None:
            found[self._planned.index.name] = blake3(self._planned.index_text().encode()).hexdigest()
        return found

    def laid_out_as(self, other: VersionFiles) -> bool:
        """Whether both have the same tensors at the same places of the same files."""
        placed = [[(shard.name, head) for shard, (head, _, _) in files._shards] for files in (self, other)]
        return self._layout.id == other._layout.id and placed[0] == placed[1]

    def mapped(self) -> dict[str, Tensor]:
        """The tensors of the files in the directory by name, tied ones too, in memory that is the files: who writes to
        them writes to the files. What they hold is not looked at.

        Raises:
            BadCheckpoint: a file is not there, or laid out otherwise.
        """
        found: dict[str, Tensor] = {}
        for shard, (head, offsets, size) in self._shards:
            path = self._directory / shard.name
            if _begins(path, len(head)) != (head, size):
                raise BadCheckpoint(str(path), "is laid out otherwise")
            with output.reported(path):
                bits = torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)
            for spec in shard.specs:
                start = offsets[spec.name]  # the format keeps wide dtypes before narrow ones, so they are all aligned
                own = bits[start : start + spec.nbytes].view(LANE_DTYPES[spec.lane_bytes])
                found[spec.name] = from_lanes(own.view(spec.lane_shape), spec.dtype)
        return found

    def write(self, folder: Path, names: Collection[str], held: HeldLanes, store: Store) -> None:
        """Write those of the files that are in `names` into an empty folder, from lanes that are the version's.

        Raises:
            StoreDenied, StoreFull, BadCheckpoint: the folder cannot be written to.
            Corruption, StoreError: a kept file is damaged, or cannot be read from the store.
        """
        chosen = [shard for shard in self._planned.shards if shard.name in names]
        heads = [head for shard, head in self._shards if shard.name in names]
        stored = dict.fromkeys(spec.tie or spec.name for shard in chosen for spec in shard.specs)
        place, specs = self._layout.place, self._layout.tensors
        tensors = ((name, from_lanes(held[name], specs[place[name]].dtype)) for name in stored)
        with output.reported(self._directory):
            output.write_tensors(folder, tensors, self._layout, chosen, heads)
            if self._planned.index is not None and self._planned.index.name in names:
                (folder / self._planned.index.name).write_text(self._planned.index_text(), encoding="utf-8")
            for name in names & self._kept.keys():
                output.write_extra(folder, name, partial(write_file, store, self._kept[name], self._record.id))

    def read(self, held: HeldLanes) -> dict[str, int]:
        """Read the weights back into lanes, and prove that they are the version's.

        Args:
            held: every tensor is started in it.

        Returns:
            The fingerprint of every stored tensor by name.

        Raises:
            BadCheckpoint: a file is not there, damaged, or laid out otherwise.
            WrongWeights: its values are not the version's.
        """
        values: dict[str, int] = {}
        copies: dict[str, int] = {}
        for shard, (head, _, size) in self._shards:
            path = self._directory / shard.name
            if _begins(path, len(head)) != (head, size):
                raise BadCheckpoint(str(path), "is laid out otherwise")
            file = TensorFile(path)
            for spec in shard.specs:
                bits = lanes(file.load(spec.name))
                if spec.tie is None:
                    held.start(spec.name, self._layout)
                    pool.apart(bits.device, partial(held[spec.name].copy_, bits))
                    values[spec.name] = fingerprint(self._layout, spec.name, held[spec.name])
                else:
                    copies[spec.name] = fingerprint(self._layout, spec.name, bits)
        tied = {name: self._layout.tensors[self._layout.place[name]].tie for name in copies}
        wrong = tuple(name for name, value in copies.items() if values[str(tied[name])] != value)
        if wrong or fingerprints.root(self._layout, values) != self._record.fingerprint:
            raise WrongWeights(self._record.id, wrong)
        return values

    def seen(self, values: Mapping[str, int]) -> dict[str, str]:
        """What the files in the directory hold, without those that do not hold what they should.

        Args:
            values: what `read` gave; weights are not read again.
        """
        weights = {shard.name for shard in self._planned.shards}
        expected = self.contents(values).items()
        return {name: it for name, it in expected if name in weights or _digest(self._directory / name) == it}


def _begins(path: Path, nbytes: int) -> tuple[bytes, int]:
    """A file's first bytes and its size."""
    try:
        with path.open("rb") as file:
            return file.read(nbytes), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise BadCheckpoint(str(path), f"cannot be read: {error.strerror}") from error


def _digest(path: Path) -> str | None:
    try:
        return digest(path)
    except OSError:
        return None
