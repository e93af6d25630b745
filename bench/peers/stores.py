"""Ways to keep a whole run: commit one state after another, and get any of them back.

A store gets a folder that is its own, and states as lanes by tensor. All of them have the bytes on the disk before
`commit` returns, as far as they know how to.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

import deltavc
from bench.peers import commands
from bench.peers.schemes import apply_patch, make_patch

Lanes = dict[str, Tensor]
PASSWORD = {"RESTIC_PASSWORD": "not a secret"}


class Store(Protocol):
    """A run in the making."""

    def commit(self, step: int, state: Lanes) -> None: ...

    def checkout(self, step: int) -> Lanes: ...

    def nbytes(self) -> int:
        """Bytes of all that has to be kept."""

    def close(self) -> None: ...


class Deltavc:
    """A repository and the writer that a trainer would keep. Its database does not count: it is an index."""

    def __init__(
        self, folder: Path, url: str | None = None, options: dict[str, Any] | None = None, codec: str | None = None
    ) -> None:
        self._objects = folder / "repo"
        folder.mkdir(parents=True, exist_ok=True)
        database = f"sqlite:///{folder / 'lineage.db'}"
        self._repo = deltavc.init(url or str(self._objects), db=database, storage_options=options)
        self._writer = self._repo.writer("main", codec=codec)
        self._ids: dict[int, str] = {}

    def commit(self, step: int, state: Lanes) -> None:
        self._ids[step] = self._writer.commit(state, step=step).id

    def checkout(self, step: int) -> Lanes:
        return dict(self._repo.checkout(self._ids[step]))

    def nbytes(self) -> int:
        return folder_nbytes(self._objects)

    def close(self) -> None:
        self._writer.close()
        self._repo.close()


class FullFiles:
    """A .safetensors file for every step."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder

    def commit(self, step: int, state: Lanes) -> None:
        write_file(self._file(step), state)

    def checkout(self, step: int) -> Lanes:
        return read_file(self._file(step))

    def nbytes(self) -> int:
        return folder_nbytes(self._folder)

    def close(self) -> None: ...

    def _file(self, step: int) -> Path:
        return self._folder / f"{step}.safetensors"


class FullObjects:
    """The same in S3: an object for every step."""

    def __init__(self, bucket: str, options: dict[str, Any]) -> None:
        import s3fs

        self._files = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False, **options)
        self._bucket = bucket

    def commit(self, step: int, state: Lanes) -> None:
        self._files.pipe_file(self._key(step), safetensors.torch.save(state))

    def checkout(self, step: int) -> Lanes:
        return safetensors.torch.load(self._files.cat_file(self._key(step)))

    def nbytes(self) -> int:
        return int(self._files.du(self._bucket))

    def close(self) -> None: ...

    def _key(self, step: int) -> str:
        return f"{self._bucket}/{step}.safetensors"


class PositionsAndValues:
    """The first step in full, then files of int32 positions and new values; read one after another."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._last: Lanes = {}

    def commit(self, step: int, state: Lanes) -> None:
        if not self._last:
            write_file(self._file(step), state)
        else:
            changes = {}
            for name, tensor in state.items():
                old, new = self._last[name].numpy().reshape(-1), tensor.numpy().reshape(-1)
                positions = np.flatnonzero(old != new)
                changes[f"{name}/positions"] = torch.from_numpy(positions.astype(np.int32))
                changes[f"{name}/values"] = torch.from_numpy(new[positions])
            write_file(self._file(step), changes)
        self._last = {name: tensor.clone() for name, tensor in state.items()}

    def checkout(self, step: int) -> Lanes:
        state = read_file(self._file(0))
        for each in range(1, step + 1):
            changes = safetensors.torch.load_file(self._file(each))
            for name, tensor in state.items():
                tensor.view(-1).numpy()[changes[f"{name}/positions"].numpy()] = changes[f"{name}/values"].numpy()
        return state

    def nbytes(self) -> int:
        return folder_nbytes(self._folder)

    def close(self) -> None: ...

    def _file(self, step: int) -> Path:
        return self._folder / f"{step}.safetensors"


class ZstdPatches:
    """The first step in full, then a `zstd --patch-from` of every step from the one before."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._kept = folder / "kept"
        self._kept.mkdir()
        self._last, self._new = folder / "last", folder / "new"
        self._from, self._to = folder / "from", folder / "to"

    def commit(self, step: int, state: Lanes) -> None:
        write_file(self._new, state)
        if step:
            make_patch(self._last, self._new, self._kept / str(step))
            synchronize(self._kept / str(step))
        else:
            shutil.copyfile(self._new, self._kept / "0")
            synchronize(self._kept / "0")
        self._new.replace(self._last)

    def checkout(self, step: int) -> Lanes:
        shutil.copyfile(self._kept / "0", self._from)
        for each in range(1, step + 1):
            apply_patch(self._from, self._kept / str(each), self._to)
            self._to.replace(self._from)
        return read_file(self._from)

    def nbytes(self) -> int:
        return folder_nbytes(self._kept)

    def close(self) -> None: ...


