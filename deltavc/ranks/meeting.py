"""Meeting: ranks of a process group find each other."""

from __future__ import annotations

import secrets
from datetime import timedelta
from functools import partial

import torch.distributed as dist
from torch.distributed.distributed_c10d import (
    PrefixStore,
    ProcessGroup,
    Store,
    _get_default_group,
    _get_process_group_store,
)

from deltavc.errors import BadState, GroupBroken
from deltavc.ranks.clerk import Clerk
from deltavc.ranks.council import Council


def council_of(group: ProcessGroup | None, store: Store | None, timeout: float) -> Council:
    """The ranks of a process group, in a part of the store that nobody else writes to. Every rank calls it.

    Raises:
        BadState: there is no process group, or this process is not in it.
        GroupBroken: rank 0 did not call it within the time-out, or the store cannot be reached.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise BadState("there is no process group: call torch.distributed.init_process_group first")
    members = _get_default_group() if group is None else group
    rank, size = dist.get_rank(members), dist.get_world_size(members)
    if rank < 0:
        raise BadState("this process is not in the process group that was given")
    shared = PrefixStore("deltavc", _get_process_group_store(members))
    try:
        name = Clerk(shared).ask(partial(_name, rank, timeout), timeout)
    except OSError as error:
        raise GroupBroken("finding the other ranks", (), str(error)) from error
    return Council(PrefixStore(name, shared if store is None else store), rank, size, timeout)


def _name(rank: int, timeout: float, store: Store) -> str:
    """A name for a group that was never used before, even where the store outlives processes; the same on all ranks."""
    key = f"name/{store.add(f'groups/{rank}', 1)}"
    if rank == 0:
        store.set(key, secrets.token_hex(8))
    store.wait([key], timedelta(seconds=timeout))
    return store.get(key).decode()
