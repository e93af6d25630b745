"""The database against the bucket: what one has and the other lacks, and rows that are not what was read.

The database is asked before the bucket is listed, and again after it has caught up: then everything that it had has to
be in the bucket, and everything that the bucket had has to be in it, whoever writes meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable

from deltavc.lineage.contents import Contents
from deltavc.lineage.names import BRANCHES, TAGS
from deltavc.lineage.records import edge_key, layout_key, ref_entry_key, version_key
from deltavc.upkeep.fsck_graph import Outline
from deltavc.upkeep.fsck_report import Problem
from deltavc.upkeep.fsck_survey import Survey


def bucket_lacks(known: Contents, survey: Survey) -> list[Problem]:
    """What the database knew before the bucket was read, and the bucket neither has nor has dropped.

    Raises:
        StoreError
    """
    found: list[Problem] = []
    told = {problem.key for problem in survey.problems}

    def missing(kind: str, key: str, versions: tuple[str, ...]) -> None:
        if key not in told and survey.size(key) is None:
            found.append(Problem(kind, key, "the database knows it, and it is not in the store", versions))

    for version in sorted(known.versions - survey.versions.keys()):
        missing("missing_version", version_key(version), (version,))
    for layout in sorted(known.layouts):
        missing("missing_layout", layout_key(layout), ())
    for edge, target in sorted(known.edges.items()):
        if edge not in survey.edges_to.get(target, ()) and not survey.is_dropped(target, edge):
            missing("missing_edge", edge_key(target, edge), (target,))
    for ref, (sequence, at) in sorted(known.heads.items()):
        if not any(move.sequence == sequence for move in survey.moves.get(ref, ())):
            missing("missing_ref", ref_entry_key(ref, sequence), () if at is None else (at,))
    return found


def index_differs(now: Contents, survey: Survey, edges: Iterable[Outline], database: str) -> list[Problem]:
    """What the database lacks after it caught up, or has otherwise. edges: those that can be read."""
    in_row = {  # what is behind a gap cannot be followed
        ref: sum(move.sequence == place for place, move in enumerate(moves, start=1))
        for ref, moves in survey.moves.items()
        if ref.startswith((BRANCHES, TAGS))
    }
    lacking = {
        "versions": (survey.versions.keys() & survey.committed) - now.versions,
        "edges": {
            edge.id for edge in edges if edge.id not in now.edges and not survey.is_dropped(edge.target, edge.id)
        },
        "refs": {ref for ref, number in in_row.items() if now.heads.get(ref, (0,))[0] < number},
    }
    other = dict(now.damaged)
    other["refs"] = frozenset(
        ref
        for ref, (sequence, version) in now.heads.items()
        if any(move.sequence == sequence and move.new != version for move in survey.moves.get(ref, ()))
    )
    found = [_differs(table, ids, "lacks", database) for table, ids in lacking.items() if ids]
    return found + [_differs(table, ids, "holds something else of", database) for table, ids in other.items() if ids]


def _differs(table: str, ids: Iterable[str], how: str, database: str) -> Problem:
    ordered = sorted(ids)
    more = f" and {len(ordered) - 1} more" if len(ordered) > 1 else ""
    versions = tuple(ordered) if table == "versions" else ()
    return Problem("index_differs", f"{table} in {database}", f"it {how} {ordered[0]}{more}", versions)
