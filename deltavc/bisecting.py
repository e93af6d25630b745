"""Bisecting: which version of a history was the first bad one."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from deltavc.lookup import Lookup
from deltavc.store.transfers import DEFAULT_MEMORY
from deltavc.version import Version

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from deltavc.access import Access
    from deltavc.bisect.bisector import Bisector
    from deltavc.bisect.result import Bisection, Evaluation
    from deltavc.diff import Diff
    from deltavc.replica import Replica

log = logging.getLogger(__name__)


class Bisecting(Lookup):
    """The part of a `Repo` that finds the first bad version."""

    id: str

    def bisect(
        self,
        is_bad: Callable[[Any, Version], bool | None],
        good: str | Sequence[str] = (),
        bad: str = "main",
        *,
        into: Mapping[str, Tensor] | torch.nn.Module | Replica | None = None,
        memory: int = DEFAULT_MEMORY,
    ) -> Bisection:
        """Find the version at which something went bad, and stayed so. Moves weights by deltas from try to try.

        Args:
            is_bad: called with the weights of a version and with what is known of it; returns whether it is bad, None
                if that cannot be told. It must not write to the weights, nor keep them: they are moved on in place.
            good: refs of versions that are good, and so are their ancestors. Without one, all ancestors of `bad` are
                searched.
            bad: a ref that is bad. It is not tried. What refs mean is settled at the start.
            into: live tensors, a module, or a replica, to try versions in; `is_bad` is called with it. It has to be at
                a version, of this or another branch, to which it is put back in the end, also after an exception; only
                if the store is away then it cannot be, and the error says at which version it is left. None for
                tensors in main memory: `is_bad` is called with a mapping of names to tensors.
            memory: bytes that moves may take beyond that.

        Returns:
            The first bad version with what changed in it; or the suspects that could not be tried.

        Raises:
            UnknownRef, AmbiguousRef: of a ref; of `into`, when it is at no version.
            MarksContradict: a good version comes after the bad one. BadMergeBase: a good version forked from what was
                bad already.
            WrongWeights, ForeignWrite: `is_bad` wrote to the weights.
            DatabaseNeeded; StoreError, DatabaseUnavailable.
        """
        from deltavc.bisect.live import Borrowed, Own
        from deltavc.bisect.marks import Marks, Verdict
        from deltavc.bisect.search import Try

        def test(weights: Any, version: Version) -> Verdict:
            found = is_bad(weights, version)
            return "skip" if found is None else "bad" if found else "good"

        goods = [good] if isinstance(good, str) else good
        marks = Marks().adding("good", map(self.resolve, goods)).adding("bad", [self.resolve(bad)])
        bisector = self.bisector(memory=memory)
        evaluations: list[Evaluation] = []
        standing = bisector.standing(marks)
        access = self._access(memory)
        with closing(Own(access) if into is None else Borrowed(access, into)) as bench:
            while isinstance(standing.choice, Try):
                evaluation = bisector.evaluate(bench, standing.choice.version, test)
                log.info("%s is %s", evaluation.version, evaluation.verdict)
                evaluations.append(evaluation)
                marks = marks.adding(evaluation.verdict, [evaluation.version.id])
                standing = bisector.standing(marks)
            bench.prove()
        return bisector.conclusion(standing, evaluations)

    def bisector(self, *, memory: int = DEFAULT_MEMORY) -> Bisector:
        """The parts of `bisect`, for who keeps the marks, as the command line does from one call to the next."""
        from deltavc.bisect.bisector import Bisector

        return Bisector(self._index, self.id, partial(self._access, memory), partial(self.diff, memory=memory))

    @abstractmethod
    def diff(self, a: str, b: str, *, memory: int = DEFAULT_MEMORY) -> Diff: ...

    @abstractmethod
    def _access(self, memory: int) -> Access: ...
