"""Copying: what refs of one repository lead to, to another one, which may be in another kind of store.

    read the history ── look at what is there ── carry what is missing ── look again ── move the refs ── look once more

Versions keep their ids, since these name their content; every object is checked against its name on its way. A ref
moves by one entry of its own, after all that it leads to is there. So a copy that is interrupted has moved no ref or
some, and the next one goes on where it was.

docs/decisions/0017-copies.md says what is copied and what is not, and why clean-up there may run beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deltavc.access import Access
from deltavc.errors import HistoriesDiffer, RefExists, StoreUnavailable, UnknownRef
from deltavc.interchange.carrying import Carrier
from deltavc.interchange.missing import History, Missing, history
from deltavc.lineage import names
from deltavc.lineage.lazy import LazyIndex
from deltavc.lineage.records import RefEntry
from deltavc.lineage.standing import move_to
from deltavc.repo import Repo
from deltavc.store.transfers import DEFAULT_MEMORY
from deltavc.upkeep.compact import Progress


@dataclass(frozen=True, slots=True)
class CopiedRef:
    """A ref that was to be copied, by its full name, branches/main: where it is now, or would be.

    moved: whether this call moved it, or would.
    """

    name: str
    version: str
    moved: bool


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy did, or would do. num_versions: that were not there; num_objects, nbytes: packs and files stored."""

    url: str
    dry_run: bool
    refs: tuple[CopiedRef, ...]
    num_versions: int
    num_objects: int
    nbytes: int

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form."""
        refs = [{"ref": ref.name, "version": ref.version, "moved": ref.moved} for ref in self.refs]
        told = {"url": self.url, "dry_run": self.dry_run, "refs": refs, "num_versions": self.num_versions}
        return told | {"num_objects": self.num_objects, "nbytes": self.nbytes}


def copy(
    source: Repo,
    target: Repo,
    refs: Sequence[str] | None = None,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Copied:
    """Copy branches and tags with their whole history to another repository.

    It goes by the buckets alone, and works without databases. What the policy of either repository gave up is not
    copied; neither are settings, reflogs, and versions that no ref leads to.

    Args:
        target: a new repository, or one with the same history: less of it, or, where nothing has to move, more.
        refs: names of branches and tags; None for all.
        dry_run: only say what would be copied.
        progress: called as it goes on.

    Raises:
        HistoriesDiffer: a branch of this name is there at a version that the one to copy never was at and does not come
            from, and never was where that is; or a tag at another version. Nothing was copied.
        RefExists: a branch there has the name of a tag to copy, or the other way around.
        UnknownRef: `refs` names what is neither a branch nor a tag.
        MissingObject, CorruptObject: something is gone or damaged here. No ref was moved.
        NoPath: a version lost its weights there while it was copied.
        TooLate: storing some of it took longer than half the grace there; do it again.
        BranchMoved, CommitInDoubt: somebody else moved a ref; the store did not say whether one moved.
        StoreError: what was stored until then is of use to the next call.
        ValueError: both are one repository.
    """
    if source.url == target.url:
        raise ValueError(f"{source.url} cannot be copied to itself")
    show = progress or (lambda doing, done, total: None)
    one, other = source._access(DEFAULT_MEMORY), target._access(DEFAULT_MEMORY)
    show("reading the history", 0, 0)
    heads = dict(_heads(one, refs))
    wanted = history(one.store, one.transfers, heads.values())
    there = {ref: other.refs.newest(ref) for ref in heads}
    goals = {ref: _goal(one, other, wanted, ref, version, _at(there[ref])) for ref, version in heads.items()}
    carrier = Carrier(one, other, wanted, show)
    found = carrier.look()
    copied = tuple(CopiedRef(ref, version, _at(there[ref]) != version) for ref, version in goals.items())
    if dry_run:
        return Copied(target.url, True, copied, *_totals(found))
    while found:
        carried = carrier.carry(found)
        if (again := carrier.look()) == found and carried:
            raise StoreUnavailable(target.url, "copy", "what was stored there is not listed afterwards")
        found = again
    moved = [_move(one, other, wanted, ref.name, there[ref.name], ref.version) for ref in copied if ref.moved]
    if moved:
        target._index.note(moved)
    if late := carrier.look():  # clean-up was faster
        carrier.carry(late)
    return Copied(target.url, False, copied, carrier.num_versions, carrier.num_objects, carrier.nbytes)


def _heads(access: Access, refs: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    """The refs to copy by their full names, and the versions they are at. Raises UnknownRef."""
    known = access.refs.names()
    there = ((ref, _at(access.refs.newest(ref))) for ref in known)
    heads: Mapping[str, str] = {ref: version for ref, version in there if version is not None}
    if refs is None:
        yield from heads.items()
        return
    for name in dict.fromkeys(refs):
        ref = next((kind + name for kind in (names.BRANCHES, names.TAGS) if kind + name in heads), None)
        if ref is None:
            candidates = tuple(ref.partition("/")[2] for ref in heads)
            raise UnknownRef(name, "no branch or tag has this name, and only those are copied", candidates[:5])
        yield ref, heads[ref]


def _goal(one: Access, other: Access, wanted: History, ref: str, version: str, at: str | None) -> str:
    """Where a ref there, which is `at` a version, is to be when the one here is at `version`.

    It follows if it is where the one here once was, or comes from; and stays if it went on from where that is.

    Raises:
        HistoriesDiffer, RefExists
    """
    is_branch, name = ref.startswith(names.BRANCHES), ref.partition("/")[2]
    twin = _at(other.refs.newest((names.TAGS if is_branch else names.BRANCHES) + name))
    if twin is not None:
        raise RefExists("tag" if is_branch else "branch", name, twin)
    if at is None or at == version:
        return version
    if is_branch and (at in wanted.before([version]) or any(move.new == at for move in one.refs.entries(ref))):
        return version
    if is_branch and any(move.new == version for move in other.refs.entries(ref)):
        return at
    raise HistoriesDiffer("branch" if is_branch else "tag", name, version, at, other.store.url)


def _move(one: Access, other: Access, wanted: History, ref: str, there: RefEntry | None, version: str) -> RefEntry:
    """Let a ref there follow. Raises NoPath, BranchMoved, CommitInDoubt."""
    why = f"copied from {one.store.url}"
    if ref.startswith(names.TAGS) and version not in wanted.reached:  # its weights are gone here, too
        return other.refs.move(ref, there, version, other.author, why)
    index = LazyIndex(other.store, other.store.url)  # a database knows nothing of all this yet
    index.catch_up([ref])
    return move_to(index, other.refs, ref, there, version, other.author, why)


def _at(entry: RefEntry | None) -> str | None:
    return None if entry is None else entry.new


def _totals(found: list[Missing]) -> tuple[int, int, int]:
    num_objects = sum(len(part.objects) for part in found)
    return sum(part.record for part in found), num_objects, sum(part.nbytes for part in found)
