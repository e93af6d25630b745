"""What the lineage makes of marks: whether they can be so, which versions are suspects, and which one to try.

A good version need not be an ancestor of the bad one. Where it forked from the bad one's history, their merge base is
tried first, as git does: only if that is good does anything follow from the good one.

    o ── base ── o ── bad            base good: the two after it are suspects
            └─── o ── good           base bad: it was put right on the way to good, and there is nothing to search
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deltavc.bisect.marks import Marks
from deltavc.bisect.search import Choice, Try, ancestors, choose, merge_bases, num_steps
from deltavc.errors import BadMergeBase, MarksContradict
from deltavc.lineage.descent import descent, outside
from deltavc.lineage.history import History


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a search stands.

    choice: what to try next, or what was found. suspects: ids of those that may be the first bad one, each after its
    parents. unkept: those of them whose weights are not kept, so that they cannot be tried. doubts: merge bases that
    could not be tried and are taken to be good.
    """

    choice: Choice
    suspects: tuple[str, ...]
    unkept: frozenset[str]
    doubts: tuple[str, ...] = ()


def standing(history: History, marks: Marks) -> Standing:
    """Say where a search stands.

    Args:
        marks: with a bad version. Without a good one all its ancestors are suspects.

    Raises:
        MarksContradict: a good version has the bad one among its ancestors.
        BadMergeBase: the merge base that was tried is bad.
        UnknownRef: an id that is not indexed. DatabaseNeeded, DatabaseUnavailable.
    """
    bad, good = marks.bad, marks.good
    if bad is None:
        raise ValueError("without a bad version there is nothing to search")
    if bad in good:
        raise MarksContradict(bad, bad)
    bases, doubts = _merge_bases(history, marks, bad, outside(history, good, bad))
    found = descent(history, [bad], good)
    suspects = tuple(found.parents)
    if bases:
        choice: Choice = Try(bases[0], len(suspects), num_steps(len(suspects)), merge_base=True)
    else:
        choice = choose(found.parents, bad, marks.skipped, found.unkept)
    return Standing(choice, suspects, found.unkept, doubts)


def _merge_bases(history: History, marks: Marks, bad: str, forked: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """The merge bases that have to be tried before anything else, and those that cannot be."""
    if not forked:
        return [], ()
    found = descent(history, [bad, *forked])
    known = ancestors(found.parents, set(marks.good) - set(forked))
    bases = {base: good for good in forked for base in merge_bases(found.parents, bad, good) if base not in known}
    if bad in bases:
        raise _contradiction(history, marks, bad, [good for good in forked if bad in ancestors(found.parents, [good])])
    impossible = {*marks.skipped, *found.unkept}
    wanted = [base for base in bases if base not in impossible and base not in marks.good]
    return wanted, tuple(base for base in bases if base in impossible)


def _contradiction(history: History, marks: Marks, bad: str, after: Sequence[str]) -> MarksContradict | BadMergeBase:
    """Why good versions come after the bad one: it was tried as a merge base, or good and bad were mixed up."""
    before = Marks(tuple(entry for entry in marks.entries if (entry.verdict, entry.version) != ("bad", bad)))
    if before.bad is not None:
        earlier = standing(history, before).choice
        if isinstance(earlier, Try) and earlier.merge_base and earlier.version == bad:
            return BadMergeBase(bad, tuple(after))
    return MarksContradict(after[0], bad)
