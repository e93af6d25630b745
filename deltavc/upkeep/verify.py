"""verify: is a version what its id says, and are its weights still there?

    id ── names the record ── which names its parents ── whose ids name theirs ...     history, back to the beginning
     └── record ── layout, fingerprint ── the edges on a way from nothing tell it ── walking them gives it

An id is the hash of a record that holds the ids of its parents. So whoever has noted an id somewhere safe has noted
everything before it, and comparing names with contents proves the whole of it.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from deltavc import held, reader, walk
from deltavc.access import Access
from deltavc.errors import CorruptObject, NoPath, WrongWeights
from deltavc.files import write_file
from deltavc.held import HeldLanes
from deltavc.lineage.bucket import listed_edges, read, read_version
from deltavc.lineage.drops import EXPIRED, DropRecord
from deltavc.lineage.fields import now
from deltavc.lineage.plan import Plan, plan
from deltavc.lineage.records import EdgeRecord, VersionRecord, drop_key, drops_prefix, edges_prefix, version_key
from deltavc.lineage.replan import replanning
from deltavc.store.cache import uncached
from deltavc.timings import Timings
from deltavc.upkeep.fsck_full import Progress
from deltavc.upkeep.fsck_graph import closure
from deltavc.upkeep.fsck_report import Problem
from deltavc.upkeep.fsck_survey import attempt, problem_of
from deltavc.upkeep.fsck_walk import groups_of
from deltavc.walk import Objects

_RECORD_BYTES = 16 << 10
_AHEAD = 256


@dataclass(frozen=True, slots=True)
class Verification:
    """What was proven of a version, and what could not be.

    time: when, in UTC. num_versions: versions whose records were compared with their ids, all ancestors among them.
    num_edges, nbytes: the way from nothing that was looked at, and the bytes of its frames. num_files: files compared
    with their hashes. weights: whether the way was walked, and the fingerprint of every tensor computed; otherwise
    only what the edges tell of them was. given_up: who let go of the weights and when, if the policy did: there is
    nothing to prove then, and nothing is damaged; otherwise "".
    """

    version: str
    time: str
    num_versions: int
    num_edges: int
    num_tensors: int
    nbytes: int
    num_files: int
    weights: bool
    seconds: float
    problems: tuple[Problem, ...] = ()
    given_up: str = ""

    @property
    def ok(self) -> bool:
        """Whether the version was proven, with its weights."""
        return not self.problems and not self.given_up

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form, as `--json` prints it."""
        told = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return {"ok": self.ok, **told, "problems": [problem.as_json() for problem in self.problems]}


