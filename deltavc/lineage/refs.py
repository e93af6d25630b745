"""Refs in the bucket: a ref is a row of numbered entries, and creating the next one moves it.

    refs/<hash>/000000000001.json   None -> a
    refs/<hash>/000000000002.json      a -> b       the last entry says where the ref is
    refs/<hash>/last                   2            a hint; never trusted

Two writers that saw entry 2 both try to create entry 3; the store lets one of them. A writer whose answer
was lost reads entry 3 back and knows its own by the write id. Entries are never deleted, so they have no
gaps, and the last one can be found by doubling steps.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from deltavc.errors import (
    BadMetadata,
    BranchMoved,
    CommitInDoubt,
    CorruptObject,
    MissingObject,
    ObjectMissing,
    RefExists,
    StoreError,
    StoreUnavailable,
)
from deltavc.lineage.bucket import Bucket, read
from deltavc.lineage.fields import now
from deltavc.lineage.names import BRANCHES, SETTINGS, TAGS
from deltavc.lineage.records import RefEntry, ref_entry_key, ref_hint_key, ref_prefix

log = logging.getLogger(__name__)

MAX_SEQUENCE = 10**9
"""A move a second for thirty years. A store that has more makes them up."""

_NUMBER = re.compile(r"[0-9]{12}")
_PREFIX = re.compile(r"refs/[0-9a-f]{32}/")
_ATTEMPTS = 3  # the store has retried each of them already
_MAX_BATCH = 256
_READERS = 16


class Refs:
    """The refs of one repository, read from and written to its bucket. Refs go by full name: branches/main."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def newest(self, ref: str, known: RefEntry | None = None) -> RefEntry | None:
        """The last entry of a ref, or None if it never had one.

        Args:
            known: an entry of this ref; if it is still the last, this costs one request.

        Raises:
            CorruptObject, MissingObject: an entry is damaged, or one before the last is gone.
        """
        start = known or self._hinted(ref) or self._listed(ref)
        return None if start is None else self._last_from(start)

    def entries(self, ref: str, known: RefEntry | None = None) -> Iterator[RefEntry]:
        """The entries after `known` (all without it), oldest first, fetched in parallel ever further ahead.

        Many of them, or all, are held against the hint, which somebody who moved the ref wrote: an entry
        that it names behind a gap is an error, one that is not there a warning.

        Raises:
            CorruptObject: an entry is damaged or does not go on from where the one before it ended.
            MissingObject: one is gone.
        """
        last = known
        with ThreadPoolExecutor(_READERS) as pool:  # starts no thread before it is used
            size = 1
            while True:
                start = last.sequence + 1 if last else 1
                fetch = map if size == 1 else pool.map
                for entry in fetch(lambda sequence: self.entry(ref, sequence), range(start, start + size)):
                    if entry is None:
                        break
                    if entry.old != (last.new if last else None):
                        raise CorruptObject(entry.key, "it does not go on from where the entry before it ended")
                    yield entry
                    last = entry
                else:
                    if size < _MAX_BATCH:
                        size = 2 * size
                        if size == _MAX_BATCH and last is not None:
                            self._doubled(last)  # a store that makes entries up would keep us for ever
                    continue
                few = known is not None and last is not None and last.sequence - known.sequence < _MAX_BATCH
                if few or not self._more(ref, last.sequence if last else 0):
                    return
                size = 1

    def after(self, ref: str, known: RefEntry | None) -> RefEntry | None:
        """The entry after `known` (None: the first), if there is one. One request."""
        return self.entry(ref, known.sequence + 1 if known else 1)

    def latest(self, head: RefEntry, limit: int | None) -> list[RefEntry]:
        """The entries up to `head`, newest first.

        Raises:
            CorruptObject, MissingObject: one is damaged or gone.
        """
        first = 1 if limit is None else max(1, head.sequence - limit + 1)
        with ThreadPoolExecutor(_READERS) as pool:
            found = pool.map(lambda sequence: self.entry(head.ref, sequence), range(head.sequence, first - 1, -1))
            entries = [entry for entry in found if entry is not None]
        if len(entries) < head.sequence - first + 1:
            gaps = set(range(first, head.sequence + 1)) - {entry.sequence for entry in entries}
            raise MissingObject(ref_entry_key(head.ref, min(gaps)))
        return entries

    def names(self, known: Iterable[str] = ()) -> list[str]:
        """The full names of all branches and tags that ever were, deleted ones too, sorted.

        Lists one prefix a ref, and reads the first entry of each that is not among `known`.

        Raises:
            CorruptObject, MissingObject: the first entry of a ref is damaged or gone.
        """
        by_prefix = {ref_prefix(ref): ref for ref in (*known, SETTINGS)}
        prefixes = [prefix for prefix in self._bucket.prefixes("refs/") if _PREFIX.fullmatch(prefix)]
        with ThreadPoolExecutor(_READERS) as pool:
            found = pool.map(lambda prefix: by_prefix.get(prefix) or self._name(prefix), prefixes)
            return sorted(name for name in found if name is not None and name.startswith((BRANCHES, TAGS)))

    def next_entry(self, ref: str, known: RefEntry | None, new: str | None, who: str, why: str) -> RefEntry:
        """What `create` has to create to move `ref` from where `known` left it to `new` (None: delete it).

        Raises:
            BadMetadata: `why` is not a string.
        """
        if not isinstance(why, str):
            raise BadMetadata("reason", f"a {type(why).__name__} is not a string")
        return RefEntry(
            ref=ref,
            sequence=known.sequence + 1 if known else 1,
            old=known.new if known else None,
            new=new,
            who=who,
            when=now(),
            why=why,
            write_id=secrets.token_hex(16),
        )

    def create(self, entry: RefEntry) -> None:
        """Move the ref: the moment at which a commit happens. It may be called again with the same entry.

        Raises:
            BranchMoved: somebody else's entry stands in its place, and nothing was moved.
            RefExists: the same, for a tag.
            CommitInDoubt: the store does not say whether it landed; `settle` with the same entry finds out.
            StoreError: the store refused it, and nothing was moved.
        """
        found = self._land(entry)
        if found.write_id == entry.write_id:
            return
        if entry.ref.startswith(TAGS) and found.new is not None:
            raise RefExists("tag", entry.ref.removeprefix(TAGS), found.new)
        raise BranchMoved(entry.ref.removeprefix(BRANCHES), entry.old, found.new)

    def settle(self, entry: RefEntry) -> bool:
        """After CommitInDoubt: make sure that either `entry` or another stands at its place; whether it is `entry`.

        Raises:
            CommitInDoubt: the store still does not say.
        """
        return self._land(entry).write_id == entry.write_id

    def landed(self, entry: RefEntry) -> bool:
        """After CommitInDoubt, when it is too late to try again: whether `entry` stands at its place.

        Raises:
            CommitInDoubt: the store does not say.
        """
        try:
            found = self.entry(entry.ref, entry.sequence)
        except StoreError as error:
            raise CommitInDoubt(entry.ref.removeprefix(BRANCHES), entry.new or "none", str(error)) from error
        return found is not None and found.write_id == entry.write_id

    def write_hint(self, entry: RefEntry) -> None:
        """Note where the last entry is, so that readers without a database find it at once. Best effort."""
        with contextlib.suppress(StoreError):
            self._bucket.put(ref_hint_key(entry.ref), b"%d" % entry.sequence)

    def move(self, ref: str, known: RefEntry | None, new: str | None, who: str, why: str) -> RefEntry:
        """Move a ref on from `known`, its last entry as far as the caller knows (None: it has none).

        Raises what `create` raises.
        """
        entry = self.next_entry(ref, known, new, who, why)
        self.create(entry)
        self.write_hint(entry)
        return entry

    def _land(self, entry: RefEntry) -> RefEntry:
        """Create the entry if there is none, and return the one that is there."""
        doubt: StoreError | None = None
        for _ in range(_ATTEMPTS):
            try:
                if self._bucket.create(entry.key, entry.body):
                    return entry
                if (found := self.entry(entry.ref, entry.sequence)) is not None:
                    return found
            except StoreUnavailable as error:
                doubt = error
            except StoreError as error:
                if doubt is None:
                    raise
                doubt = error
                break
        reason = str(doubt) if doubt else "the store holds an entry that cannot be read back"
        raise CommitInDoubt(entry.ref.removeprefix(BRANCHES), entry.new or "none", reason) from doubt

    def entry(self, ref: str, sequence: int) -> RefEntry | None:
        """One entry, or None where there is none. Raises CorruptObject."""
        key = ref_entry_key(ref, sequence)
        try:
            entry = read(self._bucket, key, RefEntry.parse)
        except MissingObject:
            return None
        if (entry.ref, entry.sequence) != (ref, sequence):
            raise CorruptObject(key, "it is the entry of another ref or place")
        return entry

    def _more(self, ref: str, sequence: int) -> bool:
        """After the entry of this number none was found: whether one has been created since, as the hint may tell."""
        hint = self._hint(ref)
        if hint is None or hint <= sequence:
            return False
        if self.entry(ref, sequence + 1) is not None:
            return True
        missing = ref_entry_key(ref, sequence + 1)
        if self.entry(ref, hint) is not None:
            raise MissingObject(missing)
        log.warning("%s was moved %d times, but %s is not there: its last moves may be lost", ref, hint, missing)
        return False

    def _name(self, prefix: str) -> str | None:
        """The full name of the ref whose entries lie here; None where there are none."""
        key = f"{prefix}{1:012d}.json"
        try:
            entry = read(self._bucket, key, RefEntry.parse)
        except MissingObject:
            if any(item.key.endswith(".json") for item in self._bucket.list(prefix)):
                raise
            return None
        if entry.key != key:
            raise CorruptObject(key, "it is the entry of another ref or place")
        return entry.ref

    def _hinted(self, ref: str) -> RefEntry | None:
        hint = self._hint(ref)
        try:
            return None if hint is None else self.entry(ref, hint)
        except CorruptObject:
            return None

    def _hint(self, ref: str) -> int | None:
        """The number of an entry that was once the last, if the hint is there and says one."""
        try:
            hint = self._bucket.get(ref_hint_key(ref), 0, 16)
        except ObjectMissing:
            return None
        return int(hint) if hint.isdigit() and len(hint) <= 12 and int(hint) > 0 else None

    def _listed(self, ref: str) -> RefEntry | None:
        prefix = ref_prefix(ref)
        names = {item.key.removeprefix(prefix).removesuffix(".json") for item in self._bucket.list(prefix)}
        sequences = sorted(int(name) for name in names if _NUMBER.fullmatch(name))
        for due, sequence in enumerate(sequences, start=1):
            if due != sequence:
                raise MissingObject(ref_entry_key(ref, due))
        return self.entry(ref, sequences[-1]) if sequences else None

    def _last_from(self, entry: RefEntry) -> RefEntry:
        entry, step = self._doubled(entry)
        absent = entry.sequence + step
        while absent - entry.sequence > 1:
            middle = (absent + entry.sequence) // 2
            found = self.entry(entry.ref, middle)
            if found is None:
                absent = middle
            else:
                entry = found
        return entry

    def _doubled(self, entry: RefEntry) -> tuple[RefEntry, int]:
        """Go on in steps that double: an entry, and a step after it that leads to none.

        Raises:
            CorruptObject: there is no end to them.
        """
        step = 1
        while (found := self.entry(entry.ref, entry.sequence + step)) is not None:
            entry, step = found, 2 * step
            if entry.sequence > MAX_SEQUENCE:
                raise CorruptObject(entry.key, "there is no end to the entries before it")
        return entry, step
