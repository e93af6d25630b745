"""Going back through history in a bucket, where each version only tells its parents.

    main:  … ── v6 <── v7 <── v8 <── v9       asked for v9, v8, v7: one request after another
    refs/<hash of main>/6 … 9                 names them all: from the third on, many are read at once

A branch's entries tell where it was before, which for most is the same row of versions. So when a walk back goes
on, what it will probably ask for next is read ahead. A guess that was wrong costs requests and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from deltavc.errors import Corruption
from deltavc.lineage.records import RefEntry
from deltavc.lineage.refs import Refs

_T = TypeVar("_T")

_PATIENCE = 2
_MAX_WINDOW = 64
_READERS = 32


class Backwards(Generic[_T]):
    """What `read` gives for versions that are asked for one after another, newest first as a rule.

    Args:
        read: reads something of a version; raises Corruption.
        heads: the last entries of refs, one of which the walk perhaps begins at.
    """

    def __init__(self, read: Callable[[str], _T], refs: Refs, heads: Mapping[str, RefEntry]) -> None:
        self._read = read
        self._refs = refs
        self._heads = heads
        self._found: dict[str, _T] = {}
        self._guessed: set[str] = set()
        self._trail: tuple[str, int] | None = None  # the ref that the walk met, and its next entry to look at
        self._lost = False
        self._num_asked = 0
        self._window = 8

    def __getitem__(self, version: str) -> _T:
        """Raises Corruption."""
        if self._trail is None:
            here = (entry for entry in self._heads.values() if entry.new == version)
            self._trail = next(((entry.ref, entry.sequence - 1) for entry in here), None)
        self._num_asked += 1
        if version not in self._found:
            self._found[version] = self._read(version)
            if self._num_asked > _PATIENCE:
                self._read_ahead()
        self._guessed.discard(version)
        return self._found[version]

    def _read_ahead(self) -> None:
        self._lost = self._lost or bool(self._guessed)  # of the last guesses some were wrong: history goes another way
        if self._trail is None or self._lost:
            return
        ref, last = self._trail
        sequences = range(last, max(0, last - self._window), -1)
        with ThreadPoolExecutor(_READERS) as pool:
            entries = pool.map(lambda sequence: self._refs.entry(ref, sequence), sequences)
            ids = {entry.new for entry in entries if entry is not None and entry.new is not None} - self._found.keys()
            for version, found in pool.map(self._attempt, ids):
                if found is not None:
                    self._found[version] = found
                    self._guessed.add(version)
        self._trail = (ref, last - len(sequences))
        self._window = min(2 * self._window, _MAX_WINDOW)

    def _attempt(self, version: str) -> tuple[str, _T | None]:
        try:
            return version, self._read(version)
        except Corruption:
            return version, None  # it may never be asked for; whoever does meets the error
