"""Following together: a replica group that stays at the newest version of a ref.

    rank 0   looks at the ref ──> what now? ──at every safe point, one word──> every rank
                                  stay       nothing
                                  stage      the newest version, beside serving
                                  apply      what is staged: the pause, on all ranks or none
                                  end        the ref names nothing any more

Only rank 0 looks, so ranks never disagree on what is newest, and the others ask neither store nor database what to do.
A safe point is the same point of what all ranks do, so all of them stage and apply at the same one, in the same order;
what else there is to agree on, the calls of the group decide.
"""

from __future__ import annotations

import contextlib
import enum
import threading
import time
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from deltavc.errors import DeltavcError, GroupBroken, NothingStaged, PeerFailed, RefError, ReplicaClosed
from deltavc.lineage.index import Index
from deltavc.lineage.resolve import resolve
from deltavc.ranks.council import Council
from deltavc.ranks.exchange import Exchange
from deltavc.replica.applied import Applied, Staged
from deltavc.replica.following import OnError, report
from deltavc.store import retry
from deltavc.watch import AWAY, LONGEST_WAIT, Watch

if TYPE_CHECKING:
    from deltavc.replica.group import ReplicaGroup

_PASSING = frozenset({*(error.kind for error in AWAY), GroupBroken.kind, TimeoutError.__name__})
"""What a version is tried again for, some time later."""


class _Word(enum.IntEnum):
    """What rank 0 says at a safe point."""

    STAY = 0
    STAGE = 1
    APPLY = 2
    END = 3


class GroupFollower:
    """Keeps a replica group at the newest version of a ref. Make one with `group.follow`, on every rank.

    ref: what rank 0 follows. error: the last thing that went wrong on this rank; None again after the next move.
    """

    def __init__(
        self,
        group: ReplicaGroup,
        council: Council,
        exchange: Exchange,
        index: Index,
        ref: str,
        *,
        every: float,
        on_error: OnError | None,
    ) -> None:
        """
        Args:
            exchange: connections that nobody else uses.
        """
        self.ref = ref
        self.error: Exception | None = None
        self._group = group
        self._council = council
        self._exchange = exchange
        self._every = every
        self._on_error = on_error
        self._ended = False
        self._staged: Staged | None = None
        self._lookout = _Lookout(index, ref, every, self._tell) if council.rank == 0 else None
        self._settled: str | None = None  # the newest version that was reached or passed over
        self._failures = 0
        self._not_before = 0.0

    @property
    def running(self) -> bool:
        """Whether it follows still. It ends when it is closed, when the ref names nothing any more, when ranks lose
        each other, and when this rank is closed or unusable; `error` then says so."""
        return not self._ended

    def safe_point(self) -> Applied | None:
        """Do what rank 0 says, now that a pause does no harm on any rank: nothing, begin to stage, or apply.

        A call of the group: every rank makes it at the same point of what they do together. It waits for rank 0's word,
        one small message, and nothing more unless there is something to do.

        Returns:
            What was applied on this rank; None if there was nothing, or it failed and all ranks serve the version they
            were at (`error` tells, as does `on_error`).

        Raises:
            ForeignWrite, ReplicaUnusable: the live tensors of this rank may be no version: stop serving.
            GroupBroken: rank 0 did not come to this safe point within the time-out. Following has ended on this rank;
                all of them may call `follow` again.
            ReplicaClosed
        """
        self._group.check_outside("safe_point")
        self._group.check_usable()
        if self._ended:
            return None
        try:
            word = _Word(self._exchange.word(self._next(), "safe_point"))
        except GroupBroken as error:
            self._end(error)
            raise
        if word is _Word.APPLY:
            return self._apply()
        if word is _Word.STAGE:
            self._stage()
        elif word is _Word.END:
            self._call_off()
        return None

    def close(self) -> None:
        """Stop following, on this rank; not a call of the group. What is being staged is cancelled. The group stays
        where it is. May be called twice."""
        self._ended = True
        if self._lookout is not None:
            self._lookout.stop()
        if self._staged is not None and not self._staged.done:
            self._staged.cancel()
        self._exchange.drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<deltavc.GroupFollower of {self.ref}, {'running' if self.running else 'ended'}>"

    # --- what rank 0 says ---

    def _next(self) -> _Word:
        """What is to be done at this safe point; on other ranks this is not asked."""
        lookout = self._lookout
        if lookout is None:
            return _Word.STAY
        if lookout.failed is not None:
            return _Word.END
        if self._staged is not None:
            return _Word.APPLY if self._staged.done else _Word.STAY
        newest = lookout.newest
        if newest in (None, self._settled) or time.monotonic() < self._not_before:
            return _Word.STAY
        if newest == self._group.version:
            self._arrived(newest)
            return _Word.STAY
        return _Word.STAGE

    # --- what every rank does ---

    def _stage(self) -> None:
        newest = self.ref if self._lookout is None or self._lookout.newest is None else self._lookout.newest
        try:
            self._staged = self._group.stage(newest)
        except ReplicaClosed:
            raise
        except DeltavcError as error:
            self._pass_over(newest, error)

    def _apply(self) -> Applied | None:
        """Apply what was staged, or meet what it failed with: the call fails alike on all ranks."""
        staged, self._staged = self._staged, None
        try:
            applied = self._group.apply()
        except ReplicaClosed:
            raise
        except NothingStaged:  # somebody else has applied it
            return None
        except (DeltavcError, TimeoutError) as error:
            if self._group.state == "unusable":
                self._end(error)
                raise
            self._pass_over(self.ref if staged is None else staged.version, error)
            return None
        self._arrived(applied.version)
        return applied

    def _call_off(self) -> None:
        """Tell on all ranks what rank 0 has met."""
        try:
            with self._council.call("follow") as call:
                call.told(self._met)
        except Exception as error:
            self._end(error)

    def _met(self) -> NoReturn:
        assert self._lookout is not None  # rank 0 has it
        assert self._lookout.failed is not None
        raise self._lookout.failed

    # --- how it went ---

    def _arrived(self, version: str) -> None:
        self._settled = version
        self._failures = 0
        self.error = None

    def _pass_over(self, version: str, error: Exception) -> None:
        """Have a version not tried again, or not at once."""
        kind = error.failure if isinstance(error, PeerFailed) else getattr(error, "kind", type(error).__name__)
        if kind in _PASSING:
            self._failures += 1
            bound = max(self._every, LONGEST_WAIT)
            self._not_before = time.monotonic() + min(bound, self._every * 2 ** min(self._failures, 32))
            self._tell(error, f"version {version} is tried again later: ")
        else:
            self._settled = version
            self._tell(error, f"version {version} is passed over: ")

    def _end(self, error: Exception) -> None:
        self.close()
        self._tell(error, f"{self.ref} is followed no longer: ")

    def _tell(self, error: Exception, what: str = "") -> None:
        self.error = error
        report(error, what, self._on_error)


