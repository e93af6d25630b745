"""One commit of many ranks, from what each has read to what the ref says.

    read ─> (all have) ─> sums, shares ─> rank 0: edge, version ─> announced ─> (all is uploaded) ─> ref entry
            └── any rank that fails stops all: nothing was committed ──────────────────────────────┘└─ see outcome

Everything up to the last vote can be given up by anybody. After it the commit is made, by whichever rank lives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor

from deltavc import edges, fingerprints, packing
from deltavc.access import Access
from deltavc.base import Base, Undo
from deltavc.draft import Request, record_of, upload
from deltavc.errors import BranchMoved, CommitInDoubt, DeltavcError, WrongWeights
from deltavc.files import Files
from deltavc.freshness import Mark
from deltavc.lineage.names import BRANCHES
from deltavc.lineage.records import EdgeRecord, RefEntry
from deltavc.packing import Packs, Read
from deltavc.proof import expected_fingerprints
from deltavc.ranks.council import Call, Council
from deltavc.ranks.exchange import Exchange
from deltavc.sharded import outcome
from deltavc.sharded.arrangement import Arrangement, Copied
from deltavc.sharded.boxes import HeldBoxes
from deltavc.sharded.sums import Rows, Sums, difference, label
from deltavc.sharded.words import Announced, Share
from deltavc.snapshots import Trail
from deltavc.timings import Timings


@dataclass(frozen=True, slots=True)
class Lead:
    """What rank 0 knows of the branch beyond what all ranks do.

    entry: its last ref entry. trail: the way to its version from the last snapshot. values: that version's fingerprints
    by name; None if they have to be looked up.
    """

    entry: RefEntry | None
    trail: Trail
    values: Mapping[str, int] | None


@dataclass
class Part:
    """What this rank has read for a commit, and what of it is on its way. The base is at the new state."""

    request: Request
    arrangement: Arrangement
    undo: Undo[HeldBoxes]
    found: Read
    copies: Mapping[Copied, int]
    packs: list[Packs]
    files: Files
    mark: Mark
    timings: Timings
    uploads: list[Future[None]] = field(default_factory=list)
    announced: Announced | None = None
    edges: tuple[EdgeRecord, ...] = ()
    lead: Lead | None = None
    """on rank 0: what was made, and what it knows once that is committed"""

    def wait(self) -> None:
        """Wait until all that this rank uploads is in the store; raises what an upload raised."""
        for packs in self.packs:
            packs.wait()
        self.files.wait()
        for sent in self.uploads:
            sent.result()

    def abandon(self) -> None:
        """Stop what has not begun to be uploaded."""
        for packs in self.packs:
            packs.abandon()
        self.files.abandon()
        for sent in self.uploads:
            sent.cancel()


class Commit:
    """A commit on its way. On every rank, `run` is called once, on any thread."""

    def __init__(
        self,
        access: Access,
        branch: str,
        council: Council,
        exchange: Exchange,
        call: Call,
        base: Base[HeldBoxes],
        part: Part,
        lead: Lead | None,
    ) -> None:
        self._access = access
        self._branch = branch
        self._council = council
        self._exchange = exchange
        self._call = call
        self._base = base
        self._lead = lead
        self._layout = part.arrangement.layout
        self.part = part

    def run(self) -> Announced:
        """Make the commit.

        Raises:
            CommitInDoubt: this rank cannot learn how it ended. After any other error it was not made.
            BranchMoved, CopiesDiffer, WrongWeights, StoreError
            PeerFailed, GroupBroken: another rank failed, or did not answer.
        """
        call = self._call
        try:
            with call:
                announced = self._prepare()
                call.agree(final=True)
        except BaseException as error:
            self._exchange.drop()  # on all ranks, as the call fails on all
            if not call.in_doubt or not isinstance(error, DeltavcError):
                self.part.abandon()
                raise
            announced = self._looked(error)
        else:
            if self._council.rank == 0:
                outcome.lead(self._access, self._council, call, announced)
            else:
                outcome.follow(self._access, self._council, call, announced)
        return announced

    def _looked(self, error: DeltavcError) -> Announced:
        announced = self.part.announced
        assert announced is not None  # it is told before the vote that can be in doubt
        if not outcome.settle(self._access, announced):
            raise CommitInDoubt(self._branch, announced.record.id, str(error)) from error
        return announced

    def _prepare(self) -> Announced:
        part, call = self.part, self._call
        call.agree()
        sums = self._summed()
        share = self._shared(part.packs[0], part.found.changed_lanes)
        delta = part.undo.before.version is not None
        whole = self._snapshot(sums) if delta and part.request.snapshot else None
        part.announced = Announced.read(call.told(partial(self._announce, sums, share, whole)))
        part.wait()
        return part.announced

    def _summed(self) -> Sums:
        part, rank = self.part, self._council.rank
        rows = Rows(part.arrangement)
        row = rows.of(
            rank, self._base.fingerprints, part.undo.before.fingerprints, frozenset(part.found.changed), part.copies
        )
        sums = rows.read(self._sum(row))
        if sums.differing:
            name = sums.differing[0]
            mine = {label(copied): value for copied, value in part.copies.items() if copied.name == name}
            told = [json.loads(body) for body in self._gather(json.dumps(mine).encode())]
            raise difference(name, told, part.arrangement)
        return sums

    def _shared(self, packs: Packs, changed_lanes: int) -> Share:
        """What all ranks add, from what this one does."""
        part = self.part
        first = packs is part.packs[0]
        nbytes = packs.nbytes + (part.files.nbytes if first else 0)
        share = Share(packs.packed, changed_lanes, nbytes, part.files.refs if first else {}, part.mark)
        return Share.added([Share.read(body) for body in self._gather(share.to_bytes())])

    def _snapshot(self, sums: Sums) -> tuple[Share, frozenset[str]]:
        """Pack this rank's part of a snapshot. Returns what all ranks packed, and which tensors rank 0 uses again."""
        part, layout = self.part, self._layout
        reused = self._reused(sums) if self._lead is not None else frozenset()
        self._call.agree()
        kept = frozenset(json.loads(self._gather(json.dumps(sorted(reused)).encode())[0]))
        packs = Packs(layout, self._access.store, self._access.transfers, part.request.memory, part.timings)
        part.packs.append(packs)
        wanted = layout.stored_names - kept
        packing.snapshot(self._base, wanted, packs, part.request.codec, part.request.memory, part.timings)
        self._call.agree()
        return self._shared(packs, 0), kept

    def _reused(self, sums: Sums) -> frozenset[str]:
        assert self._lead is not None  # rank 0 has it
        trail = self._lead.trail
        reusable = trail.reusable(self._layout, sums.after) - sums.changed
        return edges.standing(self._access.objects, trail, reusable)

    # --- on rank 0 ---

    def _announce(self, sums: Sums, share: Share, whole: tuple[Share, frozenset[str]] | None) -> str:
        """Make the records, begin to upload them, and say so."""
        part, layout, lead = self.part, self._layout, self._lead
        assert lead is not None  # rank 0 has it
        before = part.undo.before
        head = None if lead.entry is None else lead.entry.new
        if head is not None and head != before.version:
            raise BranchMoved(self._branch, before.version, head)
        self._check_base(sums, lead)
        record = record_of(part.request, layout, sums.after, share.files)
        found = Read(share.changed_lanes, set(sums.changed))
        made = [edges.delta(before, layout, sums.after, record.id, share.packed, found)]
        trail = lead.trail.after(made[0], layout)
        if whole is not None:
            added, reused = whole
            made.append(
                edges.whole(self._access.objects, layout, sums.after, record.id, added.packed, lead.trail, reused)
            )
            trail = Trail(snapshot=made[1])
        entry = self._access.refs.next_entry(
            BRANCHES + self._branch, lead.entry, record.id, self._access.author, "commit"
        )
        new_layout = before.layout is None or before.layout.id != layout.id
        part.uploads = upload(self._access, record, layout, made, part.timings, new_layout)
        part.edges, part.lead = tuple(made), Lead(entry, trail, sums.after)
        nbytes = share.nbytes + (0 if whole is None else whole[0].nbytes)
        return Announced.of(record, made, entry, replace(share, nbytes=nbytes)).to_json()

    def _check_base(self, sums: Sums, lead: Lead) -> None:
        """Show that what the ranks took their changes from is together the version that it should be."""
        before = self.part.undo.before
        if before.version is None or before.layout is None:
            return
        values = lead.values
        if values is None:
            values = expected_fingerprints(self._access, self._access.index.version(before.version).record)
        carried = fingerprints.carried(before.layout, self._layout)
        wrong = [name for name in carried if sums.before[name] != values[name]]
        if wrong:
            raise WrongWeights(before.version, tuple(sorted(wrong)))

    # --- between ranks ---

    def _sum(self, row: Tensor) -> Tensor:
        with self.part.timings.stage("exchange"):
            return self._exchange.sum(row, self._call)

    def _gather(self, body: bytes) -> list[bytes]:
        with self.part.timings.stage("exchange"):
            return self._exchange.gather(body, self._call)
