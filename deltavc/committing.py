"""Committing: states that become versions, of one process or of many ranks together."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

from deltavc.errors import BranchMoved, StoreError, UnknownRef
from deltavc.lineage import names
from deltavc.lookup import Lookup
from deltavc.snapshots import DEFAULT_POLICY, SnapshotPolicy
from deltavc.store.objects import Store
from deltavc.store.transfers import DEFAULT_MEMORY, Transfers
from deltavc.version import Version

if TYPE_CHECKING:
    import torch
    from torch.distributed.distributed_c10d import ProcessGroup

    from deltavc.access import Access
    from deltavc.base import Keep
    from deltavc.committer import OnBusy
    from deltavc.lineage.records import RefEntry
    from deltavc.sharded.writer import GroupWriter, RankState
    from deltavc.weights.state import State
    from deltavc.writer import Told, Writer, WriterOptions

log = logging.getLogger(__name__)

PATIENCE = 300.0
"""Seconds that a rank waits for the others at each step of a commit: what the slowest may take to read or upload."""


class Committing(Lookup):
    """The part of a `Repo` that takes states in."""

    _store: Store
    _transfers: Transfers

    def commit(
        self,
        state: State | Mapping[str, Any],
        branch: str = "main",
        message: str = "",
        *,
        parents: Sequence[str] | None = None,
        group: ProcessGroup | None = None,
        timeout: float = PATIENCE,
        memory: int = DEFAULT_MEMORY,
        **told: Unpack[Told],
    ) -> Version:
        """Commit one state. A trainer that commits every step should keep a `writer` instead.

        Args:
            state: a mapping of names to tensors, a module, an iterable of pairs, or a checkpoint's path.
            branch: it moves to the new version. One that does not exist is made when the repository is empty,
                or when `parents` says where it starts.
            parents: refs; the first has to be the branch's head. None means the head, an empty list no parent.
            group, timeout: as for `writer`: commit what all ranks of a process group hold. Every rank calls it.
            memory: bytes it may take beyond the state and the version before it.
            told: step, metrics, meta, files, snapshot, codec, dtype, partial and author, as in `writer.Told`.

        Raises:
            UnknownRef: there are branches, and this is none of them.
            BranchMoved: the branch is not at the first parent, or moved meanwhile; nothing was committed.
            and what `Writer.commit`, or `GroupWriter.commit`, raises.
        """
        from deltavc.writer import WriterOptions

        options = WriterOptions(keep="host", memory=memory)

        def start() -> tuple[str, ...] | None:
            return None if parents is None else tuple(self.resolve(parent) for parent in parents[:1])

        if group is None:
            # Here: to a writer of a new branch, `step:7` would be a step of that branch.
            ids = None if parents is None else [self.resolve(parent) for parent in parents]
            with self._open_writer(branch, options, None if ids is None else tuple(ids[:1])) as alone:
                return alone.commit(state, message, parents=ids, **told)
        with self._open_group(group, timeout, branch, options, start) as writer:
            return writer.commit(cast("RankState", state), message, parents=parents, **told)  # which others are not

    @overload
    def writer(
        self,
        branch: str = "main",
        *,
        keep: Keep = "device",
        memory: int = DEFAULT_MEMORY,
        codec: str | None = None,
        dtype: torch.dtype | str | None = None,
        max_in_flight: int = 1,
        on_busy: OnBusy = "wait",
        snapshots: SnapshotPolicy = DEFAULT_POLICY,
    ) -> Writer: ...

    @overload
    def writer(
        self,
        branch: str = "main",
        *,
        group: ProcessGroup,
        timeout: float = PATIENCE,
        keep: Keep = "device",
        memory: int = DEFAULT_MEMORY,
        codec: str | None = None,
        dtype: torch.dtype | str | None = None,
        snapshots: SnapshotPolicy = DEFAULT_POLICY,
    ) -> GroupWriter: ...

    def writer(
        self,
        branch: str = "main",
        *,
        group: ProcessGroup | None = None,
        timeout: float = PATIENCE,
        keep: Keep = "device",
        memory: int = DEFAULT_MEMORY,
        codec: str | None = None,
        dtype: torch.dtype | str | None = None,
        max_in_flight: int = 1,
        on_busy: OnBusy = "wait",
        snapshots: SnapshotPolicy = DEFAULT_POLICY,
    ) -> Writer | GroupWriter:
        """Open a writer, which keeps the branch's last version to take changes from.

        Args:
            group: a process group of torch.distributed: the writer commits what all its ranks hold together, and every
                rank opens it and calls its methods. Its backend does not matter: what goes between ranks goes by gloo.
            timeout: seconds that a rank waits for the others at each step of a commit: as long as the slowest of them
                may take to read or upload its part.
            keep, memory, codec, dtype, max_in_flight, on_busy, snapshots: as explained with
                `deltavc.writer.WriterOptions`. A group has one commit on its way at most, and waits.

        Raises:
            UnknownRef: there are branches, and this is none of them: make it with `repo.branch(name, at)`.
            UnknownCodec
            BadState: there is no process group, or this process is not in it.
            PeerFailed, GroupBroken: another rank failed, or did not answer.
        """
        from deltavc.writer import WriterOptions

        options = WriterOptions(
            keep=keep,
            memory=memory,
            codec=codec,
            dtype=dtype,
            max_in_flight=max_in_flight,
            on_busy=on_busy,
            snapshots=snapshots,
        )
        self._transfers.submit(self._sweep)
        if group is None:
            return self._open_writer(branch, options)
        if (max_in_flight, on_busy) != (1, "wait"):
            raise ValueError("a writer of many ranks has one commit on its way: max_in_flight=1, on_busy='wait'")
        return self._open_group(group, timeout, branch, options, lambda: None)

    # --- inside ---

    @abstractmethod
    def _access(self, memory: int) -> Access: ...

    def _open_writer(self, branch: str, options: WriterOptions, start: tuple[str, ...] | None = None) -> Writer:
        from deltavc.writer import Writer

        entry, at = self._found(branch, start)
        return Writer(self._access(options.memory), branch, entry, at, options)

    def _open_group(
        self,
        group: ProcessGroup,
        timeout: float,
        branch: str,
        options: WriterOptions,
        start: Callable[[], tuple[str, ...] | None],
    ) -> GroupWriter:
        from deltavc.ranks.meeting import council_of
        from deltavc.sharded.opening import open_writer

        council = council_of(group, None, timeout)
        return open_writer(self._access(options.memory), council, branch, lambda: self._found(branch, start()), options)

    def _found(self, branch: str, start: tuple[str, ...] | None) -> tuple[RefEntry | None, str | None]:
        """A branch's last entry, and the version it is at or is to start from.

        Args:
            start: where a branch that does not exist begins: nowhere, or at a version; None if it has to exist.
        """
        ref = names.branch_ref(branch)
        self._index.catch_up([ref])
        entry = self._index.head(ref)  # not a newer one, whose version the database may not know
        head = entry.new if entry is not None else None
        if head is None and start is None and (entry is not None or self.branches()):
            if entry is not None:
                again = f"`deltavc branch {branch} {branch}@{{1}}` makes it where it was"
                raise UnknownRef(branch, f"it was deleted; {again}")
            reason = "there is no branch of this name; make it first: repo.branch, `deltavc branch`"
            raise UnknownRef(branch, reason, tuple(self._index.branches()))
        if start is not None and head is not None and (start[0] if start else None) != head:
            raise BranchMoved(branch, start[0] if start else None, head)
        return entry, head if head is not None else next(iter(start or ()), None)

    def _sweep(self) -> None:
        """Remove what killed writers left half uploaded. It helps nobody at once, so it may fail."""
        try:
            self._store.sweep()
        except StoreError as error:
            log.info("unfinished uploads were not swept: %s", error)
