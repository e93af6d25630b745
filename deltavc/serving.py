"""Serving: keeping live tensors, or a directory, at versions of a repository."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltavc.lookup import Lookup
from deltavc.store.transfers import DEFAULT_MEMORY

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed.distributed_c10d import ProcessGroup
    from torch.distributed.distributed_c10d import Store as SharedStore

    from deltavc.access import Access
    from deltavc.bindings import Bindings
    from deltavc.following import Follower
    from deltavc.following import Keep as FollowerKeep
    from deltavc.replica import Applied, Replica
    from deltavc.replica.group import ReplicaGroup


class Serving(Lookup):
    """The part of a `Repo` that brings versions to where they are served."""

    id: str

    def replica(
        self,
        live: Mapping[str, Tensor] | torch.nn.Module,
        at: str | None = None,
        *,
        bindings: Bindings | None = None,
        ignore: Sequence[str] = (),
        staging_bytes: int | None = None,
        threads: int | None = None,
        streams: Sequence[torch.cuda.Stream] | None = None,
        on_apply: Callable[[Applied], object] | None = None,
        memory: int = DEFAULT_MEMORY,
    ) -> Replica:
        """Take live tensors that are at a version, to move them to others with almost no pause.

        Args:
            live: names to tensors, or a module. They stay where they are, and are written to in place.
            at: the version they are at, which is checked; None to find out.
            bindings: checkpoint tensors that live elsewhere than under their own name, as `deltavc.bindings` explains.
            ignore: names, or patterns of names, of checkpoint tensors that are not held and of live tensors that no
                checkpoint tensor covers.
            staging_bytes: memory for staged changes on each device, taken at once; None for an eighth of the weights.
            threads: how many may stage on the CPU, where serving needs the others; None for all.
            streams: what the pause waits for; None for everything on the devices.
            on_apply: called inside the pause, on a thread of the replica's, with what was applied. If it raises, the
                old values go back and it is called for those.
            memory: bytes that staging may take beyond that, for frames on their way.

        Raises:
            WrongWeights: the live tensors are not that version.
            UnknownRef, AmbiguousRef; with at=None also when they are no version at all.
            LayoutMismatch, BadState: they cannot be bound to the version's tensors.
        """
        from deltavc.replica.opening import open_replica

        return open_replica(
            self._access(memory),
            live,
            None if at is None else self.resolve(at),
            bindings,
            ignore,
            staging_bytes=staging_bytes,
            threads=threads,
            streams=streams,
            on_apply=on_apply,
        )

    def replica_group(
        self,
        live: Mapping[str, Any] | torch.nn.Module,
        at: str = "main",
        *,
        group: ProcessGroup | None = None,
        store: SharedStore | None = None,
        timeout: float = 60.0,
        bindings: Bindings | None = None,
        ignore: Sequence[str] = (),
        memory: int = DEFAULT_MEMORY,
        **options: Any,
    ) -> ReplicaGroup:
        """Take the live tensors of all ranks of a process group, which make up a version, to move them together.

        Every rank calls it, with what it holds: whole tensors, DTensors, `deltavc.Shard`s, or some tensors only.

        Args:
            at: the version they are at, which is checked. Rank 0 resolves it.
            group: whose ranks; None for all. Its backend does not matter: what goes between ranks goes by gloo.
            store: where decisions are kept, if not in the store of the process group: one that outlives rank 0.
            timeout: seconds that a rank waits for the others at each step of a call, and for readers to leave.
            live, bindings, ignore, memory: as for `replica`. What one rank ignores need not be held by any.
            options: staging_bytes, threads, streams and on_apply, as for `replica`.

        Raises:
            WrongWeights, CopiesDiffer: together the live tensors are not that version.
            LayoutMismatch, BadState: they cannot be bound to the version's tensors, overlap without being equal, or
                leave out what no rank ignores; or there is no process group.
            UnknownRef, AmbiguousRef: on rank 0, of `at`.
            PeerFailed, GroupBroken: another rank failed, or did not answer.
        """
        from deltavc.ranks.meeting import council_of
        from deltavc.replica.opening_group import open_group

        council = council_of(group, store, timeout)
        return open_group(self._access(memory), council, live, at, bindings, ignore, **options)

    def follow(
        self,
        ref: str,
        directory: str | Path,
        *,
        every: float = 2.0,
        keep: FollowerKeep = "host",
        memory: int = DEFAULT_MEMORY,
    ) -> Follower:
        """Keep a directory of .safetensors files at the newest version of a ref, for engines that reload from disk.

        Nothing is moved yet: iterate over what this returns, or call its `move`.

        Args:
            directory: new, empty, or one that was followed into before. Only this process may write to it meanwhile.
            every: seconds from one look at the ref to the next.
            keep: where the last version's lanes are kept: "host", in main memory, or "disk", in temporary files.
            memory: bytes that a move may take beyond them.

        Raises:
            BadCheckpoint: the directory holds files of others, or a version of another repository.
            DirectoryInUse: another process follows into it.
            StoreDenied, StoreFull: it may not be written to, or its disk is full.
        """
        from deltavc.following import Follower

        return Follower(self._access(memory), self.id, ref, directory, every=every, keep=keep)

    @abstractmethod
    def _access(self, memory: int) -> Access: ...