class Restic:
    """A restic repository, in a folder or in S3; every step is a backup of one .safetensors file."""

    def __init__(self, folder: Path, url: str | None = None, environment: dict[str, str] | None = None) -> None:
        folder.mkdir()
        self._repository = url or str(folder / "repo")
        self._local = folder / "repo"
        self._file, self._back = folder / "weights.safetensors", folder / "back"
        self._environment = {**os.environ, **PASSWORD, **(environment or {})}
        self._base = ("restic", "-q", "--cache-dir", str(folder / "cache"), "-r", self._repository)
        self._run("init", "--repository-version", "2")

    def commit(self, step: int, state: Lanes) -> None:
        write_file(self._file, state)
        self._run("backup", "--tag", f"step-{step}", self._file)

    def checkout(self, step: int) -> Lanes:
        shutil.rmtree(self._back, ignore_errors=True)
        self._run("restore", "latest", "--tag", f"step-{step}", "--target", self._back)
        (found,) = self._back.rglob(self._file.name)
        return read_file(found)

    def nbytes(self) -> int:
        return folder_nbytes(self._local)

    def close(self) -> None: ...

    def _run(self, *arguments: str | Path) -> None:
        commands.run(*self._base, *arguments, environment=self._environment)


class Moonclip:
    """moonclip with its settings as they come, but for those that would fold or drop steps."""

    def __init__(self, folder: Path, s3: dict[str, Any] | None = None) -> None:
        from moonclip import MoonclipManager

        self._folder = folder
        self._synchronize = s3 is not None
        self._manager = MoonclipManager(
            str(folder), async_save=False, max_deltas_per_full=10_000, merge_max_chain=10_000, **(s3 or {})
        )
        self._ids: dict[int, str] = {}
        self._like: Lanes = {}

    def commit(self, step: int, state: Lanes) -> None:
        self._ids[step] = self._manager.save_tensors(step, state)
        if self._synchronize:
            self._manager.sync_now()
        self._like = {name: tensor.to("meta") for name, tensor in state.items()}

    def checkout(self, step: int) -> Lanes:
        read = self._manager.load(self._ids[step])
        return {
            name: torch.frombuffer(read[name], dtype=tensor.dtype).view(tensor.shape)
            for name, tensor in self._like.items()
        }

    def nbytes(self) -> int:
        return folder_nbytes(self._folder)

    def close(self) -> None:
        self._manager.flush()


def stores() -> dict[str, Callable[[Path], Store]]:
    """All stores that can be had here, by the names that they have in tables."""
    found: dict[str, Callable[[Path], Store]] = {
        "deltavc": Deltavc,
        "xor-zstd": functools.partial(Deltavc, codec="xor-zstd"),
        "int32 + values": PositionsAndValues,
    }
    if importlib.util.find_spec("moonclip") is not None:
        found["moonclip"] = Moonclip
    if commands.installed("zstd"):
        found["zstd --patch-from"] = ZstdPatches
    if commands.installed("restic"):
        found["restic"] = Restic
    found["full"] = FullFiles
    return found


def s3_stores(server: Any, folder: Path) -> dict[str, Callable[[], Store]]:
    """Stores on a real S3 server (`tests.servers.S3Server`), each in a bucket of its own."""
    options = server.storage_options
    key, secret = options["key"], options["secret"]

    def restic() -> Store:
        bucket = server.new_bucket().removeprefix("s3://")
        environment = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        return Restic(folder / "restic", f"s3:{server.endpoint}/{bucket}", environment)

    def moonclip() -> Store:
        bucket = server.new_bucket().removeprefix("s3://")
        access = {"s3_endpoint": server.endpoint, "s3_access_key": key, "s3_secret_key": secret}
        return Moonclip(folder / "moonclip", {"s3_bucket": bucket, **access})

    found: dict[str, Callable[[], Store]] = {
        "deltavc": lambda: Deltavc(folder / "deltavc", f"{server.new_bucket()}/repo", options),
        "full": lambda: FullObjects(server.new_bucket().removeprefix("s3://"), options),
    }
    if importlib.util.find_spec("moonclip") is not None:
        found["moonclip"] = moonclip
    if commands.installed("restic"):
        found["restic"] = restic
    return found


def write_file(path: Path, state: Lanes) -> None:
    safetensors.torch.save_file(state, path)
    synchronize(path)


def read_file(path: Path) -> Lanes:
    """Tensors in memory of their own, not mapped from the file, which may go."""
    return safetensors.torch.load(path.read_bytes())


def synchronize(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def folder_nbytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # moonclip tidies up on a thread of its own
            total += path.stat().st_size if path.is_file() else 0
    return total
