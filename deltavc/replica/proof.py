"""Proof that live tensors are a version: their fingerprints against its root."""

from __future__ import annotations

from collections.abc import Mapping

from deltavc import fingerprints, kernels, walk
from deltavc.access import Access
from deltavc.bound import Bound
from deltavc.errors import DeltavcError, LayoutMismatch, WrongWeights
from deltavc.kernels import Part
from deltavc.lineage.plan import plan
from deltavc.lineage.records import VersionRecord
from deltavc.reader import proven_fingerprints


def shares(bound: Bound) -> dict[str, int]:
    """The fingerprint of what is held of each tensor, by name, read from live memory."""
    found = dict.fromkeys(bound.names, 0)
    values = kernels.fingerprint_all([Part(cell.lanes, cell.box, cell.shape) for cell in bound.cells])
    for cell, value in zip(bound.cells, values, strict=True):
        found[cell.name] = (found[cell.name] + value) % fingerprints.MODULUS
    return found


def prove(access: Access, bound: Bound, record: VersionRecord, held: Mapping[str, int]) -> None:
    """Show that fingerprints are a version's.

    Args:
        held: the fingerprint of each tensor of `bound`, by name.

    Raises:
        WrongWeights: they are not; the tensors are named where the lineage can tell them.
        LayoutMismatch: of some tensors only a part is held, which proves nothing about them.
        CorruptObject, MissingObject, NoPath: some tensors are not held, and the lineage cannot tell of the others.
    """
    if bound.partial:
        raise LayoutMismatch(
            min(bound.partial), "is held in part only: ranks that hold the rest have to prove it together"
        )
    if not bound.missing:
        values = {bound.stored(name): value for name, value in held.items()}
        tied = all(values[bound.stored(name)] == value for name, value in held.items())
        if tied and fingerprints.root(bound.layout, values) == record.fingerprint:
            return
    try:
        expected = expected_fingerprints(access, record)
    except DeltavcError as error:
        if bound.missing:
            raise
        raise WrongWeights(record.id, ()) from error
    wrong = [name for name, value in held.items() if expected[bound.stored(name)] != value]
    if wrong:
        raise WrongWeights(record.id, tuple(sorted(wrong)))


def expected_fingerprints(access: Access, record: VersionRecord) -> dict[str, int]:
    """Every stored tensor's fingerprint at a version, as its lineage tells them and its root proves them.

    Raises:
        CorruptObject, MissingObject, NoPath
    """
    way = plan(access.index, record.id, forward_only=True)
    return proven_fingerprints(walk.legs(way, access.objects), record)
