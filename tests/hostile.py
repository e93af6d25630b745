"""Objects that somebody made to harm whoever reads them, and a process that reads them with little memory.

    python -m tests.hostile NAME ...     a line of JSON for each: the error it ended in, and the memory it took

Every case is a repository in a directory of its own. It is opened with an empty database, checked out, and checked.
What is large is a sparse file: a terabyte that takes no room.
"""

import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import zstandard

import deltavc
from deltavc import canonical, fingerprints
from deltavc.change import Box
from deltavc.delta import pack as packs
from deltavc.delta.pack import PackBuilder
from deltavc.errors import DeltavcError
from deltavc.layout import Layout, TensorSpec
from deltavc.lineage.records import (
    EdgeRecord,
    PackUse,
    RefEntry,
    VersionRecord,
    layout_key,
    ref_entry_key,
    ref_hint_key,
)
from deltavc.store.memory import MemoryStore

MIB = 1 << 20
HUGE = 1 << 40
LIMIT = 1 << 30
"""What reading any of this may add to a process's memory; JSON that is parsed takes twenty times its size at worst."""

SECONDS = 60
WHEN = "2026-01-02T03:04:05.678901Z"
MANY = b"[" + b"[]," * (MIB * 31 // 3) + b"[]]"
MOST = b"[" + b"[]," * 1_900_000 + b'"ab",' * (MIB * 25 // 5) + b"0]"
"""JSON that takes the most memory for its size: more than is read at all, and a little less."""


class Forger:
    """Writes objects under the names that they need to be believed so far."""

    def __init__(self, root):
        self.root = root
        self.put("deltavc.json", canonical.sealed({"format": 1, "repository": "0" * 32}))

    def put(self, key, body):
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        return key

    def huge(self, key, body=b"", nbytes=HUGE):
        """An object of as many bytes, of which the first are these and all others zero."""
        self.put(key, body)
        os.truncate(self.root / key, nbytes)

    def layout(self, *tensors):
        layout = Layout.of(tensors or [TensorSpec("w", "int8", (4,))])
        self.put(layout_key(layout.id), layout.body)
        return layout

    def version(self, layout, **fields):
        values = {layout.tensors[place].name: 0 for place in layout.stored}
        root = fingerprints.root(layout, values)  # as the edges here tell it
        record = VersionRecord((), layout.id, root, time=WHEN, **fields)
        self.put(record.key, record.body)
        self.move(record.id)
        return record

    def raw_version(self, **fields):
        """A version of any JSON at all."""
        record = VersionRecord((), "0" * 64, "0" * 64, time=WHEN)
        body = canonical.dumps(json.loads(record.body) | fields)
        version = canonical.content_id(body)
        self.put(f"versions/{version[:2]}/{version}.json", body)
        self.move(version)

    def body_of_version(self, body):
        version = canonical.content_id(body)
        self.put(f"versions/{version[:2]}/{version}.json", body)
        self.move(version)

    def move(self, version, ref="branches/main", sequence=1, old=None):
        entry = RefEntry(ref, sequence, old, version, "me", WHEN, "commit", "0" * 32)
        self.put(entry.key, entry.body)

    def snapshot(self, version, layout, *uses, nbytes=0, **fields):
        changed = layout.stored
        told = {"changed": changed, "fingerprints": ("0" * 16,) * len(changed), "reversible": False, "changes": 0}
        told |= {"base": None, "base_layout": None}
        edge = EdgeRecord(target=version.id, layout=layout.id, packs=uses, nbytes=nbytes, **(told | fields))
        self.put(edge.key, edge.body)
        return edge

    def pack(self, layout, *frames):
        """A pack of frames given as (place, box, codec, operation, payload, changes)."""
        builder = PackBuilder(layout.id)
        for frame in frames:
            builder.add(*frame)
        pack = builder.finish()
        return self.pack_of(pack.body, pack.index)

    def pack_of(self, body, index, nbytes=None):
        name = canonical.content_id(body)
        self.huge(f"packs/{name[:2]}/{name}.pack", body, nbytes or len(body))
        return PackUse(name, nbytes or len(body), index)


CASES = {}


def case(make):
    CASES[make.__name__] = make
    return make


# --- records ---


@case
def a_marker_without_end(to):
    to.huge("deltavc.json")


@case
def a_version_without_end(to):
    to.move("0" * 64)
    to.huge(f"versions/00/{'0' * 64}.json", b'{"a":"')


@case
def a_version_of_brackets(to):
    to.body_of_version(b'{"meta":' + MANY + b"}")


@case
def a_version_of_as_much_as_is_read(to):
    to.body_of_version(b'{"meta":' + MOST + b"}")


@case
def a_version_nested_without_end(to):
    to.body_of_version(b"[" * (4 * MIB))


@case
def a_version_with_a_number_of_a_million_digits(to):
    to.body_of_version(b'{"step":' + b"9" * MIB + b"}")


@case
def a_version_with_an_infinite_number(to):
    to.body_of_version(b'{"meta":{"a":1e99999999}}')


@case
def a_version_of_the_thirteenth_month(to):
    to.raw_version(time="2026-13-45T99:99:99.000000Z")


@case
def a_version_in_other_digits(to):
    to.raw_version(time="٢٠٢٦-01-02T03:04:05.678901Z")


@case
def a_layout_without_end(to):
    layout = to.layout()
    version = to.version(layout)
    to.snapshot(version, layout)
    to.huge(layout_key(layout.id), b'{"tensors":[')


@case
def a_layout_of_brackets(to):
    layout = to.layout()
    to.snapshot(to.version(layout), layout)
    to.put(layout_key(layout.id), b'{"tensors":' + MANY + b"}")


@case
def an_edge_without_end(to):
    layout = to.layout()
    to.huge(to.snapshot(to.version(layout), layout).key)


@case
def an_edge_of_brackets(to):
    layout = to.layout()
    to.put(to.snapshot(to.version(layout), layout).key, MANY)


@case
def a_drop_without_end(to):
    layout = to.layout()
    edge = to.snapshot(to.version(layout), layout)
    to.huge(edge.key.replace("edges/", "drops/"))


# --- refs ---


@case
def a_ref_entry_without_end(to):
    to.huge(ref_entry_key("branches/main", 1))


@case
def a_ref_entry_far_behind_a_gap(to):
    to.version(to.layout())
    to.move("0" * 64, sequence=10**12 - 1)


@case
def a_hint_without_end(to):
    to.version(to.layout())
    to.huge(ref_hint_key("branches/main"), b"1")


@case
def a_ref_whose_name_is_a_path(to):
    to.move("0" * 64, "branches/../../etc/passwd\0")


@case
def a_ref_whose_entries_never_end(to):
    """A server that makes up entries as they are asked for."""
    to.version(to.layout())
    return Endless(to.root)


class Endless(MemoryStore):
    """Whatever entry of main is asked for, it is there."""

    def __init__(self, root):
        super().__init__("memory://endless")
        for path in root.rglob("*"):
            if path.is_file():
                self.put(path.relative_to(root).as_posix(), path.read_bytes())
        (version,) = (path.stem for path in (root / "versions").rglob("*.json"))
        self._entry = RefEntry("branches/main", 1, version, version, "me", WHEN, "commit", "0" * 32)

    def get(self, key, start=0, nbytes=None):
        prefix = self._entry.key.rpartition("/")[0]
        if key.startswith(prefix) and key.endswith(".json") and key != self._entry.key:
            entry = RefEntry(
                "branches/main", int(key[-17:-5]), self._entry.old, self._entry.new, "me", WHEN, "", "0" * 32
            )
            return entry.body
        return super().get(key, start, nbytes)


# --- edges and packs ---


@case
def edges_that_lead_round_and_round(to):
    layout = to.layout()
    one, other = to.version(layout, message="one"), VersionRecord((), layout.id, "0" * 64, time=WHEN)
    to.put(other.key, other.body)
    for base, target in ((one, other), (other, one)):
        to.snapshot(target, layout, base=base.id, base_layout=layout.id, reversible=True)


@case
def a_pack_without_end_whose_index_is_all_of_it(to):
    layout = to.layout()
    to.snapshot(to.version(layout), layout, to.pack_of(packs.MAGIC + bytes(56), (64, HUGE - 64 - 48, 100), HUGE))


@case
def a_pack_without_end_whose_index_is_small(to):
    layout = to.layout()
    to.snapshot(to.version(layout), layout, to.pack_of(packs.MAGIC + bytes(56), (64, 100, 100), HUGE))


@case
def an_index_of_brackets(to):
    index(to, b'{"codecs":[],"frames":' + MANY + b"}")


@case
def an_index_that_unpacks_without_end(to):
    index(to, bytes(HUGE >> 10), unpacked=100)


@case
def an_index_that_wants_a_large_window(to):
    params = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True)
    index(to, bytes(30 * MIB), compressor=zstandard.ZstdCompressor(compression_params=params))


@case
def an_index_of_unknown_size(to):
    index(to, b"{}", compressor=zstandard.ZstdCompressor(write_content_size=False))


def index(to, body, unpacked=None, compressor=None):
    from blake3 import blake3

    layout = to.layout()
    stored = (compressor or zstandard.ZstdCompressor(level=1)).compress(body)
    where = (64, len(stored), unpacked or len(body))
    trailer = packs._TRAILER.pack(*where, blake3(stored).digest(length=16), packs.MAGIC)
    to.snapshot(to.version(layout), layout, to.pack_of((packs.MAGIC + bytes(56)) + stored + trailer, where))


@case
def a_frame_without_end(to):
    """One lane, in a payload of a terabyte."""
    frame = [0, 0, 0, 64, HUGE, "0" * 32, 4]
    body = json.dumps({"codecs": ["raw"], "frames": [frame], "layout": to.layout().id}, separators=(",", ":")).encode()
    far(to, body, HUGE)


def far(to, body, nbytes):
    """A pack whose index lies behind frames of so many bytes, with an edge to it."""
    from blake3 import blake3

    layout = to.layout()
    stored = zstandard.ZstdCompressor().compress(body)
    where = (64 + nbytes, len(stored), len(body))
    trailer = packs._TRAILER.pack(*where, blake3(stored).digest(length=16), packs.MAGIC)
    use = PackUse("0" * 64, 64 + nbytes + len(stored) + 48, where)
    to.huge(use.key, packs.MAGIC, 64 + nbytes)
    with open(to.root / use.key, "r+b") as file:
        file.seek(64 + nbytes)
        file.write(stored + trailer)
    to.snapshot(to.version(layout), layout, use, nbytes=nbytes)


@case
def frames_of_the_same_lanes_again_and_again(to):
    """A box of 64 MiB of zeros takes a few kilobytes; its frame is used a thousand times."""
    layout = to.layout(TensorSpec("w", "int8", (64 * MIB,)))
    payload = zstandard.ZstdCompressor().compress(bytes(64 * MIB))
    use = to.pack(layout, *[(0, None, "xor-zstd", "xor", payload, 64 * MIB)] * 1000)
    to.snapshot(to.version(layout), layout, use, nbytes=1000 * len(payload))


@case
def one_pack_used_thousands_of_times(to):
    layout = to.layout()
    use = to.pack(layout, (0, None, "raw", "add", b"1234", 4))
    to.snapshot(to.version(layout), layout, *[use] * 5000, nbytes=20_000)


@case
def a_tensor_larger_than_any_machine(to):
    layout = to.layout(TensorSpec("w", "int8", (1 << 52,)))
    box = Box((0,), (4,))
    use = to.pack(layout, (0, box, "raw", "add", b"1234", 4))
    to.snapshot(to.version(layout), layout, use, nbytes=4)


@case
def tensors_larger_than_any_machine_together(to):
    layout = to.layout(*(TensorSpec(f"w{n:05d}", "int8", (1 << 28,)) for n in range(9000)))
    use = to.pack(layout, (0, Box((0,), (4,)), "raw", "add", b"1234", 4))
    to.snapshot(to.version(layout), layout, use, nbytes=4)


@case
def a_tensor_without_lanes_whose_shape_overflows(to):
    shape = (1 << 40, 1 << 40, 0)
    body = canonical.dumps({"tensors": [{"name": "w", "dtype": "int8", "shape": list(shape)}]})
    layout = Layout((TensorSpec("w", "int8", shape),))
    to.put(layout_key(layout.id), body)
    to.snapshot(to.version(layout), layout)


def payload(name, make):
    """A case of one frame of 4 lanes, int8, whose payload promises more than that."""

    def made(to):
        layout = to.layout()
        body, changes = make()
        use = to.pack(layout, (0, None, name, "xor" if name.startswith("xor") else "add", body, changes))
        to.snapshot(to.version(layout), layout, use, nbytes=len(body))

    return made


def zeros(nbytes):
    return zstandard.ZstdCompressor().compress(bytes(nbytes))


CASES |= {
    "xor_zstd_that_unpacks_too_much": payload("xor-zstd", lambda: (zeros(512 * MIB), 4)),
    "planes_that_unpack_too_much": payload(
        "planes", lambda: (b"\0\1" + (len(zeros(512 * MIB))).to_bytes(4, "little") + zeros(512 * MIB), 4)
    ),
    "planes_that_are_longer_than_told": payload("planes", lambda: (b"\0\0\xff\xff\xff\xff1234", 4)),
    "lz4_blocks_without_end": payload("xor-lz4", lambda: (b"\xff\xff\xff\xff" + b"\xff" * 100, 4)),
    "lz4_copies_without_end": payload(
        "xor-lz4", lambda: ((6 + 60000).to_bytes(4, "little") + b"\x1fa\x01\x00" + b"\xff" * 60000 + b"\0\0", 4)
    ),
    "snappy_of_four_gigabytes": payload(
        "xor-snappy-zstd", lambda: (zstandard.ZstdCompressor().compress(b"\7\0\0\0\xff\xff\xff\xff\x0f\0a"), 4)
    ),
    "sparse_with_more_changes_than_lanes": payload("sparse", lambda: (b"\0" + bytes(8), 2**53 - 1)),
    "sparse_with_more_exceptions_than_changes": payload("sparse", lambda: (b"\0\xff\xff\xff\xff" + bytes(8), 4)),
    "an_unknown_codec": payload("gzip-9", lambda: (b"1234", 4)),
}


# --- reading ---


def read(root, store):
    """Open it, check it out, check it; what each ended in."""
    ends = {}
    for what in ("checkout", "fsck"):
        try:
            with opened(root, store) as repo:
                if what == "checkout":
                    state = repo.checkout("main")
                    ends[what] = f"gave {len(state)} tensors"
                else:
                    report = repo.fsck(full=True, anew=True, memory=64 * MIB)
                    ends[what] = report.problems[0].kind if report.problems else "ok"
        except DeltavcError as error:
            ends[what] = error.kind
    return ends


def opened(root, store):
    if store is None:
        return deltavc.open(root, db="sqlite://")
    from tests.upkeep.stores import opened as with_store

    return with_store(store)


def kilobytes(what):
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1])


