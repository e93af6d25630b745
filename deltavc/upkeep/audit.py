"""audit: everything there is to say about one version, for whoever has to vouch for it.

who, when and why        its record, proven by its id
from what                its history, step by step, with metrics
what happened to it      the branches and tags that contain it, every move of a ref to it, away from it or past it
what is stored           edges, packs' bytes, files with their hashes
what was verified        a `Verification`, made now
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from deltavc.access import Access
from deltavc.lineage.names import BRANCHES, TAGS
from deltavc.lineage.records import EdgeRecord, RefEntry
from deltavc.upkeep.verify import Verification
from deltavc.version import Version

COMMITTED = "commit"
"""What writers say why a branch moved to what they committed."""


@dataclass(frozen=True, slots=True)
class Move:
    """One move of a branch or tag that concerns a version.

    what: "to" it, "away" from it, "out" when it left the ref's history, "in" when it came into it.
    """

    what: Literal["to", "away", "out", "in"]
    entry: RefEntry

    def as_json(self) -> dict[str, Any]:
        entry = self.entry
        told = {"ref": entry.ref, "sequence": entry.sequence, "old": entry.old, "new": entry.new}
        return {"what": self.what, **told, "who": entry.who, "when": entry.when, "why": entry.why}


@dataclass(frozen=True, slots=True)
class Audit:
    """One version, told in full.

    history: the version and its ancestors along first parents, newest first. num_ancestors: all of them, of merges too.
    contained_in: full names of the branches and tags whose history has it. at: of those that are at it.
    files: name to BLAKE3 and bytes.
    """

    version: Version
    history: tuple[Version, ...]
    num_ancestors: int
    at: tuple[str, ...]
    contained_in: tuple[str, ...]
    moves: tuple[Move, ...]
    edges: tuple[EdgeRecord, ...]
    files: dict[str, tuple[str, int]]
    verification: Verification

    @property
    def ok(self) -> bool:
        """Whether the version was proven."""
        return self.verification.ok

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form, as `--json` prints it."""
        return {
            "ok": self.ok,
            "version": self.version.as_json(),
            "history": [version.as_json() for version in self.history],
            "num_ancestors": self.num_ancestors,
            "at": list(self.at),
            "contained_in": list(self.contained_in),
            "moves": [move.as_json() for move in self.moves],
            "edges": [
                {"id": edge.id, "base": edge.base, "nbytes": edge.nbytes, "changed_lanes": edge.changes}
                | {"origin": edge.origin, "packs": [use.pack for use in edge.packs]}
                for edge in self.edges
            ],
            "files": {name: {"blake3": digest, "nbytes": nbytes} for name, (digest, nbytes) in self.files.items()},
            "verification": self.verification.as_json(),
        }


def audit(access: Access, version: str, verification: Verification) -> Audit:
    """Gather everything about a version.

    Raises:
        UnknownRef; StoreError; DatabaseNeeded, DatabaseUnavailable: histories are asked of a database.
    """
    index = access.index
    index.catch_up_all()
    info = index.version(version)
    heads = {BRANCHES + name: at for name, at in index.branches().items()}
    heads |= {TAGS + name: at for name, at in index.tags().items()}
    return Audit(
        version=Version.known(info),
        history=tuple(Version.known(found) for found in index.log([version], first_parent=True)),
        num_ancestors=sum(1 for _ in index.log([version])) - 1,
        at=tuple(ref for ref, at in heads.items() if at == version),
        contained_in=tuple(ref for ref, at in heads.items() if _leads_to(access, at, version)),
        moves=tuple(_moves(access, version)),
        edges=tuple(index.edges_into(version)),
        files={name: (file.id[:64], file.nbytes) for name, file in sorted(info.record.files.items())},
        verification=verification,
    )


def _leads_to(access: Access, head: str, version: str) -> bool:
    """Whether `version` is `head` or an ancestor of it: then nothing of its own is left when that is taken away."""
    return not any(access.index.log([version], 1, exclude=[head]))


def _moves(access: Access, version: str) -> Iterator[Move]:
    """The moves that concern a version, oldest first."""
    found = [move for ref in access.refs.names() for move in _moves_of(access, access.index.reflog(ref), version)]
    yield from sorted(found, key=lambda move: (move.entry.when, move.entry.ref, move.entry.sequence))


def _moves_of(access: Access, entries: Iterable[RefEntry], version: str) -> Iterator[Move]:
    for entry in entries:
        if entry.new == version:
            yield Move("to", entry)
        elif entry.why != COMMITTED:  # a commit leaves everything where it was
            before = entry.old is not None and _leads_to(access, entry.old, version)
            after = entry.new is not None and _leads_to(access, entry.new, version)
            if before and not after:
                yield Move("away" if entry.old == version else "out", entry)
            elif after and not before and entry.old is not None:
                yield Move("in", entry)
