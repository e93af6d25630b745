"""A spool: bytes put aside on the disk, in a temporary file that no one else sees."""

from __future__ import annotations

import errno
import os
import tempfile
from types import TracebackType
from typing import Self

from deltavc.errors import StoreFull, StoreUnavailable

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Spool:
    """Keeps pieces of bytes, each at a place. To be closed."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by close()
        self._end = 0

    def add(self, body: bytes) -> tuple[int, int]:
        """Put a piece aside; its place: where it starts, and its length in bytes.

        Raises:
            StoreFull, StoreUnavailable: there is no room for it where temporary files lie; it fails otherwise.
        """
        start, rest = self._end, memoryview(body)
        while rest:
            rest = rest[self._write(rest) :]
        return start, len(body)

    def get(self, place: tuple[int, int], start: int = 0, nbytes: int | None = None) -> bytes:
        """The bytes of a piece from `start`, at most `nbytes` of them."""
        left = max(place[1] - start, 0)
        return os.pread(self._file.fileno(), left if nbytes is None else min(nbytes, left), place[0] + start)

    def close(self) -> None:
        """Let go of all pieces."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, body: memoryview) -> int:
        try:
            written = os.pwrite(self._file.fileno(), body, self._end)  # on a disk that is nearly full, a part
        except OSError as error:
            place, operation = tempfile.gettempdir(), "temporary files"
            if error.errno in _FULL:
                raise StoreFull(place, operation) from error
            raise StoreUnavailable(place, operation, error.strerror or str(error)) from error
        self._end += written
        return written
