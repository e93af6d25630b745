"""Walks over the graph of versions in SQL: ancestors, histories, and searches along first parents.

Everything here works on integer keys inside a transaction and keeps to a few queries, each of which touches
O(log n) rows or as many as it returns, so that a history of a million versions answers at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sqlalchemy import CTE, Connection, Select, and_, bindparam, case, literal, or_, select

from deltavc.errors import UnknownRef
from deltavc.lineage.database import chunks
from deltavc.lineage.tables import metrics, parents, versions

_TRIED = 64
"""Candidates that are looked up one by one before a whole history is walked instead."""

_MAX_WINDOW = 1024


class Place(NamedTuple):
    """A version in the graph."""

    pk: int
    depth: int


def known_place(db: Connection, version: str) -> Place:
    """Where a version is, by its id. Raises UnknownRef."""
    row = db.execute(select(versions.c.pk, versions.c.depth).where(versions.c.id == version)).one_or_none()
    if row is None:
        raise UnknownRef(version, "no version has this id")
    return Place(*row)


def ids_of(db: Connection, pks: Iterable[int]) -> dict[int, str]:
    """Ids by integer key."""
    found: dict[int, str] = {}
    for chunk in chunks(set(pks)):
        rows = db.execute(select(versions.c.pk, versions.c.id).where(versions.c.pk.in_(chunk)))
        found.update((row.pk, row.id) for row in rows)
    return found


def _ancestor_query() -> Select[int]:
    columns = (versions.c.pk, versions.c.parent, versions.c.jump, versions.c.depth, versions.c.jump_depth)
    depth = bindparam("depth", type_=versions.c.depth.type)
    walk = select(*columns).where(versions.c.pk == bindparam("start")).cte("walk", recursive=True)
    step = case((walk.c.jump_depth >= depth, walk.c.jump), else_=walk.c.parent)
    walk = walk.union_all(select(*columns).where(versions.c.pk == step, walk.c.depth > depth))
    return select(walk.c.pk).where(walk.c.depth == depth)


_ANCESTOR = _ancestor_query()


def ancestor(db: Connection, start: int, depth: int) -> int | None:
    """The ancestor along first parents at this depth, in O(log n) rows; None if `start` is not that deep."""
    return db.scalar(_ANCESTOR, {"start": start, "depth": depth})


def with_step(db: Connection, head: Place, step: int) -> list[int]:
    """Versions with this step on the first-parent history of `head`, newest first."""
    wanted = (
        select(versions.c.pk, versions.c.depth)
        .where(versions.c.step == step, versions.c.depth <= head.depth)
        .order_by(versions.c.depth.desc(), versions.c.pk)
    )
    candidates = [Place(*row) for row in db.execute(wanted.limit(_TRIED + 1))]
    if len(candidates) <= _TRIED:
        return [candidate.pk for candidate in candidates if ancestor(db, head.pk, candidate.depth) == candidate.pk]
    chain = first_parents(head.pk)
    return list(db.execute(wanted.join(chain, chain.c.pk == versions.c.pk)).scalars())


def extreme(db: Connection, head: Place, metric: str, highest: bool) -> int | None:
    """The version with the highest or lowest finite value of a metric on the first-parent history of `head`.

    Of several with the same value it is the newest.
    """
    value = metrics.c.value
    wanted = (
        select(versions.c.pk, versions.c.depth)
        .join(metrics, metrics.c.version == versions.c.pk)
        .where(metrics.c.name == metric, value.is_not(None), versions.c.depth <= head.depth)
        .order_by(value.desc() if highest else value, versions.c.depth.desc(), versions.c.pk)
    )
    candidates = [Place(*row) for row in db.execute(wanted.limit(_TRIED))]
    for candidate in candidates:
        if ancestor(db, head.pk, candidate.depth) == candidate.pk:
            return candidate.pk
    if len(candidates) < _TRIED:
        return None
    chain = first_parents(head.pk)
    return db.execute(wanted.join(chain, chain.c.pk == versions.c.pk).limit(1)).scalar()


def first_parents(start: int) -> CTE:
    """Keys of a version and all that it comes from along first parents, as a table to join with."""
    chain = select(versions.c.pk, versions.c.parent).where(versions.c.pk == start).cte("chain", recursive=True)
    return chain.union_all(select(versions.c.pk, versions.c.parent).where(versions.c.pk == chain.c.parent))


class NewestFirst:
    """All ancestors of some versions (and they themselves) that are not those of others, newest first.

    No version comes before one of its children. Only versions whose children were told and they were not are held, so
    that any history can be told in little memory.

    Args:
        starts, excluded: keys of versions; what the excluded ones come from is left out, and so are they.
        first_parent: follow only first parents from `starts`.
    """

    def __init__(self, db: Connection, starts: Iterable[int], excluded: Iterable[int], first_parent: bool) -> None:
        self._window = _Window(db)
        self._first_parent = first_parent
        self._heap: list[tuple[int, int, int]] = []  # the latest clock first, then the highest id
        self._hidden: dict[int, bool] = {}  # of what is in the heap
        self._num_shown = 0  # versions in the heap that are not hidden
        for pk in excluded:
            self._meet(pk, True)
        for pk in starts:
            self._meet(pk, False)

    @property
    def frontier(self) -> tuple[list[str], list[str]]:
        """Where it is: ids of `starts` and `excluded` for a walk that goes on from here."""
        found: tuple[list[str], list[str]] = ([], [])
        for pk, hide in self._hidden.items():
            found[hide].append(self._window[pk].id)
        return found

    def __iter__(self) -> Iterator[int]:
        while self._num_shown:
            _, _, pk = heapq.heappop(self._heap)
            # Clocks fall from child to parent, so every child of this one has been met: whether it hides is settled,
            # and it will not be met again.
            hide = self._hidden.pop(pk)
            parents = self._window.take(pk).parents
            for parent in parents[: 1 if self._first_parent and not hide else None]:
                self._meet(parent, hide)
            if not hide:
                self._num_shown -= 1
                yield pk

    def _meet(self, pk: int, hide: bool) -> None:
        if pk not in self._hidden:
            row = self._window[pk]
            heapq.heappush(self._heap, (-row.clock, -int(row.id, 16), pk))
            self._num_shown += not hide
        elif hide and not self._hidden[pk]:
            self._num_shown -= 1
        self._hidden[pk] = hide or self._hidden.get(pk, False)


def latest(
    db: Connection, limit: int, after: tuple[int, str] | None = None
) -> tuple[list[int], tuple[int, str] | None]:
    """Versions that are known, on a branch or not, newest first, and where the next ones begin.

    Args:
        after: where those before ended; None to begin with the newest.
    """
    columns = (versions.c.pk, versions.c.clock, versions.c.id)
    wanted = select(*columns).order_by(versions.c.clock.desc(), versions.c.id.desc()).limit(limit)
    if after is not None:
        clock, version = after
        same_time = and_(versions.c.clock == clock, versions.c.id < version)
        wanted = wanted.where(or_(versions.c.clock < clock, same_time))
    rows = db.execute(wanted).all()
    return [row.pk for row in rows], (rows[-1].clock, rows[-1].id) if len(rows) == limit else None


class _Row(NamedTuple):
    id: str
    clock: int
    parents: tuple[int, ...]


class _Window:
    """Rows of the graph, loaded along first parents ever further ahead."""

    def __init__(self, db: Connection) -> None:
        self._db = db
        self._rows: dict[int, _Row] = {}
        self._size = 32

    def __getitem__(self, pk: int) -> _Row:
        if pk not in self._rows:
            self._load(pk)
        return self._rows[pk]

    def take(self, pk: int) -> _Row:
        """A row that is not needed after this."""
        row = self[pk]
        del self._rows[pk]
        return row

    def _load(self, pk: int) -> None:
        columns = (versions.c.pk, versions.c.parent, versions.c.id, versions.c.clock)
        chain = select(*columns, literal(1).label("n")).where(versions.c.pk == pk).cte("chain", recursive=True)
        older = select(*columns, chain.c.n + 1).where(versions.c.pk == chain.c.parent, chain.c.n < self._size)
        chain = chain.union_all(older)
        found = self._db.execute(select(chain.c.pk, chain.c.parent, chain.c.id, chain.c.clock)).all()
        others: dict[int, list[int]] = {}
        for chunk in chunks([row.pk for row in found]):
            merged = select(parents.c.version, parents.c.parent).where(
                parents.c.version.in_(chunk), parents.c.place > 0
            )
            for version, parent in self._db.execute(merged.order_by(parents.c.version, parents.c.place)):
                others.setdefault(version, []).append(parent)
        for row in found:
            first = () if row.parent is None else (row.parent,)
            self._rows[row.pk] = _Row(row.id, row.clock, (*first, *others.get(row.pk, ())))
        self._size = min(2 * self._size, _MAX_WINDOW)
