"""Which version to try next, from nothing but who descends from whom.

Suspects are the bad version and those of its ancestors that are no ancestors of a good one: any of them may be the
first bad one. Trying one divides them, into those it reaches (itself and its ancestors among them) and the others:

    good ── 1 ── 2 ── 3 ── 4 ── 5 bad      3 reaches 3 of 5: found bad, 3 are left; found good, 2

So the one to try is where the smaller part is largest. On a line of n that takes ceil(log2 n) tries.

Source: the algorithm is that of `git bisect`, and so are the numbers that it tells and how it keeps away from versions
that could not be tried (bisect.c: do_find_bisection, estimate_bisect_steps, skip_away).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import TypeAlias

Parents: TypeAlias = Mapping[str, Sequence[str]]
"""The parents of versions by id, every version after its parents. Parents that are no keys are outside."""

_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Try:
    """A version to try.

    num_left: how many are left to try after it if it is good. num_steps: about how many tries come after it.
    merge_base: it is no suspect; a good version forked from the bad one's history there, and if it is bad there is
    nothing to search.
    """

    version: str
    num_left: int
    num_steps: int
    merge_base: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The first bad version."""

    version: str


@dataclass(frozen=True, slots=True)
class Undecided:
    """All that are left cannot be tried: any of these may be the first bad one, each after its parents."""

    suspects: tuple[str, ...]


Choice: TypeAlias = Try | Found | Undecided


def choose(suspects: Parents, bad: str, skipped: Collection[str] = (), untestable: Collection[str] = ()) -> Choice:
    """Say what to try next.

    Args:
        suspects: the bad version and its ancestors that may be the first bad one.
        skipped: versions that were tried and could not be told. Their neighbours often cannot either, so what is tried
            instead is some way off.
        untestable: versions that cannot be tried; of their neighbours nothing follows.
    """
    if len(suspects) == 1:
        return Found(bad)
    reached = reaches(suspects)
    in_all = len(suspects)
    testable = [version for version in suspects if version != bad and version not in untestable]
    testable.sort(key=lambda version: -min(reached[version], in_all - reached[version]))  # stable: oldest first
    wanted = [version for version in testable if version not in skipped]
    if not wanted:
        return Undecided(tuple(suspects))
    version = wanted[0] if wanted[0] == testable[0] else wanted[_away(len(wanted))]
    return Try(version, in_all - reached[version] - 1, num_steps(in_all))


def reaches(suspects: Parents) -> dict[str, int]:
    """How many suspects each one has among its ancestors, itself included. Linear, but for merges."""
    found: dict[str, int] = {}
    for version, parents in suspects.items():
        among = [parent for parent in parents if parent in suspects]
        found[version] = found[among[0]] + 1 if len(among) == 1 else len(ancestors(suspects, [version]))
    return found


def num_steps(num_suspects: int) -> int:
    """About how many tries are left after the next one, as git tells it."""
    if num_suspects < 3:
        return 0
    whole = int(log2(num_suspects))
    power = 1 << whole
    return whole if power < 3 * (num_suspects - power) else whole - 1


def ancestors(parents: Parents, versions: Iterable[str]) -> set[str]:
    """These versions and all their ancestors that are keys."""
    found: set[str] = set()
    waiting = [version for version in versions if version in parents]
    while waiting:
        version = waiting.pop()
        if version not in found:
            found.add(version)
            waiting += [parent for parent in parents[version] if parent in parents]
    return found


def merge_bases(parents: Parents, one: str, other: str) -> list[str]:
    """The newest common ancestors of two versions: those that are no ancestors of another such.

    Args:
        parents: of all ancestors of both.
    """
    common = ancestors(parents, [one]) & ancestors(parents, [other])
    older = {parent for version in common for parent in parents[version]}
    return [version for version in parents if version in common and version not in older]


def _away(count: int) -> int:
    """A place some way off the best, which come first. It varies with how many there are, and with nothing else."""
    return int(count * (count * _GOLDEN % 1) ** 1.5)
