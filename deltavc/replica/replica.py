"""A replica: live tensors at a known version, that move to others with almost no pause.

    serving ──stage──> serving, and staging beside it ──> staged ──apply──> applying ──> serving
       │                                                                        │
       └───────────── what is live is found to be no version ──> unusable <─────┘ neither done nor undone

Staging reads live tensors and writes none. Applying compares the live lanes that change with what they are
expected to be, writes all of them or none, and is the only time that nobody may read. Both happen on the
replica's own thread, one after the other, so that an interrupt ends a caller's waiting and never a swap.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from deltavc.errors import NothingStaged, ReplicaUnusable, StagingTooSmall
from deltavc.lineage.resolve import resolve
from deltavc.replica.applied import Applied, Staged
from deltavc.replica.following import ReplicaFollower, When
from deltavc.replica.live import LiveVersion


class Replica(LiveVersion):
    """Live tensors at a version. Make one with `repo.replica`. Safe to call from several threads."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._follower: ReplicaFollower | None = None
        self._moving = threading.Lock()

    # --- moving ---

    def stage(self, ref: str = "main") -> Staged:
        """Begin to prepare a move, beside serving. Live tensors are read, and not written.

        If a version is staged already, or being staged, staging goes on from there when that is less work.

        Raises:
            UnknownRef, AmbiguousRef: of the ref.
            ReplicaUnusable, ReplicaClosed
            and, from the `Staged` that is returned: StagingTooSmall, StageCancelled; LayoutMismatch, when the version
            has other tensors; WrongWeights, CorruptObject, MissingObject, NoPath, StoreError. Then nothing is staged.
        """
        self.check_outside("stage", reading=False)
        self.check_usable()
        version = resolve(self._access.index, ref)
        staged = Staged(version)
        self._begin(staged, partial(self._stage, staged))
        return staged

    def apply(self) -> Applied:
        """Move to the version that is staged: the pause.

        Waits until staging is done and nobody is inside `reading`. An interrupt is raised when the move is over,
        done or not; `version` tells.

        Raises:
            NothingStaged, and what staging failed with.
            ForeignWrite: live lanes are not what the version has there. Nothing was written, and the replica is
                unusable until `verify` finds it at its version again, or it is written anew.
            HookFailed: on_apply raised; the old values went back, and it ran again for the old version.
            ReplicaUnusable, ReplicaClosed
        """
        self.check_outside("apply")
        self.check_usable()
        staged = self._staged
        if staged is None:
            raise NothingStaged(self.version)
        staged.wait()
        return self._worker.run(self._apply)

    def move(self, ref: str, *, allow_long_pause: bool = False) -> Applied:
        """Stage and apply. Of several threads, one moves after another.

        Args:
            allow_long_pause: when the change does not fit into the staging memory, or the replica is unusable, write
                to the live tensors edge by edge while nobody may read. Interrupted, the replica is unusable.

        Raises:
            what `stage` and `apply` raise.
        """
        self.check_outside("move")
        with self._moving:
            if self._broken is None:
                staged = self.stage(ref)
                try:
                    staged.wait()
                except StagingTooSmall:
                    if not allow_long_pause:
                        raise
                else:
                    return self.apply()
            elif not allow_long_pause:
                raise ReplicaUnusable(self._broken)
            return self._worker.run(partial(self._rewrite, resolve(self._access.index, ref)))

    def fits(self, ref: str) -> bool:
        """Whether the change to a version is sure to fit into the staging memory. Many do that are not sure to.

        Where nobody is served, so that a long pause does no harm, this saves staging in vain.

        Raises:
            UnknownRef, AmbiguousRef, NoPath
        """
        way = self._plan(resolve(self._access.index, ref), [self.version])
        return self._staging.enough(way.changes) <= self._staging.nbytes

    def rewrite(self, ref: str) -> Applied:
        """Move by a long pause, without trying to stage: what `move` does when it is allowed to and has to.

        Raises:
            what `move` raises. Once writing has begun, the replica is unusable then.
        """
        self.check_outside("rewrite")
        with self._moving:
            return self._worker.run(partial(self._rewrite, resolve(self._access.index, ref)))

    def verify(self) -> None:
        """Read all live tensors and compare their fingerprints with those of the version.

        A replica that was found to hold something else, and holds its version again, is usable again.

        Raises:
            WrongWeights: the tensors named hold something else. The replica is unusable.
            ReplicaClosed
        """
        self.check_outside("verify", reading=False)
        self._worker.run(self._verify)

    def follow(
        self,
        ref: str = "main",
        *,
        every: float = 1.0,
        apply: When = "auto",
        on_error: Callable[[Exception], object] | None = None,
    ) -> ReplicaFollower:
        """Stay at the newest version of a ref: stage it whenever the ref has moved, forwards or back, and apply it.

        Outages of the store and the database are waited out. A version that cannot be reached (a change larger than the
        staging memory, other tensors, a damaged object) is passed over. Moves of one's own do no harm meanwhile.

        Args:
            every: seconds from one look at the ref to the next. A look at a branch that has not moved is one small
                request.
            apply: "auto", as soon as it is staged and nobody is inside `reading`; "manual", when a serving loop calls
                `safe_point`.
            on_error: called with what went wrong, on the thread on which it did, when a version is passed over and when
                following ends.

        Raises:
            UnknownRef, AmbiguousRef: of the ref.
            RuntimeError: it is following already: close that first.
            ReplicaUnusable
        """
        if self._follower is not None and self._follower.running:
            raise RuntimeError(f"the replica is following {self._follower.ref!r} already: close that first")
        index, moving = self._access.index, self._moving
        self._follower = ReplicaFollower(self, index, ref, moving, every=every, apply=apply, on_error=on_error)
        return self._follower

    def close(self) -> None:
        """Let go of the live tensors and the staging memory. What is being staged is cancelled, and a pause that has
        begun is waited for, so do not call it inside `reading`. May be called twice."""
        self.check_outside("close", reading=False)
        if self._follower is not None:
            self._follower.close()
        super().close()
