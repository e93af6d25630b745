"""Replica groups: ranks of a `torch.distributed` group at one version, that move to another together or not at all.

Every rank holds whole tensors, shards, or some tensors only, in any mixture. All of them make the same calls in the
same order, and every call is a row of steps that a `Council` decides on:

    stage   walk, beside serving ─> (all have) ─> sum up shares, prove ─> (all have) ─> staged
    apply   gate closed ─> fence, compare ─> (all as expected) ─> write, on_apply ─> (all have) ─> gate opened
            └── old values ────────────────────────────────────┘└─ go back if stop ─┘└─ new values on every rank

    rank that fails or dies    what the others do
    before the first decision  stop: they have written nothing, and open their gates at the old version
    before the second          stop: old values go back, on_apply runs again for those, gates open at the old version
    after the second           go: they are at the new version. So is it, if it lives

The second decision is the move: it is made by one key of a Store, which every rank has voted for with its gate closed.
So from the moment it is there nobody serves the old version, and before it nobody serves the new one. A rank that voted
and cannot learn the decision, as the store is gone, serves nothing: it is unusable.

Shares travel by gloo, on connections of the group's own; see `exchange` and `holdings`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from deltavc.access import Access
from deltavc.bound import Bound
from deltavc.errors import DeltavcError, ReplicaClosed, ReplicaUnusable, StagingTooSmall
from deltavc.lineage.records import VersionRecord
from deltavc.lineage.resolve import resolve
from deltavc.proof import check
from deltavc.ranks.council import Call, Council, Decision
from deltavc.ranks.exchange import Exchange
from deltavc.ranks.holdings import Holdings
from deltavc.replica.applied import Applied, Staged
from deltavc.replica.following import OnError
from deltavc.replica.following_group import GroupFollower, open_follower
from deltavc.replica.live import LiveVersion
from deltavc.replica.position import Ready
from deltavc.replica.swaps import Swap, compare_all, write_all

T = TypeVar("T")

_LONG = {StagingTooSmall.kind, ReplicaUnusable.kind}
"""What a long move makes good."""


class _Staged(Staged):
    """What a group is staging. stopped: the decision against it, once there is one."""

    stopped: Decision | None = None


class ReplicaGroup(LiveVersion):
    """The live tensors of many ranks, at one version. Make one with `repo.replica_group`, on every rank.

    `stage`, `apply`, `move` and `verify` are made by all ranks, in the same order, whatever they raise. What a rank
    raises that did not fail itself is PeerFailed, or GroupBroken where one did not answer. `reading`, `version`,
    `state` and `history` are each rank's own.
    """

    def __init__(
        self,
        access: Access,
        bound: Bound,
        record: VersionRecord,
        holdings: Holdings,
        council: Council,
        exchange: Exchange,
        call: Call,
        **options: Any,
    ) -> None:
        """
        Args:
            call: the one that opens the group.

        Raises:
            WrongWeights, CopiesDiffer: the live tensors are not this version.
            PeerFailed, GroupBroken
        """
        self._holdings = holdings
        self._council = council
        self._exchange = exchange
        self._call = call
        self._patience = council.timeout
        self._in_doubt = False
        self._follower: GroupFollower | None = None
        super().__init__(access, bound, record, **options)

    @property
    def rank(self) -> int:
        """Which of the group's ranks this is."""
        return self._council.rank

    @property
    def size(self) -> int:
        """How many ranks the group has."""
        return self._council.size

    @property
    def timeout(self) -> float:
        """Seconds that a rank waits for the others at each step of a call. Set it between calls, the same on all."""
        return self._council.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._council.timeout = self._patience = seconds

    # --- moving ---

    def stage(self, ref: str = "main") -> Staged:
        """Begin to prepare a move, beside serving. Rank 0 resolves the ref, and all go to the version that it finds.

        Waits for rank 0 to have done so, and not for staging.

        Raises:
            UnknownRef, AmbiguousRef: on rank 0, of the ref.
            PeerFailed, GroupBroken, ReplicaClosed
            and, from the `Staged` that is returned, what staging on this rank failed with; CopiesDiffer, when ranks
            hold different values in the same part of a tensor. Then nothing is staged on any rank.
        """
        return self._begin_staging(ref)

    def apply(self) -> Applied:
        """Move to the version that is staged, on all ranks or none.

        Waits until nobody is inside `reading`, so every rank has to call it at the same point of what they do together:
        a reader that waits for another rank's reader, which waits for the pause to end, waits until the time-out.
        An interrupt is raised when the move is over, done or not; `version` tells.

        Returns:
            What was applied on this rank. pause_seconds counts the waiting for the others.

        Raises:
            NothingStaged, and what staging failed with.
            ForeignWrite, HookFailed, as for a single replica, on the rank that met it. TimeoutError: readers did not
                leave within the time-out.
            PeerFailed, GroupBroken: another rank failed, died or was late. No rank has moved.
            ReplicaUnusable: what was decided cannot be learned: this rank may be at either version, and serves none.
            ReplicaClosed
        """
        return self._together("apply", partial(self._apply_staged, self._staged))

    def move(self, ref: str, *, allow_long_pause: bool = False) -> Applied:
        """Stage and apply.

        Args:
            allow_long_pause: the same on all ranks. When a change does not fit into the staging memory of some rank, or
                some rank is unusable, write to the live tensors of all ranks edge by edge while nobody may read.
                Ranks that are at the version already are only read. Interrupted, those that were written to are
                unusable.

        Raises:
            what `stage` and `apply` raise.
        """
        staged = self._begin_staging(ref)
        try:
            staged.wait()
        except DeltavcError:
            if not allow_long_pause or staged.stopped is None or staged.stopped.failure not in _LONG:
                raise
        else:
            return self.apply()
        return self._together("move", partial(self._rewrite, staged.version))

    def verify(self) -> None:
        """Read all live tensors on all ranks, and compare their fingerprints with those of the version.

        A rank that was found to hold something else, and holds its version again, is usable again.

        Raises:
            WrongWeights: the tensors named hold something else on this rank, which is unusable.
            ReplicaUnusable: this rank does not know which version it should be at.
            PeerFailed, GroupBroken, ReplicaClosed
        """
        self._together("verify", self._verify_all, pause=False)

    def follow(self, ref: str = "main", *, every: float = 1.0, on_error: OnError | None = None) -> GroupFollower:
        """Stay at the newest version of a ref, forwards or back.

        Rank 0 looks at it. At the safe points that all ranks come to (`GroupFollower.safe_point`) all of them begin to
        stage it, and apply it once it is proven. A call of the group, as `safe_point` is.

        Outages of the store and the database are waited out; a version that cannot be reached on some rank is passed
        over on all. Moves of one's own between two safe points do no harm.

        Args:
            ref: rank 0's counts. every: seconds from one look of rank 0 at the ref to the next.
            on_error: called on each rank with what it met, when a version is passed over and when following ends.

        Raises:
            UnknownRef, AmbiguousRef: on rank 0, of the ref.
            RuntimeError: it is following already: close that first, on all ranks.
            PeerFailed, GroupBroken, ReplicaClosed
        """
        index = self._access.index
        self._follower = open_follower(self, self._council, index, ref, every=every, on_error=on_error)
        return self._follower

    def check_following(self) -> None:
        """Raise RuntimeError where `follow` must not be called: while it follows, and inside `on_apply`."""
        self.check_outside("follow", reading=False)
        if self._follower is not None and self._follower.running:
            raise RuntimeError(f"the group is following {self._follower.ref!r} already: close that first")

    def close(self) -> None:
        """Let go of the live tensors, the staging memory and the connections. Not a call of the group: calls that the
        others make then end as they do when a rank is dead. May be called twice."""
        if self._follower is not None:
            self._follower.close()
        super().close()
        self._exchange.drop()

    # --- calls ---

    def _begin_staging(self, ref: str) -> _Staged:
        call = self._council.call("stage")
        with call:
            self.check_outside("stage", reading=False)
            staged = _Staged(call.told(partial(resolve, self._access.index, ref)))
        try:
            self._begin(staged, partial(self._carry_out, call, partial(self._stage_all, staged)))
        except ReplicaClosed as error:
            call.stop(error)
            raise
        return staged

    def _together(self, verb: str, job: Callable[[], T], *, pause: bool = True) -> T:
        """Make a call and wait until it is carried out."""
        call = self._council.call(verb)
        with call:
            self.check_outside(verb, reading=pause)
        try:
            return self._worker.run(partial(self._carry_out, call, job))
        except ReplicaClosed as error:
            call.stop(error)
            raise

    # --- on the worker's thread ---

    def _carry_out(self, call: Call, job: Callable[[], T]) -> T:
        self._call = call
        try:
            with call:
                return job()
        finally:
            if call.failed:
                self._exchange.drop()  # on all ranks, as the call fails on all

    def _stage_all(self, staged: _Staged) -> int:
        try:
            return self._stage(staged)
        except BaseException as error:
            self._call.stop(error)
            staged.stopped = self._call.stopped
            raise

    def _apply_staged(self, staged: Staged | None) -> Applied:
        self.check_usable()
        if staged is not None:
            staged.wait()  # it is done, or failed: this thread has done it
        return self._apply()

    def _verify_all(self) -> None:
        if self._in_doubt:
            self.check_usable()
        self._verify()
        self._agree(final=False)

    def _agree(self, *, final: bool) -> None:
        self._call.agree(final=final)

    def _record(self, version: str) -> VersionRecord:
        resolve(self._access.index, version)  # this rank's database may not have heard of it
        return super()._record(version)

    def _prove(self, record: VersionRecord, held: Sequence[int]) -> None:
        """Show that all ranks together hold a version. Until all have come, some may be staging still."""
        self._call.agree()
        holdings = self._holdings
        sums = self._exchange.sum(holdings.terms(held), self._call)
        if differing := holdings.differing(sums):
            told = self._exchange.gather(holdings.shares_of(differing[0], held), self._call)
            raise holdings.difference(differing[0], told)
        check(self._access, self._bound.layout, record, holdings.totals(sums))

    # --- on the worker's thread: the pause ---

    def _swap(self, ready: Ready) -> Applied:
        try:
            return super()._swap(ready)
        except BaseException as error:
            self._call.stop(error)  # before this rank undoes anything, so that the others need not wait
            raise

    def _write(self, swaps: Sequence[Swap]) -> tuple[str, ...]:
        foreign = compare_all(swaps)
        if not foreign:
            self._agree(final=False)
            write_all(swaps)
        return foreign

    def _settle(self) -> None:
        """Leave the pause as it was decided, or unusable."""
        call, journal = self._call, self._journal
        moving = journal is not None and self._position is not journal.target
        if call.in_doubt or moving:
            call.stop(ReplicaUnusable("the move was interrupted"))
        if call.in_doubt:
            self._in_doubt = True
            self._broken = "it voted for a move, and the group's store, which tells whether it was made, is gone"
            self._journal = None
        elif journal is not None and moving and call.made:
            write_all(journal.swaps)
            self._take(journal.target)
        super()._settle()
        if call.in_doubt:
            self.check_usable()

    def _rewrite(self, version: str) -> Applied:
        applied = super()._rewrite(version)
        self._in_doubt = False
        return applied
