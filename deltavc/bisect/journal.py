"""A search that outlives the process: what was marked, in a file that is replaced as a whole.

    FOLDER/state.json    marks, what is tried now, and where; JSON with its checksum
    FOLDER/lock          held while a mark is added, by one process at a time
    FOLDER/weights/      where versions are tried, unless another directory was named
    FOLDER/.gitignore    keeps all of it out of a git repository that holds the folder

What follows from marks is not in it: it is worked out anew from the lineage each time. Ids are kept, not refs, so a
branch may move meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import secrets
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from deltavc import canonical
from deltavc.bisect.marks import Mark, Marks, Verdict
from deltavc.errors import BadJournal, BadPayload
from deltavc.store.files import file_errors, replacing

STATE = "state.json"
WEIGHTS = "weights"


@dataclass(frozen=True, slots=True)
class Session:
    """A search that was started.

    id: of this start, so that a process notices that somebody started anew. current: the version that was last said to
    be tried. directory: where versions are to be tried, if one was named. leave_out: patterns of kept files that are
    not put there.
    """

    id: str = field(default_factory=lambda: secrets.token_hex(8))
    marks: Marks = field(default_factory=Marks)
    current: str | None = None
    directory: str | None = None
    leave_out: tuple[str, ...] = ()

    def marking(self, verdict: Verdict, versions: Iterable[str]) -> Session:
        """The search with more marks."""
        return replace(self, marks=self.marks.adding(verdict, versions))

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form."""
        marks = [[mark.verdict, mark.version] for mark in self.marks.entries]
        return dataclasses.asdict(self) | {"marks": marks, "leave_out": list(self.leave_out)}

    @classmethod
    def parse(cls, item: Mapping[str, Any]) -> Session:
        """Read what `as_json` gave. Raises ValueError, TypeError, KeyError."""
        marks = tuple(Mark(verdict, version) for verdict, version in item["marks"])
        if not all(mark.verdict in get_args(Verdict) and isinstance(mark.version, str) for mark in marks):
            raise ValueError("a mark is none")
        if not isinstance(item["id"], str) or not all(
            isinstance(item[name], str | None) for name in ("current", "directory")
        ):
            raise ValueError("an entry is no text")
        return cls(item["id"], Marks(marks), item["current"], item["directory"], tuple(map(str, item["leave_out"])))


class Journal:
    """The folder of a search. What it raises beside BadJournal: StoreDenied, StoreFull."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def weights(self) -> Path:
        """Where versions are tried if no other directory is named."""
        return self._folder / WEIGHTS

    def read(self) -> Session | None:
        """The search that is on its way, if there is one. Raises BadJournal."""
        path = self._folder / STATE
        try:
            return Session.parse(canonical.unsealed(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (BadPayload, ValueError, TypeError, KeyError) as error:
            raise BadJournal(str(path), f"is not what deltavc wrote: {error}") from error

    def write(self, session: Session) -> None:
        """Keep a search: wholly, or the one before."""
        body = canonical.sealed(session.as_json(), "search")
        with file_errors(str(self._folder), "keeping a search"), replacing(str(self._folder / STATE)) as file:
            file.write(body)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other process change the search meanwhile; waits for one that does."""
        path = self._folder / "lock"
        while True:
            with file_errors(str(self._folder), "keeping a search"):
                self._folder.mkdir(parents=True, exist_ok=True)
                (self._folder / ".gitignore").write_text("*\n")  # what lies here may be large
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                if not path.exists() or not os.path.samestat(os.fstat(file), path.stat()):
                    continue  # somebody ended the search and removed the folder
                yield
                return
            finally:
                os.close(file)

    def remove(self) -> bool:
        """Forget the search, and what was tried in the folder. Returns whether there was one."""
        was = (self._folder / STATE).exists()
        with file_errors(str(self._folder), "keeping a search"):
            (self._folder / STATE).unlink(missing_ok=True)
            shutil.rmtree(self._folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # another repository's search is in it
                self._folder.parent.rmdir()
        return was


def as_script(marks: Marks, told: Mapping[str, str]) -> str:
    """Marks as the commands that make them. `told` says what people know a version by."""
    lines = ["deltavc bisect start"]
    for mark in marks.entries:
        lines += [f"# {mark.verdict}: {told[mark.version]}", f"deltavc bisect {mark.verdict} {mark.version}"]
    return "\n".join(lines)


def parse_script(path: str, text: str) -> Iterator[tuple[Verdict, list[str]]]:
    """The marks of commands such as `as_script` writes, as verdicts and refs. Raises BadJournal."""
    for number, line in enumerate(text.splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise BadJournal(path, f"line {number}: {error}") from None
        match words:
            case [] | ["deltavc", "bisect", "start"]:
                pass
            case ["deltavc", "bisect", "good" | "bad" | "skip" as verdict, *refs] if refs:
                yield verdict, refs
            case _:
                raise BadJournal(path, f"line {number} is no `deltavc bisect good`, `bad` or `skip` of a version")
