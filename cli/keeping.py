"""What is kept, let go of and deleted, as lines of text for people. Pure: values in, lines out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from deltavc.durations import in_words

from .texts import SHORT, nbytes, plain

if TYPE_CHECKING:
    from deltavc.lineage.settings import Policy
    from deltavc.upkeep.expire import Expiry
    from deltavc.upkeep.gc import Collected


def policy(found: Policy) -> Iterator[str]:
    """The rules by which versions keep their weights, and the grace."""
    if found.keeps_all:
        yield "every version keeps its weights"
    else:
        yield "these keep their weights:"
        yield "  the versions that branches are at, and were at until lately"
        if found.keep_tagged:
            yield "  the versions that tags are at"
        if found.keep_last is not None:
            yield f"  the last {found.keep_last:,} of every branch"
        if found.keep_every is not None:
            yield f"  every version of a branch whose step is a multiple of {found.keep_every:,}"
        for metric, number in sorted(found.keep_best.items()):
            yield f"  the {number:,} of every branch with the best {plain(metric)}"
        if found.keep_days is not None:
            yield f"  all of the last {found.keep_days:,} days"
    yield f"what nothing needs is deleted after {in_words(found.grace)}"


def expired(report: Expiry) -> Iterator[str]:
    """What lost its weights, or would."""
    would = "would lose" if report.dry_run else "lost"
    rules = Counter(rule for kept in report.kept.values() for rule in kept)
    by = ", ".join(f"{plain(rule)} {count:,}" for rule, count in sorted(rules.items()))
    yield f"{_versions(len(report.kept))} kept" + (f" ({by})" if by else "")
    yield f"{_versions(len(report.lost))} {would} their weights"
    for version in report.lost[:10]:
        yield f"  {version[:SHORT]}"
    if len(report.lost) > 10:
        yield f"  and {len(report.lost) - 10:,} more"
    if report.num_composed:
        what = "would be" if report.dry_run else "were"
        yield f"{_edges(report.num_composed)} {what} written in the place of others, {nbytes(report.composed_bytes)}"
    if report.num_dropped:
        what = "would be" if report.dry_run else "were"
        freed = nbytes(report.freed_bytes)
        yield f"{_edges(report.num_dropped)} {what} dropped; `deltavc gc` deletes {freed} after the grace"
    if report.num_uncommitted:
        what = "would be" if report.dry_run else "were"
        yield f"{_edges(report.num_uncommitted)} of commits that never happened {what} dropped"
    for version in report.without:
        yield f"{version[:SHORT]} should be kept, and had no weights before"


def collected(report: Collected) -> Iterator[str]:
    """What was deleted, or would be."""
    what = "would delete" if report.dry_run else "deleted"
    packs = f"{report.num_packs:,} pack{'s' * (report.num_packs != 1)}"
    files = f"{report.num_files:,} file{'s' * (report.num_files != 1)}"
    yield f"{what} {packs} and {files}, {nbytes(report.nbytes)}"
    yield f"{report.num_kept:,} kept, {nbytes(report.kept_bytes)}"
    if report.num_young:
        age = in_words(report.older_than)
        yield f"of these nothing needs {report.num_young:,}, which are not older than {age} yet"


def _versions(count: int) -> str:
    return f"{count:,} version{'s' * (count != 1)}"


def _edges(count: int) -> str:
    return f"{count:,} edge{'s' * (count != 1)}"
