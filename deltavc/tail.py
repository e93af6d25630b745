"""The tail of a branch: its last moves, and then every move as it happens, with `tail -f` for a model.

    for move in repo.tail("main"):
        print(move.kind, move.version.step)        # committed 118, committed 119, rolled_back 117, committed 118, ...

A branch moves by entries that are numbered and never change, so none is missed or told twice, whatever happens between
two looks. A branch that has not moved costs one small request; no database is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from deltavc.errors import UnknownRef
from deltavc.lineage import names
from deltavc.lineage.index import Index
from deltavc.lineage.names import BRANCHES
from deltavc.lineage.records import RefEntry
from deltavc.lineage.resolve import resolve
from deltavc.store import retry
from deltavc.version import Version
from deltavc.watch import Looking

Kind = Literal["committed", "rolled_back", "moved", "created", "deleted"]

_TOGETHER = 256
"""Moves whose versions are read at once, after a long time without a look."""


@dataclass(frozen=True, slots=True)
class BranchMove:
    """One move of a branch.

    kind: "committed" to the version; "rolled_back", to one that was committed before the one where the branch was;
        "moved", to any other; "created" at the version; or "deleted".
    version: where the branch went; None when it was deleted. old: id of the version where it was, if it was anywhere.
    who, when, why: of the move; `when` is UTC as ISO 8601.
    """

    kind: Kind
    branch: str
    version: Version | None
    old: str | None
    who: str
    when: str
    why: str

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form, as `--json` prints it."""
        return {
            "kind": self.kind,
            "branch": self.branch,
            "version": None if self.version is None else self.version.as_json(),
            "old": self.old,
            "who": self.who,
            "when": self.when,
            "why": self.why,
        }


class Tail:
    """The last moves of a branch, oldest first, and then every further one. Iterate over it in one thread.

    While the store or the database is away, it waits, and logs a warning when that begins and when it is over.

    Args:
        branch: which exists. One that is deleted later may be made anew.
        last: how many moves to begin with.
        every: seconds from one look to the next.

    Raises:
        UnknownRef: there is no such branch.
    """

    def __init__(self, index: Index, branch: str, last: int, every: float) -> None:
        name = branch.removeprefix(BRANCHES)
        ref = names.branch_ref(name)
        try:
            resolve(index, ref)
        except UnknownRef as error:
            reason = "there is no branch of this name" if index.head(ref) is None else error.reason
            raise UnknownRef(name, reason, error.candidates) from None
        self._looks = _Looks(index, ref, last, every)

    def __iter__(self) -> Iterator[BranchMove]:
        """Yield moves until `stop`.

        Raises:
            DeltavcError: whatever does not pass by itself: no access any more, damaged objects.
        """
        return chain.from_iterable(self._looks)

    def stop(self) -> None:
        """End the iteration, also while it waits. May be called from any thread."""
        self._looks.stop()


class _Looks(Looking[Sequence[BranchMove]]):
    def __init__(self, index: Index, ref: str, last: int, every: float) -> None:
        super().__init__(index, ref, every=every)
        self._last = last
        self._told: int | None = None

    def look(self) -> Sequence[BranchMove] | None:
        with retry.once():
            self._index.catch_up([self.ref])
            head = self._index.head(self.ref)
            if head is None:
                return None
            new = self._last if self._told is None else head.sequence - self._told
            entries = self._index.refs.latest(head, new)[::-1] if new else []  # the database may be ahead of it by now
            moves = list(self._moves(entries))
        self._told = head.sequence
        return moves or None

    def _moves(self, entries: Sequence[RefEntry]) -> Iterator[BranchMove]:
        branch = self.ref.removeprefix(BRANCHES)
        for start in range(0, len(entries), _TOGETHER):
            some = entries[start : start + _TOGETHER]
            ids = sorted({version for entry in some for version in (entry.old, entry.new) if version is not None})
            known = {info.id: Version.known(info, branch) for info in self._index.versions(ids)}
            for entry in some:
                new = None if entry.new is None else known[entry.new]
                kind = _kind(entry, new, None if entry.old is None else known[entry.old])
                yield BranchMove(kind, branch, new, entry.old, entry.who, entry.when, entry.why)


def _kind(entry: RefEntry, new: Version | None, old: Version | None) -> Kind:
    if new is None:
        return "deleted"
    if old is None:
        return "created" if entry.why.startswith("created at ") else "committed"
    if old.id in new.parents:
        return "committed"
    return "rolled_back" if new.time < old.time else "moved"
