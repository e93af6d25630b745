"""Opening a replica group: ranks find each other, tell what they hold, and prove that together it is a version."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import (
    PrefixStore,
    ProcessGroup,
    Store,
    _get_default_group,
    _get_process_group_store,
)

from deltavc.access import Access
from deltavc.bindings import Bindings, bind
from deltavc.errors import BadState, GroupBroken
from deltavc.lineage.resolve import resolve
from deltavc.patterns import matching
from deltavc.replica.clerk import Clerk
from deltavc.replica.council import Council
from deltavc.replica.exchange import Exchange
from deltavc.replica.group import ReplicaGroup
from deltavc.replica.holdings import Holdings, description

VERB = "replica_group"


def open_group(
    access: Access,
    council: Council,
    live: Mapping[str, Tensor] | torch.nn.Module,
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
    with council.call(VERB) as call:
        version = resolve(access.index, call.told(partial(resolve, access.index, at)))
        record = access.index.version(version).record
        layout = access.objects.layout(record.layout, version)
        bound = bind(live, layout, bindings, ignore, complete=False)
        patterns = [ignore] if isinstance(ignore, str) else ignore
        ignored = {name for pattern in patterns for name in matching(pattern, layout.place.keys())}
        call.agree()
        exchange = Exchange(council)
        try:
            told = exchange.gather(description(bound, sorted(ignored)), call.number)
        except OSError as error:
            call.abstain(str(error))
        holdings = Holdings(layout, council.rank, told)
        found = ReplicaGroup(access, bound, record, holdings, council, exchange, call, **options)
        try:
            call.agree()
        except BaseException:
            found.close()
            raise
        return found


def council_of(group: ProcessGroup | None, store: Store | None, timeout: float) -> Council:
    """The ranks of a process group, in a part of the store that nobody else writes to. Every rank calls it.

    Raises:
        BadState: there is no process group, or this process is not in it.
        GroupBroken: rank 0 did not call it within the time-out, or the store cannot be reached.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise BadState("a replica group is made of a process group: call torch.distributed.init_process_group first")
    members = _get_default_group() if group is None else group
    rank, size = dist.get_rank(members), dist.get_world_size(members)
    if rank < 0:
        raise BadState("this process is not in the process group that the replica group is to be made of")
    shared = PrefixStore("deltavc", _get_process_group_store(members))
    try:
        name = Clerk(shared).ask(partial(_name, rank, timeout), timeout)
    except OSError as error:
        raise GroupBroken(VERB, (), str(error)) from error
    return Council(PrefixStore(name, shared if store is None else store), rank, size, timeout)


def _name(rank: int, timeout: float, store: Store) -> str:
    """A name for a group that was never used before, even where the store outlives processes; the same on all ranks."""
    key = f"name/{store.add(f'groups/{rank}', 1)}"
    if rank == 0:
        store.set(key, secrets.token_hex(8))
    store.wait([key], timedelta(seconds=timeout))
    return store.get(key).decode()