def verify(
    access: Access, version: str, *, weights: bool = True, memory: int, progress: Progress | None = None
) -> Verification:
    """Prove a version: its history, its objects, its files and its weights. Reads the store itself, not a cache.

    Args:
        weights: walk a way to it; without, only what edges tell of its fingerprint is proven, and that packs are there.
        memory: bytes it may take. Tensors are walked in groups that fit.

    Raises:
        UnknownRef; StoreError, DatabaseUnavailable; UnknownCodec: a frame was written by a newer release.
    """
    started = time.monotonic()
    store = uncached(access.store)
    access = dataclasses.replace(access, store=store, objects=Objects(store, access.transfers, memory // 2))
    proof = _Proof(access, version, memory, progress or (lambda doing, done, total: None))
    proof.history()
    if proof.record is not None:
        proof.files(proof.record)
        proof.weights(proof.record, walked=weights)
    return Verification(
        version=version,
        time=now(),
        num_versions=proof.num_versions,
        num_edges=proof.num_edges,
        num_tensors=proof.num_tensors,
        nbytes=proof.nbytes,
        num_files=proof.num_files,
        weights=weights and proof.num_edges > 0,
        seconds=time.monotonic() - started,
        problems=tuple(proof.problems),
        given_up=proof.given_up,
    )


@dataclass
class _Proof:
    access: Access
    version: str
    memory: int
    progress: Progress
    record: VersionRecord | None = None
    problems: list[Problem] = field(default_factory=list)
    num_versions: int = 0
    num_edges: int = 0
    num_tensors: int = 0
    nbytes: int = 0
    num_files: int = 0
    given_up: str = ""

    def history(self) -> None:
        """Compare the records of the version and all its ancestors with their ids."""
        found: dict[str, VersionRecord | Problem] = {}
        parents: dict[str, tuple[str, ...]] = {}
        waiting = [self.version]
        expected = iter(self._expected())  # so that a long chain is not asked for one by one
        while waiting:
            batch = [*waiting, *itertools.islice(expected, _AHEAD)]
            for version, record in self._read([version for version in dict.fromkeys(batch) if version not in parents]):
                parents[version] = () if isinstance(record, Problem) else record.parents
                if isinstance(record, Problem) or version == self.version:
                    found[version] = record
                self.progress("comparing records with their ids", len(parents), 0)
            waiting = [parent for version in waiting for parent in parents[version] if parent not in parents]
        ancestors = closure([self.version], lambda version: parents[version])
        self.problems += [seen for version in ancestors if isinstance(seen := found.get(version), Problem)]
        self.num_versions = len(ancestors) - len(self.problems)
        own = found[self.version]
        self.record = own if isinstance(own, VersionRecord) else None

    def files(self, record: VersionRecord) -> None:
        """Compare the files that the version keeps with their hashes."""
        for file in record.files.values():
            try:
                with open(os.devnull, "wb") as nowhere:
                    write_file(self.access.store, file, self.version, nowhere)
                self.num_files += 1
            except CorruptObject as error:
                self.problems.append(problem_of(error))

    def weights(self, record: VersionRecord, *, walked: bool) -> None:
        """Prove what edges tell of the version and, if asked to, walk them."""
        try:
            replanning(self.access.index, lambda: self._weights(record, walked))
        except CorruptObject as error:
            self.problems.append(problem_of(error))
        except WrongWeights as error:
            names = ", ".join(map(repr, error.tensors[:5]))
            what = f"the weights that its edges lead to are others: {names}"
            self.problems.append(Problem("wrong_weights", version_key(self.version), what, (self.version,)))
        except NoPath:
            self.given_up = self._given_up()
            if not self.given_up:
                what = "no edges lead to it from nothing: its weights, or those they are a change of, are lost"
                self.problems.append(Problem("no_path", edges_prefix(self.version), what, (self.version,)))

    def _given_up(self) -> str:
        """Who let go of the weights, and when, if the policy did not keep them; "" if they are lost."""
        store = self.access.store
        drops: list[DropRecord] = []
        for target, edge in listed_edges(store, drops_prefix(self.version)):
            with suppress(CorruptObject):  # then it is not known why
                drops.append(read(store, drop_key(target, edge), DropRecord.parse))
        expired = [drop for drop in drops if drop.why == EXPIRED]
        if not expired or len(expired) < len(drops) or self.access.index.edges_into(self.version):
            return ""
        last = max(expired, key=lambda drop: drop.when)
        return f"{last.who} at {last.when}"

    def _weights(self, record: VersionRecord, walked: bool) -> None:
        objects = self.access.objects
        way = plan(self.access.index, self.version, forward_only=True)
        layout = objects.layout(record.layout, self.version)
        told = reader.proven_fingerprints(walk.legs(way, objects), record)
        if walked:
            self._walk(way, record, told)
        else:
            self._look(step.edge for step in way.steps)
        self.num_edges, self.nbytes, self.num_tensors = len(way.steps), way.nbytes, len(layout.stored)

    def _walk(self, way: Plan, record: VersionRecord, told: dict[str, int]) -> None:
        objects = self.access.objects
        layout = objects.layout(record.layout, self.version)
        groups = groups_of([layout], self.memory // 2)
        for number, group in enumerate(groups):
            self.progress("walking to its weights", number, len(groups))
            lanes = HeldLanes(held.fresh("cpu"))
            walk.walk(walk.legs(way, objects, group), lanes, objects, Timings())
            reader.verify(self.version, layout, lanes, told, group)

    def _look(self, edges: Iterable[EdgeRecord]) -> None:
        """See that the packs of these edges are there and end in their indexes."""
        uses = [(use, edge.target) for edge in edges for use in edge.packs]
        for _ in self.access.transfers.ahead(
            uses, lambda item: self.access.objects.index(*item), lambda item: item[0].nbytes, self.memory // 4
        ):
            pass

    def _read(self, versions: list[str]) -> Iterator[tuple[str, VersionRecord | Problem]]:
        return self.access.transfers.ahead(
            versions,
            lambda version: attempt(lambda item: read_version(self.access.store, item), version),
            lambda version: _RECORD_BYTES,
            self.memory // 4,
        )

    def _expected(self) -> list[str]:
        """Ancestors as the database knows them; nothing is proven by that."""
        index = self.access.index
        return [] if index.place is None else [info.id for info in index.log([self.version])]
