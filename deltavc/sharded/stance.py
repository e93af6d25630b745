"""Stances: where one rank of a group stands between commits, and how it gets to where rank 0 is.

tip       the version that the next commit is a child of; rank 0's counts
base      the lanes of the boxes that this rank writes, at the tip, or lost, or yet to be read from the store
doubtful  a commit that the base has gone to, and that this rank does not know to be made
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace

from deltavc import fingerprints, packing
from deltavc.access import Access
from deltavc.base import Base, Keep, Room
from deltavc.draft import Request
from deltavc.errors import CommitInDoubt, NoPath, PeerFailed, WrongWeights
from deltavc.files import Files
from deltavc.lineage.names import BRANCHES
from deltavc.lineage.records import FileRef, RefEntry
from deltavc.lineage.standing import stands, take_back
from deltavc.moving import trail_to
from deltavc.packing import Packs
from deltavc.sharded import outcome
from deltavc.sharded.arrangement import Arrangement
from deltavc.sharded.boxes import HeldBoxes
from deltavc.sharded.commit import Lead, Part
from deltavc.sharded.pieces import Pieces
from deltavc.sharded.seeding import seed
from deltavc.sharded.sums import copies_of
from deltavc.sharded.words import Announced
from deltavc.timings import Timings

log = logging.getLogger(__name__)


class Stance:
    """One rank's, on a branch. lead: on rank 0."""

    def __init__(
        self,
        access: Access,
        branch: str,
        rank: int,
        tip: str | None,
        lead: Lead | None,
        files: Mapping[str, FileRef],
        keep: Keep,
    ) -> None:
        self.tip = tip
        self.lead = lead
        self._access = access
        self.branch = branch
        self._rank = rank
        self._files = files
        self._room = Room(keep)
        self.base = Base(HeldBoxes(self._room.allocate, {}))
        self._doubtful: Part | None = None
        self._doubtful_move: RefEntry | None = None

    # --- before a commit ---

    def settle(self) -> None:
        """Find out, on rank 0, how what is in doubt ended. Raises CommitInDoubt: it still cannot be known."""
        entry = self._doubtful_move
        if entry is not None and entry.new is not None:
            landed = self._access.refs.settle(entry)
            self._doubtful_move = None
            if landed:
                self._noted(entry)
                self.arrive(entry.new, entry)
        part = self._doubtful
        if part is None or part.announced is None:
            return
        if outcome.settle(self._access, part.announced):
            log.warning("commit %s to %s, in doubt before, has landed", part.announced.record.id, self.branch)
            self.committed(part, part.announced)
        else:
            self.failed(part)

    def go_to(self, tip: str | None) -> None:
        """Go to where rank 0 says that the branch is."""
        part = self._doubtful
        if part is not None and part.announced is not None:
            if part.announced.record.id == tip:
                self.committed(part, part.announced)
            else:
                self.failed(part)
        if tip != self.tip:
            log.warning("rank %d was at %s, and goes to %s", self._rank, self.tip, tip)
            self.tip = tip

    def hold(self, pieces: Pieces, arrangement: Arrangement) -> None:
        """Have the base hold the boxes that this rank writes, as they are at the tip.

        Raises:
            CorruptObject, MissingObject, NoPath: they cannot be read.
        """
        base, layout, owned = self.base, arrangement.layout, arrangement.owned
        self._room.devices = {name: tensor.device for name, tensor in pieces.tensors.items()}
        before = base.layout
        if before is not None:
            carried = fingerprints.carried(before, layout)
            specs = (before.tensors[before.place[name]] for name in carried)
            if any(tuple(base.lanes.boxes(spec)) != tuple(owned.get(spec.name, ())) for spec in specs):
                base.clear()
        base.lanes = base.lanes.owning(owned)
        if self.tip is None:
            if base.lost or base.version is not None:
                base.clear()
                base.lost = False
        elif base.lost or base.version != self.tip:
            seed(self._access, base, self.tip, layout)

    def take(self, pieces: Pieces, arrangement: Arrangement, request: Request) -> Part:
        """Read this rank's part of a state into the base, and begin to upload what changed.

        After an exception the base is where it was (or lost, and says so).
        """
        access, layout, base = self._access, arrangement.layout, self.base
        mark = access.freshness.mark()
        timings = Timings("read", "diff", "verify", "encode", "upload", "exchange", "index")
        undo = base.begin(request.memory // 2)
        packs = Packs(layout, access.store, access.transfers, request.memory, timings)
        files = Files(access.store, access.transfers, timings)
        try:
            files.take(
                {name: content for name, content in request.files.items() if arrangement.files[name] == self._rank},
                self._files,
            )
            found = packing.read(
                pieces, layout, base, undo, packs, codec=request.codec, memory=request.memory, timings=timings
            )
            with timings.stage("verify"):
                copies = copies_of(pieces, arrangement, self._rank, found.fingerprints, request.memory)
        except BaseException as error:
            packs.abandon()
            files.abandon()
            base.take_back(undo)
            base.lost = base.lost or isinstance(error, WrongWeights)
            raise
        return Part(request, arrangement, undo, found, copies, [packs], files, mark, timings)

    # --- after it ---

    def committed(self, part: Part, announced: Announced) -> None:
        """The part was committed."""
        self._doubtful = None
        self.tip = self.base.version = announced.record.id
        self._files = announced.record.files
        layout = part.arrangement.layout
        self._access.objects.add_layout(layout)
        if part.lead is not None:
            self.lead = part.lead
            with part.timings.stage("index"):
                entry = announced.entry
                self._access.index.note([entry], versions=[announced.record], layouts=[layout], edges=part.edges)
            with contextlib.suppress(RuntimeError):  # the interpreter is ending, and starts no more threads
                self._access.transfers.submit(self._access.refs.write_hint, entry)

    def failed(self, part: Part, error: BaseException | None = None) -> None:
        """The part was not committed, or nobody knows."""
        if isinstance(error, CommitInDoubt):
            self._doubtful = part
            return
        self._doubtful = None
        part.abandon()
        self.base.take_back(part.undo)
        if isinstance(error, WrongWeights) or (isinstance(error, PeerFailed) and error.failure == WrongWeights.kind):
            self.base.lost = True
        if self.lead is not None:
            self._look(self.lead)

    # --- elsewhere ---

    def roll_back(self, target: str, reason: str) -> None:
        """Move the branch to a version, on rank 0, and go there.

        Raises:
            BranchMoved: somebody else moved it.
            NoPath: the version's weights were dropped at the same time, and the branch is where it was.
            CommitInDoubt: the store does not say; `settle` finds out.
        """
        access, lead = self._access, self.lead
        assert lead is not None  # rank 0 has it
        entry = access.refs.next_entry(BRANCHES + self.branch, lead.entry, target, access.author, reason)
        try:
            access.refs.create(entry)
        except CommitInDoubt:
            self._doubtful_move = entry
            raise
        if not stands(access.index, target):
            why = f"the weights of {target} were dropped meanwhile"
            self.lead = replace(lead, entry=take_back(access.index, access.refs, entry, access.author, why))
            raise NoPath(target)
        self._noted(entry)
        self.arrive(target, entry)

    def newest(self) -> RefEntry | None:
        """The branch's last entry, as rank 0 finds it."""
        known = None if self.lead is None else self.lead.entry
        return self._access.refs.newest(BRANCHES + self.branch, known)

    def arrive(self, target: str, entry: RefEntry | None) -> None:
        """Go on from a version. The base follows with the next commit, by the cheapest way from where it is.

        Args:
            entry: the branch's last one, on rank 0.
        """
        self.tip = target
        if self.lead is not None:
            self.lead = Lead(entry, trail_to(self._access, target), None)
            self._files = self._access.index.version(target).record.files

    def close(self) -> None:
        """Let go of the base."""
        self.base.clear()
        self._room.close()

    def _noted(self, entry: RefEntry) -> None:
        self._access.index.note([entry])
        self._access.refs.write_hint(entry)

    def _look(self, lead: Lead) -> None:
        """See whether an entry of ours was taken back: then the branch is where it was, and has gone on by two."""
        with contextlib.suppress(Exception):
            entry = self._access.refs.newest(BRANCHES + self.branch, lead.entry)
            if entry is not None and entry.new == self.tip:
                self.lead = replace(lead, entry=entry)
