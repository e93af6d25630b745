"""Roll calls: what all ranks hold, learned again only when some rank holds something else.

facts, with the hash of what each holds ──> as before ──> the arrangement that is known
                                        └──> not as before: descriptions ──> a new one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from blake3 import blake3

from deltavc.errors import BadMetadata
from deltavc.ranks.council import Call
from deltavc.ranks.exchange import Exchange
from deltavc.sharded.arrangement import Arrangement
from deltavc.sharded.pieces import Told
from deltavc.sharded.words import Facts


class RollCall:
    """One rank's part in them."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._known: Arrangement | None = None
        self._arranged = ""

    def call(self, call: Call, description: bytes, facts: Facts) -> tuple[Arrangement, Facts]:
        """Tell the others what this rank holds, and where it is, and learn the same of them.

        Returns:
            How all that they hold is arranged, and rank 0's facts.

        Raises:
            BadState: it makes no state. BadMetadata: ranks are at different steps. On all ranks.
            PeerFailed, GroupBroken
        """
        mine = replace(facts, held=blake3(description).hexdigest(), arranged=self._arranged)
        told = [Facts.read(body) for body in self._exchange.gather(mine.to_bytes(), call)]
        _check_steps([facts.step for facts in told])
        arranged = blake3("".join(facts.held for facts in told).encode()).hexdigest()
        if self._known is None or any(facts.arranged != arranged for facts in told):
            bodies = self._exchange.gather(description, call)
            self._known, self._arranged = Arrangement.of(Told.read(bodies), self._exchange.rank), arranged
        return self._known, told[0]


def _check_steps(steps: Sequence[int | None]) -> None:
    """Raise BadMetadata unless all ranks that name a step name the same: others would commit a mixture of states."""
    named = {step: rank for rank, step in reversed([*enumerate(steps)]) if step is not None}
    if len(named) > 1:
        (one, here), (other, there) = sorted(named.items(), key=lambda item: item[1])[:2]
        raise BadMetadata("step", f"rank {here} commits step {one}, and rank {there} step {other}")
