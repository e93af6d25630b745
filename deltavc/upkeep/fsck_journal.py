"""What a full check has done already, so that one that was interrupted goes on where it was.

    <cache>/fsck/<hash of the repository's id and URL>
        2026-11-29T14:26:38Z  <what>               a line for each edge (and group of tensors), and for each file

Objects never change, so what was found whole stays so, unless the store itself loses bits; a result therefore holds
for a week. Lines are appended as things are checked; a line that a crash cut short is passed over. A journal that
cannot be written costs the next check time, and fails nothing.
"""

from __future__ import annotations

import datetime
import logging
import os
import re
from pathlib import Path
from typing import TextIO

import platformdirs
from blake3 import blake3

from deltavc.store.files import replacing

HOLDS = datetime.timedelta(days=7)
"""How long a result is relied on."""

_LINE = re.compile(r"(?P<when>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) (?P<what>\S+)\n")
_FORM = "%Y-%m-%dT%H:%M:%SZ"

log = logging.getLogger(__name__)


class Journal:
    """Results by what was checked. To be closed."""

    def __init__(self, path: Path, *, anew: bool = False) -> None:
        """Read a journal. anew: rely on none of it."""
        self._path = path
        self._done = {} if anew else _read(path)
        self._file = _open(path, self._done)

    @classmethod
    def of(cls, repository_id: str, url: str, *, anew: bool = False) -> Journal:
        """The journal of one repository in one place: a copy of it elsewhere has bits of its own to lose."""
        name = blake3(f"{repository_id}\0{url}".encode()).hexdigest(length=16)
        return cls(platformdirs.user_cache_path("deltavc") / "fsck" / name, anew=anew)

    def __contains__(self, what: str) -> bool:
        return what in self._done

    def when(self, what: str) -> str:
        """When it was checked: UTC, ISO 8601."""
        return self._done[what]

    def add(self, what: str) -> None:
        """Note that something was found whole, now."""
        now = datetime.datetime.now(datetime.UTC).strftime(_FORM)
        self._done[what] = now
        if self._file is not None:
            try:
                self._file.write(f"{now} {what}\n")
                self._file.flush()
            except OSError as error:
                _complain(self._path, error)
                self._file = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _read(path: Path) -> dict[str, str]:
    oldest = (datetime.datetime.now(datetime.UTC) - HOLDS).strftime(_FORM)
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            found = [line for text in file if (line := _LINE.fullmatch(text))]
    except FileNotFoundError:
        return {}
    except OSError as error:
        _complain(path, error)
        return {}
    return {line["what"]: line["when"] for line in found if line["when"] >= oldest}


def _open(path: Path, done: dict[str, str]) -> TextIO | None:
    """Write the journal again without what has passed, and open it to add to it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(os.fspath(path)) as file:
            file.write("".join(f"{when} {what}\n" for what, when in done.items()).encode())
        return open(path, "a", encoding="ascii")
    except OSError as error:
        _complain(path, error)
        return None


def _complain(path: Path, error: OSError) -> None:
    log.warning("what was checked cannot be kept in %s, so an interrupted check begins again: %s", path, error)