class _Lookout:
    """Looks at a ref on a thread of its own, on rank 0.

    newest: the version that it named last. failed: why it is not looked at any more.
    """

    def __init__(self, index: Index, ref: str, every: float, tell: OnError) -> None:
        self.newest: str | None = None
        self.failed: Exception | None = None
        self._stopped = threading.Event()
        self._new_watch = partial(Watch, index, ref, every=every)
        self._watch = self._new_watch()
        self._pause = max(every, LONGEST_WAIT)
        self._tell = tell
        threading.Thread(target=self._run, name=f"deltavc-follow-{ref}", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self._watch.stop()

    def _run(self) -> None:
        told = ""
        while not self._stopped.is_set():
            try:
                for version in self._watch:
                    self.newest = version
            except RefError as error:
                self.failed = error
                return
            except Exception as error:
                # Credentials or a record in the bucket: somebody may mend it, and has to be told of it once.
                if str(error) != told:
                    told = str(error)
                    self._tell(error)
                self._stopped.wait(self._pause)
                self._watch = self._new_watch()


def open_follower(
    group: ReplicaGroup, council: Council, index: Index, ref: str, *, every: float, on_error: OnError | None
) -> GroupFollower:
    """Begin to follow, on all ranks. Every rank calls it.

    Raises:
        what `ReplicaGroup.follow` raises.
    """
    with council.call("follow") as call:
        group.check_following()
        ref = call.told(partial(_named, index, ref))
        call.agree()
        exchange = Exchange(council)
        exchange.connect(call)
        follower = GroupFollower(group, council, exchange, index, ref, every=every, on_error=on_error)
        try:
            call.agree()
        except BaseException:
            follower.close()
            raise
    return follower


def _named(index: Index, ref: str) -> str:
    """The ref, if it names a version or the store is away. Raises UnknownRef, AmbiguousRef."""
    with retry.once(), contextlib.suppress(*AWAY):
        resolve(index, ref)
    return ref
