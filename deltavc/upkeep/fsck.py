"""fsck: is everything there, is it what it says it is, and can every version's weights be had?

    quick   every record against its name; what refers to what; sizes; each pack's index; the fingerprints that edges
            tell; the database against the bucket. Reads records and the ends of packs.
    full    also every frame, every version's fingerprint, every kept file. Reads everything, once.

    database ── refs ── everything listed ── versions ── edges ── (walk) ── files ── database again

It runs beside writers and clean-up: what appears meanwhile, and what is dropped meanwhile, is no problem. It reads the
store itself, not the copies that a cache keeps. Nothing is changed unless it is asked to repair.
"""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import closing, suppress

from deltavc.access import Access
from deltavc.errors import Corruption
from deltavc.held import machine_memory
from deltavc.lineage.contents import contents
from deltavc.lineage.records import EdgeRecord, FileRef, pack_key
from deltavc.lineage.spool import Spool
from deltavc.store.cache import uncached
from deltavc.upkeep import fsck_index, fsck_repair
from deltavc.upkeep.fsck_edges import EdgeCheck, Verdict
from deltavc.upkeep.fsck_full import FullCheck, Progress
from deltavc.upkeep.fsck_graph import Graph, Outline
from deltavc.upkeep.fsck_journal import Journal
from deltavc.upkeep.fsck_losses import losses, orphans
from deltavc.upkeep.fsck_report import Counts, Problem, Report, merged
from deltavc.upkeep.fsck_survey import EDGE_KEY, Survey
from deltavc.upkeep.fsck_told import check_told
from deltavc.upkeep.reindex import reindex
from deltavc.walk import Objects


