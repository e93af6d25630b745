"""Looking up: what can be asked of a repository without touching any weights.

A ref that is asked for is followed into the bucket first, so answers are as new as the question. None of this
imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deltavc import notebook
from deltavc.errors import CorruptObject, DeltavcError, UnknownRef
from deltavc.lineage import names
from deltavc.lineage.history import Totals
from deltavc.lineage.index import Index
from deltavc.lineage.records import EdgeRecord, RefEntry
from deltavc.lineage.refs import Refs
from deltavc.lineage.resolve import resolve, resolve_range
from deltavc.version import Version

_SHOWN_BRANCHES = 20
"""Branches that a notebook is shown: without a database, each takes a few requests."""


class Lookup:
    """The questions that a `Repo` answers from its database and its refs."""

    def __init__(self, index: Index, refs: Refs) -> None:
        self._index = index
        self._refs = refs

    def resolve(self, ref: str) -> str:
        """The full id of the version that a ref names. Raises UnknownRef, AmbiguousRef."""
        return resolve(self._index, ref)

    def version(self, ref: str = "main") -> Version:
        """What is known of a version. Raises UnknownRef, AmbiguousRef."""
        return Version.known(self._index.version(self.resolve(ref)))

    def log(
        self, ref: str = "main", limit: int | None = None, *, all: bool = False, first_parent: bool = False
    ) -> list[Version]:
        """Versions that a ref leads to, newest first. `history` gives the same one by one.

        Args:
            ref: a ref, or `A..B` for what B has and A has not.
            limit: how many at most; None for all of them.
            all: every version ever committed instead, rolled-back ones too.
            first_parent: follow only the first parent of merges.

        Raises:
            UnknownRef, AmbiguousRef; DatabaseNeeded
            ValueError: a negative limit.
        """
        return list(self.history(ref, limit, all=all, first_parent=first_parent))

    def history(
        self, ref: str = "main", limit: int | None = None, *, all: bool = False, first_parent: bool = False
    ) -> Iterator[Version]:
        """What `log` gives, read in pages as it is asked for: a history of any length takes little memory."""
        limit = _checked(limit)
        if all:
            self._index.catch_up_all()
            return map(Version.known, self._index.log(None, limit))
        without, of = resolve_range(self._index, ref)
        exclude = [] if without is None else [without]
        return map(Version.known, self._index.log([of], limit, first_parent=first_parent, exclude=exclude))

    def reflog(self, branch: str = "main", limit: int | None = None) -> list[RefEntry]:
        """The moves of a branch, newest first: who, when, why, from where to where.

        Raises:
            UnknownRef
            ValueError: a negative limit.
        """
        ref = names.branch_ref(branch)
        self._index.catch_up([ref])
        found = self._index.reflog(ref, _checked(limit))
        if not found:
            raise UnknownRef(branch, "there is no branch of this name")
        return found

    def tensors(self, ref: str = "main") -> list[dict[str, Any]]:
        """Name, dtype, shape and tie of every tensor of a version. Raises UnknownRef, AmbiguousRef."""
        record = self._index.version(self.resolve(ref)).record
        layout = self._index.layout(record.layout)
        if layout is None:
            raise CorruptObject(record.layout, "the index has no such layout")
        return [
            {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape), "tie": tensor.tie}
            for tensor in layout.tensors
        ]

    def edges(self, ref: str = "main") -> list[EdgeRecord]:
        """How the weights of a version are stored: deltas and snapshots. Raises UnknownRef, AmbiguousRef."""
        return self._index.edges_into(self.resolve(ref))

    def behind(self) -> list[str]:
        """Full names of the refs that have moves the database does not know yet. Reads only; refs are listed."""
        if self._index.place is None:
            return []
        known = [names.BRANCHES + name for name in self._index.branches()]
        known += [names.TAGS + name for name in self._index.tags()]
        heads = {ref: self._index.head(ref) for ref in self._refs.names(known)}
        return [ref for ref, head in heads.items() if self._refs.newest(ref, head) != head]

    def stats(self) -> Totals:
        """How much there is: versions, refs, edges, packs, bytes."""
        self._index.catch_up_all()
        return self._index.totals()

    def branches(self) -> dict[str, str]:
        """Every branch and the id of the version it is at."""
        self._index.catch_up_all()
        return self._index.branches()

    def tags(self) -> dict[str, str]:
        """Every tag and the id of the version it is at."""
        self._index.catch_up_all()
        return self._index.tags()

    def names(self) -> dict[str, list[str]]:
        """Full names of the branches and tags at each version, by id, as the database knows them."""
        found: dict[str, list[str]] = {}
        for kind, refs in ((names.BRANCHES, self._index.branches()), (names.TAGS, self._index.tags())):
            for name, version in refs.items():
                found.setdefault(version, []).append(kind + name)
        return found

    def _repr_html_(self) -> str:
        """Where its branches are, for notebooks; asks the store, and says so where that cannot be had now."""
        title = repr(self)
        try:
            branches = self.branches()
            shown = list(branches)[:_SHOWN_BRANCHES]
            infos = self._index.versions([branches[name] for name in shown])
        except DeltavcError as error:
            return notebook.facts(title, [("branches", f"not to be had now: {error}")])
        heads = [Version.known(info, name) for name, info in zip(shown, infos, strict=True)]
        rows = [
            (
                head.branch,
                head.short_id,
                "" if head.step is None else head.step,
                " ".join(f"{name}={value:.6g}" for name, value in head.metrics.items()),
                f"{head.time:%Y-%m-%d %H:%M:%S %Z}",
            )
            for head in heads
        ]
        head = ("branch", "version", "step", "metrics", "time")
        return notebook.table(title, head, rows, more=len(branches) - len(shown))


def _checked(limit: int | None) -> int | None:
    if limit is not None and limit < 0:
        raise ValueError(f"limit={limit}: how many at most, 0 or more; None for all")
    return limit
