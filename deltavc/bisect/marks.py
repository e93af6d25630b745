"""Marks: what was found out about versions, in order. All that a search has learnt, and nothing that follows from it.

A later mark of the same version takes the place of an earlier one, so a mistake is put right by marking again. The bad
version is the one that was marked bad last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["good", "bad", "skip"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A version and what it was found to be."""

    verdict: Verdict
    version: str


@dataclass(frozen=True, slots=True)
class Marks:
    """What is known so far, in the order in which it was found out."""

    entries: tuple[Mark, ...] = ()

    def adding(self, verdict: Verdict, versions: Iterable[str]) -> Marks:
        """These and more."""
        return Marks((*self.entries, *(Mark(verdict, version) for version in versions)))

    @property
    def bad(self) -> str | None:
        """The bad version whose ancestors are searched."""
        verdicts = self._verdicts
        marked = (entry.version for entry in reversed(self.entries) if entry.verdict == "bad")
        return next((version for version in marked if verdicts[version] == "bad"), None)

    @property
    def good(self) -> list[str]:
        """Versions that are good; so are their ancestors."""
        return [version for version, verdict in self._verdicts.items() if verdict == "good"]

    @property
    def skipped(self) -> list[str]:
        """Versions that could not be told."""
        return [version for version, verdict in self._verdicts.items() if verdict == "skip"]

    @property
    def _verdicts(self) -> dict[str, Verdict]:
        return {entry.version: entry.verdict for entry in self.entries}