def fsck(
    access: Access,
    repository_id: str,
    *,
    full: bool = False,
    repair: bool = False,
    anew: bool = False,
    memory: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check a repository.

    Args:
        full: also walk every edge and read every file. What a full check found whole in the last week is not read
            again, so one that was interrupted goes on where it was.
        repair: afterwards, write records again from the database, drop what cannot be walked, fill the database anew.
        anew: rely on no earlier check.
        memory: bytes that a full check may take; half of what the machine has by default.
        progress: is told what is being done, how much of it is done, and how much there is.

    Raises:
        StoreError: the store could not be asked, which says nothing about what is in it.
        DatabaseUnavailable; UnknownCodec: a frame was written by a newer release.
    """
    started = time.monotonic()
    memory = memory or machine_memory() // 2
    store = uncached(access.store)
    access = dataclasses.replace(access, store=store, objects=Objects(store, access.transfers, memory // 2))
    with closing(Journal.of(repository_id, store.url, anew=anew)) as journal:

        def check() -> _Check:
            made = _Check(access, journal, full, memory, progress or _silent)
            made.run()
            return made

        first = check()
        report = first.report
        if repair and report.problems:
            report = _repair(access, repository_id, first, check, progress or _silent)
    return dataclasses.replace(report, seconds=time.monotonic() - started)


def _repair(
    access: Access, repository_id: str, first: _Check, check: Callable[[], _Check], progress: Progress
) -> Report:
    """Do what can be done, look again, and tell what of it helped."""
    healed = fsck_repair.heal(access, first.report.problems)
    second = check() if healed else first  # records that can be read again may have more to tell
    fsck_repair.drop(access, second.to_drop())
    fsck_repair.redrop(access, second.report.problems)
    third = check() if second.to_drop() else second  # without an edge, others may have no way forward any more
    fsck_repair.lead_forwards(access, third.detours)
    if any(problem.kind == "index_differs" for problem in second.report.problems):
        with suppress(Corruption):  # a record that the bucket lacks: the report tells of it
            reindex(access, repository_id, progress)
    last = check().report
    left = {(problem.kind, problem.key) for problem in last.problems}
    reports = [check.report for check in (first, second, third)]
    found = {(problem.kind, problem.key): problem for report in reports for problem in report.problems}
    solved = [problem.fixed(_how(problem, healed)) for name, problem in found.items() if name not in left]
    return dataclasses.replace(last, problems=merged([*solved, *last.problems]), lost=second.report.lost)


def _how(problem: Problem, healed: set[str]) -> str:
    if problem.key in healed:
        return "written again from the database"
    return _DONE.get(problem.kind, "the edges that need it were dropped")


class _Check:
    """One pass over everything."""

    def __init__(self, access: Access, journal: Journal, full: bool, memory: int, progress: Progress) -> None:
        self._access = access
        self._journal = journal
        self._full = full
        self._memory = memory
        self._progress = progress
        self._survey = Survey(access.store, access.transfers, memory // 4)
        self._edges = EdgeCheck(self._survey, access.objects)
        self._outlines: dict[str, Outline] = {}
        self._sound: set[str] = set()
        self._hopeless: set[str] = set()
        self._packs: set[str] = set()

    def run(self) -> None:
        survey = self._survey
        index = self._access.index
        known = None if index.place is None else contents(index)
        self._progress("reading refs", 0, 0)
        survey.read_refs()
        self._progress("reading versions", 0, 0)
        survey.read_objects()
        survey.check_drops()
        survey.check_settings()
        with Spool() as spool:
            self._read_edges(spool)
            self._check_layouts()
            self._check_files()
            if known is not None:
                survey.problems += fsck_index.bucket_lacks(known, survey)
            self._check_told(spool)
            walked = self._walk(spool) if self._full else None
        if index.place is not None:
            self._compare_index(index.place)
        found = losses(survey, self._outlines.values(), self._sound)
        survey.problems += found.problems
        self.detours = found.detours
        self.report = Report(
            problems=merged(survey.problems),
            lost=found.lost,
            without_weights=found.without_weights,
            counts=self._counts(),
            orphans=orphans(survey, self._outlines.values(), self._packs),
            notes=tuple(survey.notes),
            full=self._full,
            num_walked=0 if walked is None else walked.num_walked,
            since=None if walked is None else walked.oldest,
            seconds=0.0,
        )

    def to_drop(self) -> list[tuple[str, str]]:
        """Target and id of the edges that nothing can make whole but what was lost.

        None if not one pack is there: that is a store which is not all there, and what is dropped would be deleted when
        it is back.
        """
        if self._packs and all(self._survey.size(pack_key(pack)) is None for pack in self._packs):
            return []
        unreadable = {
            (found["target"], found["edge"])
            for problem in self.report.problems
            if problem.kind in ("damaged_edge", "missing_edge") and (found := EDGE_KEY.fullmatch(problem.key))
        }
        return sorted(unreadable | {(self._outlines[edge].target, edge) for edge in self._hopeless})

    def _read_edges(self, spool: Spool) -> None:
        """Read and check every edge to a committed version, and to what edges start from."""
        survey = self._survey
        targets = sorted(survey.committed)
        total = sum(len(survey.edges_to.get(target, ())) for target in targets)
        while targets:
            bases: set[str] = set()
            records = (edge for edge, _ in survey.read_edges(targets))
            for edge, verdict in survey.each(records, self._edges.check):
                self._progress("checking edges", len(self._outlines), total)
                self._outlines[edge.id] = Outline.of(edge, spool.add(edge.body))
                self._packs.update(use.pack for use in edge.packs)
                bases |= set() if edge.base is None else {edge.base}
                self._judge(edge.id, verdict)
            targets = sorted(survey.follow_bases(bases))

    def _judge(self, edge: str, verdict: Verdict | Problem) -> None:
        assert isinstance(verdict, Verdict)  # it makes problems of what it meets by itself
        self._survey.problems += verdict.problems
        if verdict.sound:
            self._sound.add(edge)
        self._despair(edge, verdict.problems)

    def _despair(self, edge: str, problems: Iterable[Problem]) -> None:
        if any(problem.kind in _HOPELESS for problem in problems):
            self._hopeless.add(edge)

    def _check_layouts(self) -> None:
        """Every layout of a committed version can be read."""
        users: dict[str, list[str]] = defaultdict(list)
        for version in self._survey.committed & self._survey.versions.keys():
            users[self._survey.versions[version].layout].append(version)
        for layout, found in self._survey.each(sorted(users), self._access.objects.layout):
            if isinstance(found, Problem):
                self._survey.problems.append(dataclasses.replace(found, versions=tuple(sorted(users[layout]))))

    def _check_files(self) -> None:
        """Every file that a committed version keeps is there, in its size."""
        survey = self._survey
        users: dict[FileRef, list[str]] = defaultdict(list)
        for version in survey.committed & survey.versions.keys():
            for file in survey.versions[version].files:
                users[file].append(version)
        for file, versions in users.items():
            nbytes = survey.size(file.key)
            if nbytes is None:
                survey.problems.append(Problem("missing_file", file.key, "it is not in the store", tuple(versions)))
            elif nbytes != file.nbytes:
                what = f"it has {nbytes} bytes, and a version says {file.nbytes}"
                survey.problems.append(Problem("damaged_file", file.key, what, tuple(versions)))

    def _check_told(self, spool: Spool) -> None:
        sound = {edge: self._outlines[edge] for edge in self._sound}
        wrong = check_told(
            Graph(sound.values()).tour(sound.keys()),
            lambda outline: EdgeRecord.trusted(spool.get(outline.place)),
            self._access.objects.layout,
            self._edges.carried,
            {version: seen.fingerprint for version, seen in self._survey.versions.items()},
        )
        self._survey.problems += wrong.values()
        self._sound -= wrong.keys()
        self._hopeless |= wrong.keys()

    def _walk(self, spool: Spool) -> FullCheck:
        walk = FullCheck(
            self._survey,
            self._access.objects,
            lambda outline: EdgeRecord.trusted(spool.get(outline.place)),
            self._journal,
            self._progress,
        )
        walk.edges({edge: self._outlines[edge] for edge in sorted(self._sound)}, self._memory // 2)
        walk.files(
            {
                version: self._survey.versions[version]
                for version in self._survey.committed & self._survey.versions.keys()
            }
        )
        self._survey.problems += walk.problems
        self._sound -= walk.unsound
        self._hopeless |= walk.unsound
        return walk

    def _compare_index(self, place: str) -> None:
        index = self._access.index
        try:
            index.catch_up_all()
            index.refresh()
        except Corruption as error:
            self._survey.notes.append(f"the database cannot follow the bucket: {error}")
            return
        now = contents(index, compare=True)
        self._survey.problems += fsck_index.index_differs(now, self._survey, self._outlines.values(), place)

    def _counts(self) -> Counts:
        survey = self._survey
        objects = [size for key, size in survey.sizes.items() if not key.startswith("lineage.db")]
        return Counts(
            num_objects=len(objects),
            nbytes=sum(objects),
            num_refs=len(survey.moves),
            num_versions=len(survey.committed),
            num_edges=len(self._outlines),
            num_packs=len(self._packs),
            num_files=len({file for seen in survey.versions.values() for file in seen.files}),
        )


_DONE = {
    "damaged_drop": "written again",
    "index_differs": "the database was filled anew",
    "no_way_forward": "an edge was written that leads to it",
}
"""What was done about a kind of problem, where it was not written again and no edge was dropped for it."""

_HOPELESS = frozenset({"wrong_edge", "wrong_weights", "damaged_pack", "missing_pack"})
"""Kinds of problems after which an edge is dropped, if anything is to be repaired."""


def _silent(doing: str, done: int, total: int) -> None:
    pass
