"""The full check of everything: edges in as few walks as memory allows, then files; what is done is done for a week."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from blake3 import blake3

from deltavc import fingerprints
from deltavc.errors import CorruptObject, WrongWeights
from deltavc.files import write_file
from deltavc.lineage.records import EdgeRecord, FileRef, edge_key
from deltavc.upkeep.fsck_graph import Graph, Outline
from deltavc.upkeep.fsck_journal import Journal
from deltavc.upkeep.fsck_report import Problem
from deltavc.upkeep.fsck_survey import Seen, Survey, problem_of
from deltavc.upkeep.fsck_walk import Group, Walked, Walker, groups_of
from deltavc.walk import Objects

Progress = Callable[[str, int, int], None]
"""Is told what is being done, how much of it is done, and how much there is (bytes or objects; 0: not known)."""


@dataclass
class FullCheck:
    """Walks what a quick check found sound.

    unsound: ids of edges that do not lead where they say, or cannot be walked. oldest: when the oldest result that was
    relied on was found.
    """

    survey: Survey
    objects: Objects
    record: Callable[[Outline], EdgeRecord]
    journal: Journal
    progress: Progress
    problems: list[Problem] = field(default_factory=list)
    unsound: set[str] = field(default_factory=set)
    num_walked: int = 0
    oldest: str | None = None

    def edges(self, sound: Mapping[str, Outline], nbytes: int) -> None:
        """Walk these edges, by id. nbytes: what the lanes may take.

        Raises:
            StoreError; UnknownCodec: a frame was written by a newer release.
        """
        layouts = [self.objects.layout(layout) for layout in sorted({edge.layout for edge in sound.values()})]
        groups = groups_of(layouts, nbytes)
        total = len(groups) * sum(edge.nbytes for edge in sound.values())
        done = 0
        walked_back: dict[Outline, dict[str, int]] = defaultdict(dict)
        for group in groups:
            good = {edge_id: edge for edge_id, edge in sound.items() if edge_id not in self.unsound}
            waiting = {edge_id for edge_id in good if not self._known(_result(edge_id, group, groups))}
            done += sum(edge.nbytes for edge_id, edge in sound.items() if edge_id not in waiting)
            while waiting:
                graph = Graph(good.values())
                tour = graph.tour(waiting)
                for walked in Walker(graph, self.record, self.objects, group).check(tour):
                    waiting.discard(walked.edge.id)
                    done += walked.edge.nbytes
                    self.progress("walking edges", done, total)
                    if walked.fault is not None:
                        good.pop(walked.edge.id, None)
                        self._fault(walked)
                        continue
                    if walked.values is None:
                        self.journal.add(_result(walked.edge.id, group, groups))
                    else:
                        walked_back[walked.edge].update(walked.values)
                if not tour:
                    break  # nothing leads to what is left
        for edge, values in walked_back.items():
            if self._is_base(edge, values):
                for group in groups:
                    self.journal.add(_result(edge.id, group, groups))
        self.num_walked = sum(
            edge_id not in self.unsound and all(_result(edge_id, group, groups) in self.journal for group in groups)
            for edge_id in sound
        )

    def files(self, versions: Mapping[str, Seen]) -> None:
        """Read every kept file that is there in its size. Raises StoreError."""
        users = {file: version for version, seen in versions.items() for file in seen.files}
        unread = [
            (file, version)
            for file, version in users.items()
            if self.survey.size(file.key) == file.nbytes and not self._known(file.id)
        ]
        total, done = sum(file.nbytes for file, _ in unread), 0
        for (file, version), found in self.survey.each(unread, self._read):
            done += file.nbytes
            self.progress("reading files", done, total)
            if isinstance(found, Problem):
                self.problems.append(Problem(found.kind, found.key, found.what, (version,)))
            else:
                self.journal.add(file.id)

    def _read(self, item: tuple[FileRef, str]) -> None:
        with open(os.devnull, "wb") as nowhere:
            write_file(self.survey.store, *item, nowhere)

    def _known(self, what: str) -> bool:
        if what not in self.journal:
            return False
        self.oldest = min(self.oldest or "9", self.journal.when(what))
        return True

    def _fault(self, walked: Walked) -> None:
        edge = walked.edge
        if self.survey.is_dropped(edge.target, edge.id):
            return  # clean-up was here
        self.unsound.add(edge.id)
        match walked.fault:
            case WrongWeights(tensors=tensors):
                self._lies(edge.target, edge.id, f"it does not lead to its target: {_names(tensors)} differ")
            case CorruptObject() as error:
                self.problems.append(problem_of(error))

    def _is_base(self, edge: Outline, values: Mapping[str, int]) -> bool:
        """Whether what was reached backwards is the version there, now that all groups are together."""
        seen = self.survey.versions.get(edge.base or "")
        layout = None if seen is None else self.objects.layout(seen.layout)
        if seen is None or layout is None or not layout.stored_names <= values.keys():
            return False  # a fault was met in one group, or nothing tells what it should be
        if fingerprints.root(layout, values) == seen.fingerprint:
            return True
        self.unsound.add(edge.id)
        self._lies(edge.target, edge.id, f"walked back, it does not lead to {edge.base}")
        return False

    def _lies(self, target: str, edge_id: str, what: str) -> None:
        self.problems.append(Problem("wrong_weights", edge_key(target, edge_id), what, (target,)))


def _result(edge_id: str, group: Group, groups: list[Group]) -> str:
    """What the journal calls a walk of an edge with a group of tensors."""
    if len(groups) == 1:
        return edge_id
    return f"{edge_id}:{blake3(chr(0).join(sorted(group)).encode()).hexdigest(length=16)}"


def _names(tensors: Iterable[str]) -> str:
    names = list(tensors)
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(repr, names[:5])) + more
