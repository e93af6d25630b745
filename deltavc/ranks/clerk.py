"""Clerks: who asks a group's store on behalf of a thread that must not wait for ever.

A store is served by some process. When that is frozen, an answer may never come, and no question to a store ends by
itself then; so a clerk asks on a thread of its own, and whoever wants to know waits for as long as he said.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from torch.distributed.distributed_c10d import Store

from deltavc.ranks.worker import Worker

T = TypeVar("T")

ANSWER_SECONDS = 2.0
"""How long a store may take to answer what it need not wait for. On one machine it takes 40 microseconds."""


class Clerk:
    """Asks a store one question after another."""

    def __init__(self, store: Store) -> None:
        # A store takes one question at a time; before torch 2.8 it could not be cloned, and others wait meanwhile.
        self._store: Store = store.clone() if hasattr(store, "clone") else store
        self._worker = Worker("deltavc-clerk")

    def ask(self, question: Callable[[Store], T], timeout: float = 0.0) -> T:
        """Have a question answered.

        Args:
            timeout: seconds that the question itself may wait.

        Raises:
            OSError: the store did not answer in time, or cannot be reached.
        """
        future = self._worker.submit(partial(question, self._store))
        try:
            return future.result(timeout + ANSWER_SECONDS)
        except TimeoutError:
            raise OSError("the store of the group does not answer") from None
        except RuntimeError as error:
            raise OSError(f"the store of the group cannot be reached: {str(error).splitlines()[0]}") from error

    def tell(self, word: Callable[[Store], object]) -> None:
        """Have something done some time. Nobody waits for it, or minds if it is not."""
        self._worker.submit(partial(word, self._store))
