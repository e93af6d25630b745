"""Opening a replica group: ranks find each other, tell what they hold, and prove that together it is a version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from deltavc.access import Access
from deltavc.bindings import Bindings, bind
from deltavc.lineage.resolve import resolve
from deltavc.parts import localized
from deltavc.patterns import matching
from deltavc.ranks.council import Council
from deltavc.ranks.exchange import Exchange
from deltavc.ranks.holdings import Holdings, description
from deltavc.replica.group import ReplicaGroup


def open_group(
    access: Access,
    council: Council,
    live: Mapping[str, Any] | torch.nn.Module,
    at: str,
    bindings: Bindings | None,
    ignore: Sequence[str],
    **options: Any,
) -> ReplicaGroup:
    """Make a replica group of the live tensors of all ranks. Every rank calls it.

    Raises:
        LayoutMismatch, BadState: they cannot be bound to the version, overlap, or leave some of it out.
        WrongWeights, CopiesDiffer: together they are not that version.
        UnknownRef, AmbiguousRef: on rank 0, of `at`.
        PeerFailed, GroupBroken
    """
    with council.call("replica_group") as call:
        version = resolve(access.index, call.told(partial(resolve, access.index, at)))
        record = access.index.version(version).record
        layout = access.objects.layout(record.layout, version)
        tensors, bindings = localized(live, bindings)
        bound = bind(tensors, layout, bindings, ignore, complete=False)
        patterns = [ignore] if isinstance(ignore, str) else ignore
        ignored = {name for pattern in patterns for name in matching(pattern, layout.place.keys())}
        call.agree()
        exchange = Exchange(council)
        holdings = Holdings(layout, council.rank, exchange.gather(description(bound, sorted(ignored)), call))
        found = ReplicaGroup(access, bound, record, holdings, council, exchange, call, **options)
        try:
            call.agree()
        except BaseException:
            found.close()
            raise
        return found
