"""Councils: ranks that decide together on every step of a call that all of them make.

    rank 0   yes ──┐                               ┌──> go     the last yes decides for
    rank 1   yes ──┼──> one key of a Store, that ──┼──> go
    rank 2   yes ──┘    is set once and stays      └──> go
    rank 2   no, or silent until the time-out      ──> stop    whoever notices first decides against

A decision is one key that is set by `compare_set` from nothing, so there is one, and everybody who reads it reads the
same. No rank leads: the last to vote writes "go", the first to fail or to run out of patience writes "stop". A step
that was decided for was voted for by every rank, each after it had done what comes before the step.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import NoReturn, Self

from torch.distributed.distributed_c10d import Store

from deltavc.errors import DeltavcError, GroupBroken, PeerFailed
from deltavc.ranks.clerk import Clerk

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided on a step.

    go: whether every rank voted for it. rank: otherwise, who decided against it. failure: the kind of the error that it
    met, and reason, its words. absent: ranks that had not come to this step, when somebody's patience ran out.
    """

    go: bool
    rank: int = 0
    failure: str = ""
    reason: str = ""
    absent: tuple[int, ...] = ()

    @classmethod
    def against(cls, error: BaseException, rank: int) -> Decision:
        """That of a rank that met an error."""
        if isinstance(error, GroupBroken):
            return cls(False, rank, error.kind, error.reason, error.ranks)
        return cls(False, rank, error.kind if isinstance(error, DeltavcError) else type(error).__name__, str(error))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, body: bytes) -> Decision:
        fields = json.loads(body)
        return cls(**{**fields, "absent": tuple(fields["absent"])})

    def error(self, verb: str) -> DeltavcError:
        """Why a call of this name ended, on a rank that did not fail itself."""
        if self.failure == GroupBroken.kind:
            return GroupBroken(verb, self.absent, self.reason)
        return PeerFailed(self.rank, self.failure, self.reason)


class _Ballot:
    """A vote that is on its way, and may be withdrawn until it is cast: a store that did not answer may thaw."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cast = self._withdrawn = False

    def cast(self) -> bool:
        """Whether the vote may be cast, which it then counts as."""
        with self._lock:
            self._cast = not self._withdrawn
            return self._cast

    def withdraw(self) -> bool:
        """Have the vote not cast any more. Returns whether it was, and may count."""
        with self._lock:
            self._withdrawn = True
            return self._cast


class Council:
    """The ranks of a replica group, which make the same calls in the same order.

    timeout: seconds that a rank waits for the others at each step.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: float) -> None:
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self.clerk = Clerk(store)
        """for the thread that carries calls out"""
        self.front = Clerk(store)
        """for those who make them, who so do not wait for that thread"""
        self._numbers = itertools.count()
        self._kept: list[Call] = []

    def call(self, verb: str) -> Call:
        """Begin the next call. Use it in a `with` block: what is raised inside is told to the others.

        Every call takes a number, so that ranks make the same ones again after any of them failed.
        """
        call = Call(self, next(self._numbers), verb)
        if self.rank == 0:
            self._forget()
            self._kept.append(call)
        return call

    def _forget(self) -> None:
        """Delete the keys of calls that every rank has left, as all have voted in a later one."""
        last = max((call.number for call in self._kept if call.passed), default=0)
        for call in self._kept:
            if call.number < last:
                self.front.tell(call.forget)
        self._kept = [call for call in self._kept if call.number >= last]


