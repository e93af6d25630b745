"""Proof that live tensors are a version: their fingerprints against its root."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deltavc import fingerprints, kernels, walk
from deltavc.access import Access
from deltavc.bound import Bound
from deltavc.errors import DeltavcError, LayoutMismatch, WrongWeights
from deltavc.kernels import Part
from deltavc.layout import Layout, TensorSpec
from deltavc.lineage.plan import plan
from deltavc.lineage.records import VersionRecord
from deltavc.lineage.replan import replanning
from deltavc.live import stored_name
from deltavc.reader import proven_fingerprints


def shares(bound: Bound) -> list[int]:
    """The fingerprint of each cell, read from live memory."""
    return kernels.fingerprint_all([Part(cell.lanes, cell.box, cell.shape) for cell in bound.cells])


def by_name(bound: Bound, held: Sequence[int]) -> dict[str, int]:
    """The fingerprint of what is held of each tensor, by name, from those of the cells."""
    found = dict.fromkeys(bound.names, 0)
    for cell, value in zip(bound.cells, held, strict=True):
        found[cell.name] = (found[cell.name] + value) % fingerprints.MODULUS
    return found


def prove(access: Access, bound: Bound, record: VersionRecord, held: Sequence[int]) -> None:
    """Show that the fingerprints of the cells are a version's.

    Raises:
        LayoutMismatch: of some tensors only a part is held, which proves nothing about them.
        and what `check` raises.
    """
    if bound.partial:
        raise LayoutMismatch(
            min(bound.partial), "is held in part only: ranks that hold the rest have to prove it together"
        )
    check(access, bound.layout, record, by_name(bound, held))


def check(access: Access, layout: Layout, record: VersionRecord, held: Mapping[str, int]) -> None:
    """Show that fingerprints of whole tensors are a version's.

    Args:
        held: by name; of tensors that are not there the lineage has to tell.

    Raises:
        WrongWeights: they are not; the tensors are named where the lineage can tell them.
        CorruptObject, MissingObject, NoPath: some tensors are not held, and the lineage cannot tell of the others.
    """
    values = {stored_name(layout, name): value for name, value in held.items()}
    missing = layout.stored_names - values.keys()
    if not missing:
        tied = all(values[stored_name(layout, name)] == value for name, value in held.items())
        if tied and fingerprints.root(layout, values) == record.fingerprint:
            return
    try:
        expected = expected_fingerprints(access, record)
    except DeltavcError as error:
        if missing:
            raise
        raise WrongWeights(record.id, ()) from error
    wrong = [name for name, value in held.items() if expected[stored_name(layout, name)] != value]
    if wrong:
        raise WrongWeights(record.id, tuple(sorted(wrong)))


def expected_fingerprints(access: Access, record: VersionRecord) -> dict[str, int]:
    """Every stored tensor's fingerprint at a version, as its lineage tells them and its root proves them.

    Raises:
        CorruptObject, MissingObject, NoPath
    """

    def attempt() -> dict[str, int]:
        way = plan(access.index, record.id, forward_only=True)
        return proven_fingerprints(walk.legs(way, access.objects), record)

    return replanning(access.index, attempt)


def check_layout(bound: Bound, other: Layout) -> None:
    """Raise LayoutMismatch, naming a tensor, if a version's layout is not the one that live tensors are bound to."""
    if other.id != bound.layout.id:
        raise LayoutMismatch(*_difference(bound, other))


def _difference(bound: Bound, other: Layout) -> tuple[str, str]:
    """The first tensor in which a version's layout is not the one that the live tensors are bound to, and how."""
    for name in sorted({*bound.layout.place, *other.place}):
        here, there = (
            layout.tensors[layout.place[name]] if name in layout.place else None for layout in (bound.layout, other)
        )
        if here is None:
            return name, "is in the version that was asked for, but not in the one the replica is at"
        if there is None:
            return name, "is not in the version that was asked for"
        if here != there:
            return name, f"is {_form(there)} in the version that was asked for, {_form(here)} in the live state"
    raise AssertionError("equal layouts have equal ids")


def _form(tensor: TensorSpec) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}" + (f", tied to {tensor.tie!r}" if tensor.tie else "")
