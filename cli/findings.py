"""What checks found, as lines of text for people. Pure: values in, lines out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .texts import SHORT, nbytes, plain, table

if TYPE_CHECKING:
    from deltavc.upkeep.audit import Audit
    from deltavc.upkeep.fsck_report import Problem, Report
    from deltavc.upkeep.verify import Verification
    from deltavc.upkeep.verify_files import Match
    from deltavc.version import Version

_SHOWN = 10
"""Versions, or steps at either end, that are listed before the rest is only counted."""

_MOVES = {"to": "to it", "away": "away from it", "out": "past it: left behind", "in": "past it: taken in"}


def checked(report: Report) -> Iterator[str]:
    """A whole repository that was checked."""
    counts = report.counts
    yield (
        f"checked {counts.num_objects:,} objects, {nbytes(counts.nbytes)}: {counts.num_refs:,} refs, "
        f"{counts.num_versions:,} versions, {counts.num_edges:,} edges, {counts.num_packs:,} packs, "
        f"{counts.num_files:,} files"
    )
    if report.full:
        relied = f" (some of them by an earlier check, since {report.since})" if report.since else ""
        yield f"walked {report.num_walked:,} of {counts.num_edges:,} edges and compared every fingerprint{relied}"
    if report.without_weights:
        yield f"{_count(report.without_weights, 'version')} without weights, which were given up"
    if report.orphans.num_objects:
        yield (
            f"{_count(report.orphans.num_objects, 'object')} that nothing committed needs, "
            f"{nbytes(report.orphans.nbytes)}; `deltavc gc` removes them in time"
        )
    yield from (f"note: {plain(note)}" for note in report.notes)
    yield from problems(report.problems)
    if report.lost:
        yield ""
        yield f"lost: the weights of {_count(len(report.lost), 'version')}: {_some(report.lost)}"
    if not report.problems:
        yield "no problems"


def problems(found: Sequence[Problem]) -> Iterator[str]:
    """Problems, each with what it concerns and what to do."""
    for problem in found:
        yield ""
        yield f"{problem.kind}  {plain(problem.key)}"
        yield f"  {plain(problem.what)}"
        if problem.versions:
            yield f"  concerns {_count(len(problem.versions), 'version')}: {_some(problem.versions)}"
        yield f"  repaired: {problem.repaired}" if problem.repaired else f"  {problem.hint}"


def verified(found: Verification) -> Iterator[str]:
    """A version that was proven, or not."""
    yield f"{found.version[:SHORT]} {_verdict(found)}"
    yield from proofs(found)
    yield from problems(found.problems)


def _verdict(found: Verification) -> str:
    if found.problems:
        return "is not as it should be"
    if found.given_up:
        return f"is what its id says, and its weights were given up: the policy does not keep them ({found.given_up})"
    return "is what its id says"


def proofs(found: Verification) -> Iterator[str]:
    """What was looked at to prove a version."""
    yield f"history   {_count(found.num_versions, 'record')} compared with their ids, back to the beginning"
    if found.num_files:
        yield f"files     {_count(found.num_files, 'file')} compared with their hashes"
    how = f"{_count(found.num_edges, 'edge')} of a way from nothing, {nbytes(found.nbytes)}"
    if found.weights:
        yield f"weights   walked {how}; the fingerprints of {_count(found.num_tensors, 'tensor')} computed"
    elif found.num_edges:
        yield f"weights   not walked; {how}, are there, and what they tell adds up to the fingerprint"


def matched(path: str, found: Match) -> Iterator[str]:
    """Files that were compared with a version."""
    version = found.version[:SHORT]
    if found.ok:
        yield f"{plain(path)} holds exactly {version}: {_count(found.num_tensors, 'tensor')} compared"
        return
    yield f"{plain(path)} does not hold {version}"
    for what, differences in (("tensor", found.tensors), ("file", found.files)):
        yield from (f"{what} {plain(repr(difference.name))} {difference.what}" for difference in differences)


def audited(found: Audit) -> Iterator[str]:
    """All about one version, on a page."""
    version = found.version
    yield f"Version      {version.id}"
    yield f"Committed    {version.time:%Y-%m-%d %H:%M:%S}Z by {plain(version.author)}"
    if version.message:
        yield f"Message      {plain(version.message)}"
    yield f"Fingerprint  {version.fingerprint}"
    yield f"Layout       {version.layout}, {version.num_lanes:,} lanes"
    yield f"Parents      {', '.join(version.parents) or 'none: it is a first version'}"
    yield f"Refs at it   {', '.join(map(plain, found.at)) or 'none'}"
    yield f"Part of      {', '.join(map(plain, found.contained_in)) or 'no branch or tag any more'}"
    yield ""
    yield f"History: {_count(found.num_ancestors, 'version')} before it"
    yield from table(["version", "step", "when", "who", "metrics"], map(_step, _ends(found.history)))
    if found.moves:
        yield ""
        yield "Moves of refs:"
        rows = [
            [entry.when[:19] + "Z", plain(entry.ref), _MOVES[what], plain(entry.who), plain(entry.why)]
            for what, entry in ((move.what, move.entry) for move in found.moves)
        ]
        yield from table(["when", "ref", "moved", "who", "why"], rows)
    yield ""
    yield f"Stored: {nbytes(version.stored_bytes)} by its commit"
    for edge in found.edges:
        way = f"delta from {edge.base[:SHORT]}" if edge.base else "snapshot"
        yield f"  {way}, {nbytes(edge.nbytes)}, {edge.changes:,} lanes, written by {edge.origin}"
    for name, (digest, size) in found.files.items():
        yield f"  file {plain(name)}, {nbytes(size)}, BLAKE3 {digest}"
    yield ""
    yield f"Verified {found.verification.time[:19]}Z: it {_verdict(found.verification)}"
    yield from (f"  {line}" for line in proofs(found.verification))
    yield from problems(found.verification.problems)


def _ends(history: Sequence[Version]) -> list[Version | int]:
    """The newest and the oldest versions, and how many lie between them."""
    between = len(history) - 2 * _SHOWN
    if between <= 1:
        return [*history]
    return [*history[:_SHOWN], between, *history[-_SHOWN:]]


def _step(version: Version | int) -> list[str]:
    if isinstance(version, int):
        return ["...", "", f"{version:,} more", "", ""]
    metrics = " ".join(f"{plain(name)}={value:.6g}" for name, value in version.metrics.items())
    step = "" if version.step is None else str(version.step)
    return [version.short_id, step, f"{version.time:%Y-%m-%d %H:%M:%S}Z", plain(version.author), metrics]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _some(versions: Sequence[str]) -> str:
    more = f" and {len(versions) - _SHOWN:,} more" if len(versions) > _SHOWN else ""
    return ", ".join(version[:SHORT] for version in versions[:_SHOWN]) + more
