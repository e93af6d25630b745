"""Opening a replica: live tensors are bound to a version, found out which one if need be, and proven to be it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from deltavc import fingerprints
from deltavc.access import Access
from deltavc.bindings import Bindings, bind
from deltavc.bound import Bound
from deltavc.errors import InputError, UnknownRef
from deltavc.proof import by_name, shares
from deltavc.replica.replica import Replica


def open_replica(
    access: Access,
    live: Mapping[str, Tensor] | torch.nn.Module,
    version: str | None,
    bindings: Bindings | None,
    ignore: Sequence[str],
    **options: Any,
) -> Replica:
    """Make a replica of live tensors at a version; None to find out which one they are.

    Raises:
        LayoutMismatch, BadState: they cannot be bound to it.
        WrongWeights: they are not that version.
        UnknownRef: they are no version at all.
    """
    if version is None:
        version = _identify(access, live, bindings, ignore)
    record = access.index.version(version).record
    bound = bind(live, access.objects.layout(record.layout, version), bindings, ignore)
    return Replica(access, bound, record, **options)


def _identify(
    access: Access, live: Mapping[str, Tensor] | torch.nn.Module, bindings: Bindings | None, ignore: Sequence[str]
) -> str:
    """The newest version that the live tensors are."""
    access.index.catch_up_all()
    unfit: list[str] = []
    for layout_id in access.index.layouts():
        layout = access.objects.layout(layout_id)
        try:
            bound = bind(live, layout, bindings, ignore)
        except InputError as error:
            unfit.append(str(error))
            continue
        root = _root(bound)
        versions = [] if root is None else access.index.versions(sorted(access.index.with_fingerprint(root)))
        if versions:
            return max(versions, key=lambda info: info.record.time).record.id
    reason = "the live tensors are no version that was committed here"
    raise UnknownRef("at=None", f"{reason}: {unfit[0]}" if unfit else f"{reason}; name the version they are with at=")


def _root(bound: Bound) -> str | None:
    """The root of what is held, where that is all of a version."""
    if bound.partial or bound.missing:
        return None
    held = by_name(bound, shares(bound))
    values = {bound.stored(name): value for name, value in held.items()}
    if any(values[bound.stored(name)] != value for name, value in held.items()):
        return None
    return fingerprints.root(bound.layout, values)
