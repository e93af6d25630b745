"""Bundles: the records of many versions in one object, for those who would have to read them all one by one.

    bundles/<2>/<hash>.zst  ──zstd──>  {"entries":40960}
                                       layouts/97/970f….json {"tensors":[…
                                       versions/ed/ed12….json {"author":…
                                       edges/ed12…/ae84….json {"base":…
                                       refs/51f4…/000000000001.json {"checksum":…

A bundle is a copy and never the truth. What it says is used where the bucket itself vouches for it: records by their
names, which are hashes of their content; edges if the bucket still lists them; the moves of a ref as far as they
form a row, if the last of them is in the bucket as well.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import zstandard

from deltavc import canonical
from deltavc.errors import BadPayload, ObjectMissing
from deltavc.lineage.bucket import Bucket, Listed
from deltavc.lineage.records import EDGES, RefEntry
from deltavc.lineage.spool import Spool

log = logging.getLogger(__name__)

BUNDLES = "bundles/"
REFS = "refs/"

PART_BYTES = 32 << 20
"""Of records in one bundle, before compression."""

MAX_BYTES = 256 << 20
"""A bundle that says it is larger is not unpacked."""

HEAD_BYTES = 256 << 10
"""So much of a bundle has its first line in it: zstd's blocks are of half this at most."""

_NAMED_BY_CONTENT = ("layouts/", "versions/", EDGES)
_LEVEL = 9
_WINDOW_LOG = 23  # 8 MiB, as everywhere in the format


def bundle_key(body: bytes) -> str:
    """Where a bundle of these bytes belongs."""
    name = canonical.content_id(body)
    return f"{BUNDLES}{name[:2]}/{name}.zst"


def pack(records: Iterable[tuple[str, bytes]], entries: int) -> Iterator[bytes]:
    """Make bundles of records, given as keys and bodies.

    Args:
        entries: how many moves of refs they all hold together. The last bundle says so, the others 0.
    """
    lines: list[bytes] = []
    nbytes = 0
    for key, body in records:
        if lines and nbytes + len(body) > PART_BYTES:
            yield _packed(lines, 0)
            lines, nbytes = [], 0
        lines.append(key.encode() + b" " + body)
        nbytes += len(lines[-1]) + 1
    yield _packed(lines, entries)


def entries_of(head: bytes) -> int:
    """How many moves of refs a bundle and those written before it hold, by its first bytes; 0 if they do not say."""
    try:
        line = zstandard.ZstdDecompressor().decompressobj().decompress(head).partition(b"\n")[0]
        entries = canonical.loads(line)["entries"]
    except (zstandard.ZstdError, BadPayload, KeyError, TypeError):
        return 0
    return entries if type(entries) is int else 0


def unpack(key: str, body: bytes) -> Iterator[tuple[str, bytes]]:
    """The keys and bodies in a bundle.

    Raises:
        BadPayload: it is not what its name says, or is no bundle.
    """
    if bundle_key(body) != key:
        raise BadPayload("its content is not what its name says")
    try:
        frame = zstandard.get_frame_parameters(body)
        if not 0 < frame.content_size <= MAX_BYTES or frame.window_size > 1 << _WINDOW_LOG:
            raise BadPayload(f"a bundle of {frame.content_size} bytes")
        text = zstandard.ZstdDecompressor().decompress(body, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadPayload(f"not a bundle: {error}") from error
    start = text.find(b"\n") + 1
    while 0 < start < len(text):
        end = text.find(b"\n", start)
        end = len(text) if end < 0 else end
        record, space, content = text[start:end].partition(b" ")
        if space:
            yield record.decode(errors="replace"), content
        start = end + 1


@contextmanager
def bundled(bucket: Bucket) -> Iterator[Bucket]:
    """The bucket, with what its bundles hold at hand; the bucket itself when it has none.

    Raises:
        StoreError; StoreFull: also where temporary files lie.
    """
    keys = [item.key for item in bucket.list(BUNDLES)]
    if not keys:
        yield bucket
        return
    with Spool() as spool:
        yield _Bundled(bucket, keys, spool)


class _Bundled:
    """A bucket whose records are read from its bundles, which are put aside unpacked."""

    def __init__(self, bucket: Bucket, keys: Iterable[str], spool: Spool) -> None:
        self._bucket = bucket
        self._spool = spool
        self._places: dict[str, tuple[int, int]] = {}
        self._edges: defaultdict[str, list[Listed]] = defaultdict(list)
        for item in bucket.list(EDGES):
            self._edges[f"{item.key.rpartition('/')[0]}/"].append(item)
        moves: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
        for key in keys:
            for record, body in self._records(key):
                if record.startswith(REFS):
                    moves[record.rpartition("/")[0]][record] = body
                elif record.startswith(_NAMED_BY_CONTENT) and record.endswith(f"/{canonical.content_id(body)}.json"):
                    self._places[record] = spool.add(body)
        for known in moves.values():
            self._keep_moves(known)
        log.info("%d records were found in bundles", len(self._places))

    def get(self, key: str, start: int = 0, nbytes: int | None = None) -> bytes:
        place = self._places.get(key)
        if place is None:
            return self._bucket.get(key, start, nbytes)
        return self._spool.get(place, start, nbytes)

    def put(self, key: str, body: bytes) -> None:
        self._bucket.put(key, body)

    def create(self, key: str, body: bytes) -> bool:
        return self._bucket.create(key, body)

    def list(self, prefix: str) -> Iterator[Listed]:
        if prefix.startswith(EDGES) and prefix != EDGES:
            return iter(self._edges.get(prefix, ()))
        return self._bucket.list(prefix)

    def prefixes(self, prefix: str) -> Iterator[str]:
        return self._bucket.prefixes(prefix)

    def _records(self, key: str) -> Iterator[tuple[str, bytes]]:
        try:
            yield from unpack(key, self._bucket.get(key, 0, MAX_BYTES + 1))
        except ObjectMissing:  # a newer one took its place
            pass
        except BadPayload as error:
            log.warning("bundle %s is not used: %s", key, error.reason)

    def _keep_moves(self, known: dict[str, bytes]) -> None:
        """Keep the moves of one ref that go on from each other, if the bucket has the last of them too."""
        row: list[RefEntry] = []
        with suppress(BadPayload):
            for key in sorted(known):
                entry = RefEntry.parse(known[key])
                if entry.key != key or (entry.sequence, entry.old) != (len(row) + 1, row[-1].new if row else None):
                    break
                row.append(entry)
        with suppress(ObjectMissing):
            if row and self._bucket.get(row[-1].key) == known[row[-1].key]:
                for entry in row:
                    self._places[entry.key] = self._spool.add(known[entry.key])


def _packed(lines: list[bytes], entries: int) -> bytes:
    text = b"\n".join([canonical.dumps({"entries": entries}), *lines])
    options = zstandard.ZstdCompressionParameters.from_level(_LEVEL, window_log=_WINDOW_LOG, source_size=len(text))
    return zstandard.ZstdCompressor(compression_params=options).compress(text)
