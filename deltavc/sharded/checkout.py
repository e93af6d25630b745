"""Checkout into any arrangement: each rank reads the frames that meet what it holds, and no others.

    frame   rows 0-7 of 16           this rank   columns 4-7, all rows
            ────────────────                     checked whole, decoded, cut, written in place

A tensor that a rank holds whole is proven by its fingerprint. Of one that it holds in part it knows a share, which
proves nothing by itself: the shares of all ranks are added up, 8 bytes a tensor. Without a group, parts rest on the
checksums of the frames they came from.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from deltavc import walk
from deltavc.access import Access
from deltavc.bindings import bind
from deltavc.bound import Bound
from deltavc.errors import WrongWeights
from deltavc.lineage.plan import plan
from deltavc.lineage.records import VersionRecord
from deltavc.lineage.replan import replanning
from deltavc.lineage.resolve import resolve
from deltavc.live import named_tensors
from deltavc.parts import localized
from deltavc.proof import by_name, shares
from deltavc.ranks.council import Call, Council
from deltavc.ranks.exchange import Exchange
from deltavc.ranks.holdings import Holdings, description
from deltavc.reader import Checkout, proven_fingerprints, selected
from deltavc.rewriting import rewrite
from deltavc.routing import Router
from deltavc.timings import Timings

Into = Mapping[str, Any] | torch.nn.Module
"""What a rank holds: names to tensors, DTensors and `deltavc.Shard`s, or a module that has such."""


def checkout(access: Access, version: str, into: Into, patterns: Sequence[str] | None) -> Checkout:
    """Write a version's weights into what one process holds of them.

    Args:
        patterns: names, or patterns of names, of those to write; None for all that it holds.

    Raises:
        LayoutMismatch, BadState: they do not fit the version; nothing was written.
        CorruptObject, MissingObject, NoPath: something on the way is damaged or gone.
        WrongWeights: everything was read, and the fingerprint of a tensor that is held whole still differs.
    """
    record = access.index.version(version).record
    timings = Timings("fetch", "decode", "apply", "verify")
    bound, _ = _bound(access, record, into, patterns)
    with _told():
        expected = _write(access, record, bound, timings)
        with timings.stage("verify"):
            found = by_name(bound, shares(bound))
            _check(version, (name for name in bound.whole if found[name] != expected[bound.stored(name)]))
    return _result(version, into, bound, timings)


def checkout_together(
    access: Access, council: Council, ref: str, into: Into, patterns: Sequence[str] | None
) -> Checkout:
    """Write a version's weights into what all ranks hold of them, and prove that together it is the version.

    Every rank calls it, with the same patterns. Rank 0 resolves the ref.

    Raises:
        what `checkout` raises, the last also for parts.
        LayoutMismatch: also where no rank holds a tensor, or some lanes of one; nothing was written.
        UnknownRef, AmbiguousRef: on rank 0, of the ref.
        PeerFailed, GroupBroken
    """
    exchange = Exchange(council)
    with council.call("checkout") as call:
        version = resolve(access.index, call.told(partial(resolve, access.index, ref)))
        return Together(access, council, exchange, call, version, into, patterns).write()


class Together:
    """What all ranks hold of a version that they are about to write: bound to it on every rank, and complete.

    Raises:
        LayoutMismatch, BadState: it is not; nothing was written.
        PeerFailed, GroupBroken
    """

    def __init__(
        self,
        access: Access,
        council: Council,
        exchange: Exchange,
        call: Call,
        version: str,
        into: Into,
        patterns: Sequence[str] | None = None,
    ) -> None:
        self._access = access
        self._exchange = exchange
        self._call = call
        self._into = into
        self._record = access.index.version(version).record
        self._bound, unwanted = _bound(access, self._record, into, patterns)
        call.agree()
        told = exchange.gather(description(self._bound, unwanted), call)
        self._holdings = Holdings(self._bound.layout, council.rank, told)
        call.agree()

    def write(self) -> Checkout:
        """Write the version, and prove it. Raises what `checkout_together` raises."""
        call, holdings, version = self._call, self._holdings, self._record.id
        timings = Timings("fetch", "decode", "apply", "verify", "exchange")
        with _told():
            expected = _write(self._access, self._record, self._bound, timings)
            with timings.stage("verify"):
                held = shares(self._bound)
            call.agree()
            with timings.stage("exchange"):
                totals = holdings.totals(self._exchange.sum(holdings.terms(held), call))
            _check(version, (name for name, value in totals.items() if value != expected[name]))
            call.agree()
        return _result(version, self._into, self._bound, timings)


def _bound(
    access: Access, record: VersionRecord, into: Into, patterns: Sequence[str] | None
) -> tuple[Bound, Sequence[str]]:
    """What is to be written, bound to the version; and the names of the version that need not be held."""
    layout = access.objects.layout(record.layout, record.id)
    live, parts = localized(into)
    wanted = set(selected(layout, patterns))
    if patterns is not None:
        live = {name: tensor for name, tensor in live.items() if name in wanted}
        parts = {name: bound for name, bound in parts.items() if name in wanted}
    return bind(live, layout, parts, complete=False), [name for name in layout.place if name not in wanted]


def _write(access: Access, record: VersionRecord, bound: Bound, timings: Timings) -> Mapping[str, int]:
    """Walk to the version on live memory. Returns the version's fingerprints by stored name."""
    router = Router(bound)

    def attempt() -> Mapping[str, int]:
        way = plan(access.index, record.id, forward_only=True)
        expected = proven_fingerprints(walk.legs(way, access.objects), record)
        rewrite(bound, router, walk.legs(way, access.objects, router.names), access.objects, timings)
        return expected

    return replanning(access.index, attempt)


def _check(version: str, wrong: Iterable[str]) -> None:
    if names := tuple(sorted(wrong)):
        raise WrongWeights(version, names)


def _result(version: str, into: Into, bound: Bound, timings: Timings) -> Checkout:
    named = named_tensors(into)
    return Checkout(version, {name: named[name] for name in named if name in bound.layout.place}, timings.as_dict())


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Tell who meets an error that the live tensors are no version now."""
    try:
        yield
    except BaseException as error:
        error.add_note("What was given as into= may be partly written, and holds no version; check out again.")
        raise
