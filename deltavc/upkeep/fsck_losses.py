"""What the problems cost: versions whose weights cannot be reached any more, and objects that nobody needs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from deltavc.lineage.records import edges_prefix, layout_key, pack_key, version_key
from deltavc.upkeep.fsck_graph import Graph, Outline, closure
from deltavc.upkeep.fsck_report import Orphans, Problem
from deltavc.upkeep.fsck_survey import EDGE_KEY, Survey

_OURS = re.compile(
    r"(versions|layouts|packs|files|edges|drops|refs|settings|bundles|probe)/.*|deltavc\.json|lineage\.db.*"
)
_NEEDED = re.compile(r"(drops|refs|settings|bundles|probe)/.*|deltavc\.json|lineage\.db.*")


@dataclass(frozen=True, slots=True)
class Losses:
    """lost: ids of versions that would be reached if nothing were wrong. without_weights: how many were given up on
    purpose. problems: of versions that nothing leads to though nothing was dropped, or nothing leads forwards to.
    detours: for each of the latter a version that edges lead forwards to, from where it can be reached."""

    lost: tuple[str, ...]
    without_weights: int
    problems: list[Problem]
    detours: dict[str, str]


def losses(survey: Survey, edges: Collection[Outline], sound: Set[str]) -> Losses:
    """Compare what can be reached with what could be if all edges were sound and all records there."""
    graph = Graph(edge for edge in edges if edge.id in sound)
    let_go, detours, problems = _backwards(graph, [edge for edge in edges if edge.id in sound], survey.let_go)
    beyond = survey.committed - graph.reached
    unreadable_versions = survey.committed - survey.versions.keys()
    if not beyond:
        return Losses(tuple(sorted(unreadable_versions)), len(let_go - unreadable_versions), problems, detours)
    unreadable = {found["target"] for problem in survey.problems if (found := EDGE_KEY.fullmatch(problem.key))}
    into: dict[str, list[Outline]] = defaultdict(list)
    out: dict[str, list[str]] = defaultdict(list)
    for edge in edges:
        into[edge.target].append(edge)
        if edge.base is not None:
            out[edge.base].append(edge.target)
            if edge.reversible:
                out[edge.target].append(edge.base)
    starts = {edge.target for edge in edges if edge.base is None} | (unreadable & survey.committed)
    if_whole = closure(starts, lambda version: out.get(version, ()))
    dropped = {version for version in beyond if survey.dropped.get(version)}
    given_up = closure(dropped - if_whole, lambda version: out.get(version, ())) & beyond - if_whole
    problems += [
        Problem("no_path", edges_prefix(version), "no edges lead to this version, and none was dropped", (version,))
        for version in sorted(beyond - if_whole - given_up)
    ]
    lost = (beyond - given_up) | unreadable_versions
    return Losses(tuple(sorted(lost)), len((given_up | let_go) - lost), problems, detours)


def _backwards(
    graph: Graph, edges: Iterable[Outline], is_let_go: Callable[[str], bool]
) -> tuple[set[str], dict[str, str], list[Problem]]:
    """Versions that only walks back lead to: where each chain of them begins, and from where it is reached.

    Those that begin where the policy dropped all edges are no problem, and are returned apart: somebody is dropping
    the rest, or was interrupted.
    """
    forwards = graph.forwards
    only_back = graph.reached - forwards
    onward: dict[str, list[str]] = defaultdict(list)
    for edge in edges if only_back else ():
        if edge.base is not None and {edge.base, edge.target} <= only_back:
            onward[edge.base].append(edge.target)
    let_go: set[str] = set()
    detours: dict[str, str] = {}
    problems: list[Problem] = []
    for version, concerned in _beginnings(only_back, onward).items():
        if is_let_go(version):
            let_go |= concerned
            continue
        start: str | None = version
        while start is not None and start not in forwards:
            start = graph.entered_from(start)
        assert start is not None  # snapshots lead forwards
        detours[version] = start
        what = "only walks back over later edges lead to this version, and a checkout goes forwards"
        problems.append(Problem("no_way_forward", edges_prefix(version), what, tuple(sorted(concerned))))
    return let_go, detours, problems


def _beginnings(versions: Set[str], onward: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
    """As few of these versions as lead to all of them over these edges, each with those that it leads to.

    Edges may go round: those of an earlier repair lead to older versions.
    """
    behind = {target for targets in onward.values() for target in targets}
    found: dict[str, set[str]] = {}
    covered: set[str] = set()
    for version in (*sorted(versions - behind), *sorted(behind)):
        if version in covered:
            continue
        concerned = closure([version], lambda item: onward.get(item, ()))
        found = {other: leads_to for other, leads_to in found.items() if other not in concerned}
        found[version] = concerned
        covered |= concerned
    return found


def orphans(survey: Survey, edges: Iterable[Outline], packs: Set[str]) -> Orphans:
    """Objects that neither a committed version nor an edge to one needs."""
    needed = {pack_key(pack) for pack in packs}
    for edge in edges:
        needed.add(layout_key(edge.layout))
    for version in survey.committed:
        needed.add(version_key(version))
        if version in survey.versions:
            needed.add(layout_key(survey.versions[version].layout))
            needed.update(file.key for file in survey.versions[version].files)
    num_objects = nbytes = num_unknown = 0
    for key, size in survey.sizes.items():
        of_edge = EDGE_KEY.fullmatch(key)
        if key in needed or _NEEDED.fullmatch(key) or (of_edge and of_edge["target"] in survey.committed):
            continue
        if _OURS.fullmatch(key):
            num_objects, nbytes = num_objects + 1, nbytes + size
        else:
            num_unknown += 1
    return Orphans(num_objects, nbytes, num_unknown)
