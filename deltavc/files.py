"""Files kept with a version: optimizer, RNG and loader state, tokenizer, config.

They are given as bytes or as paths, uploaded whole, and come back byte for byte. A file that is equal to the
one of the same name in the parent is not uploaded again: the version names the parent's.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from deltavc.errors import BadMetadata, CorruptObject, MissingObject, ObjectMissing
from deltavc.lineage.records import FileRef
from deltavc.store.objects import Store
from deltavc.store.transfers import Transfers
from deltavc.timings import Timings
from deltavc.weights.extras import file_name_fault, is_index, is_tensor_file

FileInput = bytes | bytearray | memoryview | str | Path
"""The content of a file, or the path it is read from."""

IN_MEMORY = 32 << 20
"""Files up to this size are read at once, so that the caller may change them while they are uploaded."""

_CHUNK = 4 << 20


class Files:
    """The files of one commit on their way to the store."""

    def __init__(self, store: Store, transfers: Transfers, timings: Timings) -> None:
        self._store = store
        self._transfers = transfers
        self._timings = timings
        self._uploads: list[Future[None]] = []
        self.refs: dict[str, FileRef] = {}
        self.nbytes = 0

    def take(self, inputs: Mapping[str, FileInput], parent: Mapping[str, FileRef]) -> None:
        """Read files, which `check_files` accepts, and begin to upload them. Returns once they may be changed.

        Raises:
            BadMetadata: a file that cannot be read, or changed while it was read.
        """
        for name, content in inputs.items():
            if isinstance(content, str | Path):
                self._take_path(name, Path(content), parent.get(name))
            else:
                self._take_bytes(name, bytes(content), parent.get(name))

    def wait(self) -> None:
        """Wait until every file is in the store; raises what an upload raised."""
        for upload in self._uploads:
            upload.result()

    def abandon(self) -> None:
        """Stop what has not begun to be uploaded."""
        for upload in self._uploads:
            upload.cancel()

    def _take_bytes(self, name: str, content: bytes, parent: FileRef | None) -> None:
        ref = self._keep(name, blake3(content).hexdigest(), len(content), parent)
        if ref is not None:
            self._uploads.append(self._transfers.submit(self._put, ref.key, content))

    def _take_path(self, name: str, path: Path, parent: FileRef | None) -> None:
        try:
            before = path.stat()
            if before.st_size <= IN_MEMORY:
                self._take_bytes(name, path.read_bytes(), parent)
                return
            ref = self._keep(name, digest(path), before.st_size, parent)
            if ref is None:
                return
            with self._timings.stage("upload"):
                self._store.put_path(ref.key, path)
            after = path.stat()
        except OSError as error:
            raise BadMetadata(f"files[{name!r}]", f"{path}: {error.strerror or error}") from error
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise BadMetadata(f"files[{name!r}]", f"{path} changed while it was read")

    def _keep(self, name: str, digest: str, nbytes: int, parent: FileRef | None) -> FileRef | None:
        """Note the file; its ref if it has to be uploaded."""
        if parent is not None and parent.id.startswith(digest) and parent.nbytes == nbytes:
            self.refs[name] = parent
            return None
        self.refs[name] = FileRef(f"{digest}-{secrets.token_hex(16)}", nbytes)
        self.nbytes += nbytes
        return self.refs[name]

    def _put(self, key: str, content: bytes) -> None:
        with self._timings.stage("upload"):
            self._store.put(key, content)


def write_file(store: Store, file: FileRef, version: str, out: BinaryIO) -> None:
    """Write a kept file to `out`, in bounded memory.

    Raises:
        MissingObject, CorruptObject: it is gone or damaged; what was written is then worth nothing.
    """
    hasher, start = blake3(), 0
    while start < file.nbytes:
        try:
            piece = store.get(file.key, start, min(_CHUNK, file.nbytes - start + 1))  # one more than there should be
        except ObjectMissing as error:
            raise MissingObject(file.key, version=version) from error
        if not piece:
            break
        hasher.update(piece)
        out.write(piece)
        start += len(piece)
    if start != file.nbytes or hasher.hexdigest() != file.id[:64]:
        raise CorruptObject(file.key, "its content is not what its name says", version)


def read_file(store: Store, file: FileRef, version: str) -> bytes:
    """The bytes of a kept file, checked. Raises MissingObject, CorruptObject."""
    try:
        content = store.get(file.key, 0, file.nbytes + 1)
    except ObjectMissing as error:
        raise MissingObject(file.key, version=version) from error
    if len(content) != file.nbytes or blake3(content).hexdigest() != file.id[:64]:
        raise CorruptObject(file.key, "its content is not what its name says", version)
    return content


def check_files(inputs: object) -> None:
    """Refuse what cannot be kept with a version: names that are not fit, and what is neither bytes nor a path.

    Raises:
        BadMetadata: says which.
    """
    if not isinstance(inputs, Mapping):
        raise BadMetadata("files", f"a {type(inputs).__name__} is not a mapping")
    for name, content in inputs.items():
        check_file_name(name)
        if not isinstance(content, FileInput):
            raise BadMetadata(f"files[{name[:80]!r}]", f"a {type(content).__name__} is neither bytes nor a path")


def check_file_name(name: object) -> None:
    """Refuse names that a checkout could not, or must not, write beside the weights. Raises BadMetadata."""
    if not isinstance(name, str):
        raise BadMetadata("files", f"{name!r} is not a name")
    if (fault := file_name_fault(name)) is not None:
        raise BadMetadata(f"files[{name[:80]!r}]", fault)
    if "/" not in name and (is_tensor_file(name) or is_index(name)):
        raise BadMetadata(f"files[{name[:80]!r}]", "names of weight files are taken by the weights themselves")


def digest(path: Path) -> str:
    """The BLAKE3 of a file, read in bounded memory; a `FileRef.id` begins with it. Raises OSError."""
    hasher = blake3()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()