class Call:
    """One call that every rank makes: a row of steps, each of which is decided on. For one thread at a time.

    number, verb: which call it is. passed: how many steps were decided for. stopped: the decision against one, once
    there is one. made: whether a step that was said to be final was decided for. in_doubt: whether this rank voted for
    such a step, and could not learn what was decided.
    """

    def __init__(self, council: Council, number: int, verb: str) -> None:
        self.number = number
        self.verb = verb
        self.passed = 0
        self.stopped: Decision | None = None
        self.made = False
        self.in_doubt = False
        self._council = council
        self._final = False
        self._lost = False

    @property
    def failed(self) -> bool:
        """Whether the call has ended without all steps, on all ranks, as far as this one can know."""
        return self.stopped is not None or self._lost

    def told(self, find: Callable[[], str]) -> str:
        """What rank 0 finds, which alone looks for it, on every rank.

        Raises:
            PeerFailed: rank 0 did not find it; there, what `find` raises.
            GroupBroken: rank 0 did not tell within the time-out.
        """
        council = self._council
        try:
            if council.rank == 0:
                return self._tell(find)
            word = council.front.ask(self._hear, council.timeout)
        except OSError as error:
            raise GroupBroken(self.verb, (), str(error)) from error
        if not word.go:
            raise word.error(self.verb)
        return word.reason

    def agree(self, *, final: bool = False) -> None:
        """Vote for the step that comes next, and go on once it is decided for.

        Args:
            final: whether there is no way back after it.

        Raises:
            GroupBroken: a rank did not come to this step within the time-out, or the store cannot be reached.
            PeerFailed: another rank failed before it.
        """
        ballot = _Ballot()
        self._decide(partial(self._vote, self.passed, ballot), ballot, final)

    def abstain(self, reason: str) -> NoReturn:
        """Come to the step that comes next without voting for it, to find out who else does not come.

        Raises:
            GroupBroken, PeerFailed
        """
        self._decide(partial(self._attend, self.passed, reason), _Ballot(), final=False)
        raise AssertionError("a step was decided for without this rank's vote")

    def stop(self, error: BaseException) -> None:
        """Decide against the step that comes next, unless it is decided on. Does nothing once the call has ended."""
        if not self.failed and not self.made:
            try:
                self._learn(self._council.clerk.ask(partial(self._against, self.passed, error)))
            except OSError as lost:
                self._lose(error, lost)

    def forget(self, store: Store) -> None:
        """Delete the keys of a call that every rank has left."""
        for what in ("verb", "told", *range(self.passed + 1), *(f"{step}/yes" for step in range(self.passed + 1))):
            store.delete_key(self._key(what))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.stop(error)

    # --- inside ---

    def _key(self, what: object) -> str:
        return f"{self.number}/{what}"

    def _decide(self, question: Callable[[Store], Decision], ballot: _Ballot, final: bool) -> None:
        if self.stopped is None:
            self._final = self.in_doubt = final
            try:
                self._learn(self._council.clerk.ask(question, self._council.timeout))
            except OSError as lost:
                self.in_doubt = ballot.withdraw() and final
                self._learn_late(lost)
        if self.stopped is not None:
            raise self.stopped.error(self.verb)

    def _learn_late(self, lost: OSError) -> None:
        """Ask once more, where not to know costs most."""
        broken = GroupBroken(self.verb, (), str(lost))
        try:
            if not self.in_doubt:
                raise lost
            self._learn(self._council.clerk.ask(partial(self._against, self.passed, broken)))
        except OSError as again:
            self._lose(broken, again)
            raise broken from again

    def _lose(self, error: BaseException, lost: OSError) -> None:
        """Go on without the store. Without this rank nobody can go on to the next step."""
        self._lost = True
        log.warning("%s failed, and the other ranks were not told: %s", self.verb, lost)
        self._council.clerk.tell(partial(self._against, self.passed, error))  # in case that it is frozen, and thaws

    def _learn(self, decision: Decision) -> None:
        if decision.go:
            self.made = self.made or self._final
            self.passed += 1
        else:
            self.stopped = decision
        self._final = self.in_doubt = False

    def _tell(self, find: Callable[[], str]) -> str:
        try:
            found = find()
        except Exception as error:
            word = Decision.against(error, self._council.rank)
            self._council.front.ask(lambda store: store.set(self._key("told"), word.to_json()))
            raise
        word = Decision(True, reason=found)
        self._council.front.ask(lambda store: store.set(self._key("told"), word.to_json()))
        return found

    # --- questions to the store, on a clerk's thread ---

    def _vote(self, step: int, ballot: _Ballot, store: Store) -> Decision:
        """Vote for a step, unless it is decided already, and wait for what is decided."""
        key = self._key(step)
        if step == 0 and (other := store.compare_set(self._key("verb"), "", self.verb).decode()) != self.verb:
            here = f"{self.verb} was called on rank {self._council.rank}"
            return self._against(step, RuntimeError(f"{here} where another rank called {other}"), store)
        # A store that is gone shows it here, where nothing is in doubt yet.
        if store.check([key]):
            return Decision.from_json(store.get(key))
        if not ballot.cast():
            raise RuntimeError("the vote was withdrawn")
        if store.add(f"{key}/yes", 1) == self._council.size:
            return self._decided(step, Decision(True), store)
        return self._attend(step, None, store)

    def _attend(self, step: int, reason: str | None, store: Store) -> Decision:
        """Be there, and wait for what is decided on a step."""
        council, key = self._council, self._key(step)
        store.set(f"at/{council.rank}", f"{self.number} {step}")
        try:
            store.wait([key], timedelta(seconds=council.timeout))
        except RuntimeError:  # not in time; or the store is gone, which the next question shows
            absent = tuple(rank for rank in range(council.size) if not self._has_come(rank, step, store))
            silent = self._silence(absent)
            return self._decided(step, silent if reason is None else replace(silent, reason=reason), store)
        return Decision.from_json(store.get(key))

    def _against(self, step: int, error: BaseException, store: Store) -> Decision:
        return self._decided(step, Decision.against(error, self._council.rank), store)

    def _decided(self, step: int, decision: Decision, store: Store) -> Decision:
        """What is decided on a step: this, unless something was decided before."""
        return Decision.from_json(store.compare_set(self._key(step), "", decision.to_json()))

    def _has_come(self, rank: int, step: int, store: Store) -> bool:
        key = f"at/{rank}"
        return store.check([key]) and tuple(map(int, store.get(key).split())) >= (self.number, step)

    def _hear(self, store: Store) -> Decision:
        key = self._key("told")
        try:
            store.wait([key], timedelta(seconds=self._council.timeout))
        except RuntimeError:  # not in time; or the store is gone, which the next question shows
            if not store.check([key]):
                return self._silence((0,))
        return Decision.from_json(store.get(key))

    def _silence(self, absent: tuple[int, ...]) -> Decision:
        waited = f"no answer within {self._council.timeout:g} seconds"
        return Decision(False, self._council.rank, GroupBroken.kind, waited, absent)
