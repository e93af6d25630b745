"""Exchanges: sums and messages over the ranks of a group, by gloo, on connections that nothing else uses.

They are made when they are first needed, and again after something went wrong, since gloo gives a group up at the
first failure. What is decided never travels here: an exchange may end well on some ranks and not on others.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo, Store

from deltavc.errors import GroupBroken
from deltavc.ranks.council import Call, Council


class Exchange:
    """Connections between the ranks of a council. For one thread; every rank makes the same calls."""

    def __init__(self, council: Council) -> None:
        self._council = council
        self._group: Any = None

    @property
    def rank(self) -> int:
        """Which of the council's ranks this is."""
        return self._council.rank

    def sum(self, values: Tensor, call: Call) -> Tensor:
        """Add up what every rank passes, element by element, modulo 2**64.

        Args:
            values: int64, shape (n,), on the CPU, of the same length everywhere. It is overwritten.
            call: what this is part of.

        Raises:
            GroupBroken, PeerFailed: some rank did not take part in time, or a connection broke.
        """
        try:
            return self._sum(values, call)
        except OSError as error:
            call.abstain(str(error))

    def gather(self, body: bytes, call: Call) -> list[bytes]:
        """What every rank passes, by rank. Raises what `sum` raises."""
        try:
            return self._gather(body, call)
        except OSError as error:
            call.abstain(str(error))

    def connect(self, call: Call) -> None:
        """Make the connections now, for `word`. Raises what `sum` raises."""
        try:
            self._connected(call)
        except OSError as error:
            call.abstain(str(error))

    def word(self, number: int, verb: str) -> int:
        """A number that rank 0 says, on every rank. Only rank 0 is waited for, and no step of a call decided on.

        Args:
            verb: what this is part of, for the error.

        Raises:
            GroupBroken: rank 0 did not say it in time, or a connection broke; others may have heard it.
        """
        said = torch.tensor([number])
        try:
            if self._group is None:
                raise OSError("the connections between the ranks were given up")
            try:
                self._group.broadcast(said, 0, self._timeout).wait(self._timeout)
            except RuntimeError as error:
                raise self._broken(error) from error
        except OSError as lost:
            raise GroupBroken(verb, (), str(lost)) from lost
        return int(said)

    def drop(self) -> None:
        """Give up the connections; the next exchange makes new ones."""
        self._group = None

    def _sum(self, values: Tensor, call: Call) -> Tensor:
        group = self._connected(call)
        try:
            group.allreduce([values]).wait(self._timeout)
        except RuntimeError as error:
            raise self._broken(error) from error
        return values

    def _gather(self, body: bytes, call: Call) -> list[bytes]:
        size = self._council.size
        mine = torch.frombuffer(bytearray(body or b"\0"), dtype=torch.uint8)
        lengths = torch.zeros(size, dtype=torch.int64)
        lengths[self._council.rank] = len(body)
        lengths = self._sum(lengths, call)
        longest = max(1, int(lengths.max()))
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(mine)] = mine
        bodies = [torch.empty_like(padded) for _ in range(size)]
        try:
            self._connected(call).allgather([bodies], [padded]).wait(self._timeout)
        except RuntimeError as error:
            raise self._broken(error) from error
        return [_cut(found, length) for found, length in zip(bodies, lengths.tolist(), strict=True)]

    @property
    def _timeout(self) -> timedelta:
        return timedelta(seconds=self._council.timeout)

    def _connected(self, call: Call) -> Any:
        if self._group is None:
            council, timeout = self._council, self._timeout

            def connect(store: Store) -> ProcessGroupGloo:
                return ProcessGroupGloo(PrefixStore(f"gloo/{call.number}", store), council.rank, council.size, timeout)

            self._group = council.clerk.ask(connect, council.timeout)
        return self._group

    def _broken(self, error: RuntimeError) -> OSError:
        self.drop()
        return OSError(f"an exchange between the ranks failed: {str(error).splitlines()[0]}")


def _cut(found: Tensor, length: int) -> bytes:
    return bytes(found[:length].numpy())


def signed(values: Sequence[int]) -> Tensor:
    """Integers modulo 2**64 as int64, shape (n,)."""
    return torch.tensor([value - (1 << 64) if value >> 63 else value for value in values], dtype=torch.int64)


def unsigned(values: Tensor) -> list[int]:
    """What `signed` was given."""
    return [value % (1 << 64) for value in values.tolist()]