def run(name, pipe):
    """In a process of its own: little memory, little time."""
    signal.alarm(SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (8 * LIMIT, 8 * LIMIT))  # so that a failure does not take the machine along
    told, started = {"name": name}, time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = scratch
        root = Path(scratch, "repository")
        before = kilobytes("VmRSS")
        try:
            told["ends"] = read(root, CASES[name](Forger(root)))
        except BaseException:
            told["failure"] = traceback.format_exc()
        told["seconds"] = time.monotonic() - started
        told["nbytes"] = 1024 * (kilobytes("VmHWM") - before)
    os.write(pipe, json.dumps(told).encode())


def main(names):
    warm_up()
    for name in names or CASES:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            run(name, writing)
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as file:
            told = file.read()
        os.waitpid(child, 0)
        print(told.decode() or json.dumps({"name": name, "failure": "killed, or out of time"}), flush=True)


def warm_up():
    """Compile and load what every case needs, once."""
    import torch

    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = scratch
        with deltavc.init(Path(scratch, "warm")) as repo:
            for codec in ("raw", "planes", "sparse", "xor-zstd", "xor-lz4", "xor-snappy-zstd"):
                repo.commit({"w": torch.randint(0, 99, (4000,), dtype=torch.int8)}, codec=codec)
            repo.checkout("main")
            repo.fsck(full=True)


if __name__ == "__main__":
    main(sys.argv[1:])
