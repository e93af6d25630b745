"""A reader of format 1, written from docs/format.md and from nothing else.

It shares no line with the library: if the two agree on a repository, the page says what the library does. It
reads a repository in a directory, without its database, and favours plainness over speed.

    repo = Repository("path")
    state = repo.read(repo.resolve("main~2"))       # {name: (dtype, shape, bytes)}
"""

import dataclasses
import json
import math
import os
import re

import numpy as np
import zstandard
from blake3 import blake3

LANE_BYTES = {
    **dict.fromkeys(("bool", "uint8", "int8", "float8_e8m0fnu", "float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("uint16", "int16", "bfloat16", "float16"), 2),
    **dict.fromkeys(("uint32", "int32", "float32"), 4),
    **dict.fromkeys(("uint64", "int64", "float64", "complex64", "complex128"), 8),
}
MAGIC = bytes.fromhex("44454c5441564301")


class Refused(Exception):
    """Something is not as the page says."""


def check(holds, why):
    if not holds:
        raise Refused(why)


def hash_of(data):
    return blake3(data).hexdigest()


def short_hash(data):
    return hash_of(data)[:32]


# --- layouts, lanes and fingerprints ---


@dataclasses.dataclass
class Tensor:
    name: str
    dtype: str
    shape: tuple
    tie: str | None

    def __post_init__(self):
        check(self.dtype in LANE_BYTES, f"dtype {self.dtype}")
        self.lane_bytes = LANE_BYTES[self.dtype]
        self.lane_shape = (*self.shape, 2) if self.dtype == "complex128" else self.shape

        self.num_lanes = math.prod(self.lane_shape)

    @property
    def identity(self):
        return self.name, self.dtype, self.shape


class Layout:
    def __init__(self, body):
        self.id = hash_of(body)
        items = json.loads(body)["tensors"]
        self.tensors = [Tensor(item["name"], item["dtype"], tuple(item["shape"]), item.get("tie")) for item in items]
        names = [tensor.name.encode() for tensor in self.tensors]
        check(names == sorted(set(names)), "tensors out of order")
        self.stored = {tensor.name: tensor for tensor in self.tensors if tensor.tie is None}
        for tensor in self.tensors:
            check(tensor.tie is None or tensor.tie in self.stored, "a tie to nothing")

    def carried_from(self, base):
        kept = {tensor.identity for tensor in base.stored.values()} if base else set()
        return {name for name, tensor in self.stored.items() if tensor.identity in kept}


def mix64(indices, lanes):
    z = indices.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ lanes.astype(np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def fingerprint(lanes):
    return int(mix64(np.arange(lanes.size), lanes.reshape(-1)).sum(dtype=np.uint64))


def root(layout, prints):
    data = bytes.fromhex(layout.id) + b"".join(prints[name].to_bytes(8, "little") for name in layout.stored)
    return hash_of(data)


# --- codecs ---


def unzstd(stored, nbytes):
    check(zstandard.get_frame_parameters(stored).content_size == nbytes, "a zstd frame of another size")
    tool = zstandard.ZstdDecompressor(max_window_size=8 << 20)
    return tool.decompress(stored, allow_extra_data=False)


def values_of(data, w):
    return np.frombuffer(data, f"<u{w}").astype(f"u{w}")


class Bits:
    """A bit string, least significant bits first."""

    def __init__(self, data):
        self.bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").tolist()
        self.at = 0

    def number(self, length):
        check(self.at + length <= len(self.bits), "a bit string that ends too early")
        self.at += length
        return sum(bit << place for place, bit in enumerate(self.bits[self.at - length : self.at]))

    def zeros(self, most):
        count = 0
        while self.number(1) == 0:
            count += 1
            check(count <= most, "too many zeros")
        return count

    def gaps(self, count, bound):
        found, last = [], -1
        while len(found) < count:
            k = self.number(5)
            check(k <= 26 or k == 31, f"k = {k}")
            for _ in range(min(128, count - len(found))):
                gap = 0
                if k != 31:
                    q = self.zeros(16)
                    gap = self.number((bound - 1).bit_length()) if q == 16 else (q << k) + self.number(k)
                last += gap + 1
                check(last < bound, "a position outside")
                found.append(last)
        return found

    def end(self):
        """Skip the padding; the number of whole bytes read."""
        check(self.number(-self.at % 8) == 0, "padding that is not zero")
        return self.at // 8


def decode_raw(payload, n, w, c):
    check(len(payload) == n * w, "a payload of another size")
    return None, values_of(payload, w)


def decode_xor_zstd(payload, n, w, c):
    return None, values_of(unzstd(payload, n * w), w)


def decode_planes(payload, n, w, c):
    split, table, at = payload[0], payload[1 : 1 + 5 * w], 1 + 5 * w
    words = np.zeros(n, np.uint64)
    for j in range(w):
        coding, length = table[5 * j], int.from_bytes(table[5 * j + 1 : 5 * j + 5], "little")
        check(coding in (0, 1) and length <= n and (coding == 1 or length == n), "an impossible plane")
        plane = payload[at : at + length]
        plane = plane if coding == 0 else unzstd(plane, n)
        check(len(plane) == n, "a plane that is cut off")
        words |= np.frombuffer(plane, np.uint8).astype(np.uint64) << np.uint64(8 * j)
        at += length
    check(at == len(payload), "bytes behind the planes")
    u, one = words.astype(f"u{w}"), np.array(1, f"u{w}")
    check(split in (0, 1, 2), "an unknown split")
    if split == 1:
        u = (u >> one) ^ (~(u & one) + one)
    elif split == 2:
        u = (u >> one) | (u << np.array(8 * w - 1, f"u{w}"))
    return None, u


def decode_sparse(payload, n, w, c):
    check((len(payload) == 0) == (c == 0), "nothing for something")
    if c == 0:
        return [], np.zeros(0, f"u{w}")
    check(payload[0] in (0, 1), "an unknown kind of values")
    if payload[0] == 1:
        bits = Bits(payload[1:])
        positions = bits.gaps(c, n)
        _, values = decode_planes(payload[1 + bits.end() :], c, w, c)
        check(values.all(), "a change of zero")
        return positions, values
    e = int.from_bytes(payload[1:5], "little")
    check(e <= c, "more exceptions than values")
    bits = Bits(payload[5:])
    positions = bits.gaps(c, n)
    signs = [bits.number(1) for _ in range(c)]
    magnitudes = [1] * c
    for exception in bits.gaps(e, c):
        length = bits.zeros(63)
        magnitudes[exception] = (1 << length) + bits.number(length) + 1
        check(magnitudes[exception] <= (1 << (8 * w - 1)) - 1 + signs[exception], "a value that does not fit")
    check(bits.end() == len(payload) - 5, "bytes behind the bits")
    values = [(-m if sign else m) % (1 << 8 * w) for sign, m in zip(signs, magnitudes, strict=True)]
    return positions, np.array(values, f"u{w}")


def unlz4(block, size):
    made, at = bytearray(), 0

    def length(nibble):
        nonlocal at
        total, more = nibble, 255 if nibble == 15 else 0
        while more == 255:
            more = block[at]
            total, at = total + more, at + 1
        return total

    while True:
        token, at = block[at], at + 1
        literals = length(token >> 4)
        check(literals <= len(block) - at, "literals that are cut off")
        made, at = made + block[at : at + literals], at + literals
        if at == len(block):
            check(token & 15 == 0 and len(made) == size, "an LZ4 block that ends elsewhere")
            return bytes(made)
        start, offset, at = len(made), int.from_bytes(block[at : at + 2], "little"), at + 2
        end = start + 4 + length(token & 15)
        check(start <= size - 12 and end <= size - 5, "a match where an LZ4 block ends")
        repeat(made, offset, end)


def unsnappy(block, size):
    number, at = 0, 0
    while at == 0 or block[at - 1] & 128:
        number, at = number | (block[at] & 127) << 7 * at, at + 1
    check(number == size and (at == 1 or block[at - 1]), "a Snappy block of another size")
    made = bytearray()
    while at < len(block):
        tag, at = block[at], at + 1
        kind, top = tag & 3, tag >> 2
        more = (max(0, top - 59), 1, 2, 4)[kind]
        check(more <= len(block) - at, "an element that is cut off")
        number, at = int.from_bytes(block[at : at + more], "little"), at + more
        if kind == 0:
            length = 1 + (number if more else top)
            check(length <= len(block) - at, "a literal that is cut off")
            made, at = made + block[at : at + length], at + length
        elif kind == 1:
            repeat(made, (tag >> 5) << 8 | number, len(made) + 4 + (top & 7))
        else:
            repeat(made, number, len(made) + 1 + top)
    check(len(made) == size, "a Snappy block that ends elsewhere")
    return bytes(made)


def repeat(made, offset, end):
    """Append bytes that stand `offset` before them, until there are `end`."""
    check(1 <= offset <= len(made) and end <= 65536, "a copy from outside, or to outside")
    while len(made) < end:
        made += made[-offset:][: end - len(made)]


def decode_blocks(unblock, wrapped):
    def decode(payload, n, w, c):
        sizes = [min(65536, n * w - first) for first in range(0, n * w, 65536)]
        if wrapped:
            content = zstandard.get_frame_parameters(payload).content_size
            check(content <= sum(36 + size + size // 6 for size in sizes), "a zstd frame that is too large")
            payload = unzstd(payload, content)
        at = 4 * len(sizes)
        check(at <= len(payload), "a table that is cut off")
        values = b""
        for number, size in enumerate(sizes):
            length = int.from_bytes(payload[4 * number : 4 * number + 4], "little")
            check(1 <= length <= len(payload) - at, "a block that is cut off")
            values, at = values + unblock(payload[at : at + length], size), at + length
        check(at == len(payload), "bytes behind the blocks")
        return None, values_of(values, w)

    return decode


CODECS = {
    "raw": decode_raw,
    "xor-zstd": decode_xor_zstd,
    "xor-lz4": decode_blocks(unlz4, wrapped=False),
    "xor-snappy-zstd": decode_blocks(unsnappy, wrapped=True),
    "xor-lz4hc-zstd": decode_blocks(unlz4, wrapped=True),
    "planes": decode_planes,
    "sparse": decode_sparse,
}


# --- packs ---


@dataclasses.dataclass
class Frame:
    place: int
    codec: str
    operation: int
    payload: bytes
    changes: int
    box: list | None


def read_pack(body):
    """The layout's id, the triple that edges keep as `index`, and the frames."""
    check(len(body) >= 24 + 48 and body[:8] == MAGIC == body[-8:], "no pack")
    offset, nbytes, unpacked = (int.from_bytes(body[at : at + 8], "little") for at in (-48, -40, -32))
    check(offset + nbytes + 48 == len(body) and 1 <= unpacked <= 32 << 20, "an impossible trailer")
    stored = body[offset : offset + nbytes]
    check(short_hash(stored) == body[-24:-8].hex(), "a damaged index")
    index = json.loads(unzstd(stored, unpacked))
    frames, due = [], 64
    for place, codec, operation, start, length, checksum, changes, *box in index["frames"]:
        check(start == due and operation in (0, 1), "an impossible frame")
        payload = body[start : start + length]
        check(short_hash(payload) == checksum, "a damaged frame")
        frames.append(Frame(place, index["codecs"][codec], operation, payload, changes, box[0] if box else None))
        due = -(-(start + length) // 64) * 64
    check(due == offset, "an index out of place")
    return index["layout"], [offset, nbytes, unpacked], frames


def apply_frame(frame, layout, lanes, forward):
    tensor = layout.tensors[frame.place]
    dims = len(tensor.lane_shape)
    box = frame.box if frame.box is not None else [0] * dims + list(tensor.lane_shape)
    offsets, lengths = box[:dims], box[dims:]
    check(len(lengths) == dims, "a box of other dimensions")
    for offset, length, bound in zip(offsets, lengths, tensor.lane_shape, strict=True):
        check(0 <= offset <= offset + length <= bound, "a box outside its tensor")
    n, w = math.prod(lengths), tensor.lane_bytes
    check(1 <= n * w <= 64 << 20, "a frame of an impossible size")
    check(frame.codec in CODECS, f"unknown codec {frame.codec}")
    check(frame.changes <= n if frame.codec == "sparse" else frame.changes == n, "an impossible number of changes")
    positions, values = CODECS[frame.codec](frame.payload, n, w, frame.changes)
    view = lanes[tensor.name][(..., *(slice(o, o + length) for o, length in zip(offsets, lengths, strict=True)))]
    flat = view.reshape(-1).copy()
    chosen = slice(None) if positions is None else np.array(positions, np.int64)
    if frame.operation == 1:
        flat[chosen] ^= values
    elif forward:
        flat[chosen] += values
    else:
        flat[chosen] -= values
    view[...] = flat.reshape(view.shape)


# --- repositories ---


def unsealed(body):
    """An object with its own checksum, which canonical JSON puts first: no other member sorts before it."""
    check(body[:13] == b'{"checksum":"' and body[45:47] == b'",', "no checksum")
    check(short_hash(b"{" + body[47:]) == body[13:45].decode(), "a damaged object")
    return json.loads(body)


class Repository:
    def __init__(self, directory):
        self.directory = str(directory)
        check(unsealed(self.get("deltavc.json"))["format"] == 1, "another format")

    def get(self, key):
        with open(os.path.join(self.directory, *key.split("/")), "rb") as file:
            return file.read()

    def named(self, kind, name, suffix):
        body = self.get(f"{kind}/{name[:2]}/{name}{suffix}")
        check(hash_of(body) == name[:64], f"{kind}: not the bytes that it is named by")
        return body

    def ids(self, below):
        """Names of what lies under a key, without `.json`."""
        path = os.path.join(self.directory, *below.split("/"))
        found = sorted(os.listdir(path)) if os.path.isdir(path) else []
        return [name.removesuffix(".json") for name in found if name.endswith(".json")]

    def version(self, version):
        return json.loads(self.named("versions", version, ".json"))

    def layout(self, layout):
        return Layout(self.named("layouts", layout, ".json"))

    def file(self, version, name):
        file = self.version(version)["files"][name]
        body = self.named("files", file["id"], "")
        check(len(body) == file["nbytes"], "a file of another size")
        return body

    def edges(self, target):
        found = []
        for name in self.ids(f"edges/{target}"):
            if name in self.ids(f"drops/{target}"):
                continue
            body = self.get(f"edges/{target}/{name}.json")
            check(hash_of(body) == name, "an edge that is not the bytes it is named by")
            found.append(json.loads(body))
            check(found[-1]["target"] == target, "an edge to elsewhere")
        return found

    def refs(self):
        """Where every branch and tag is, by full name; the hint is not looked at."""
        found = {}
        for short in sorted(os.listdir(os.path.join(self.directory, "refs"))):
            at = None
            for number, name in enumerate(self.ids(f"refs/{short}"), 1):
                entry = unsealed(self.get(f"refs/{short}/{name}.json"))
                check(name == f"{number:012d}" and entry["sequence"] == number, "a gap between ref entries")
                check(short_hash(entry["ref"].encode()) == short and entry["old"] == at, "an entry of another ref")
                at = entry["new"]
            if at is not None and entry["ref"].startswith(("branches/", "tags/")):
                found[entry["ref"]] = at
        return found

    def resolve(self, ref):
        """A version's id from a full id, branch or tag, followed by any number of ~N."""
        base, *back = ref.split("~")
        refs = self.refs()
        if not re.fullmatch("[0-9a-f]{64}", base):
            base = next(refs[kind + base] for kind in ("branches/", "tags/") if kind + base in refs)
        for steps in back:
            for _ in range(int(steps or 1)):
                base = self.version(base)["parents"][0]
        return base

    def way(self, target):
        """The fewest edges that lead from nothing to a version."""
        ways, seen = [[edge] for edge in self.edges(target)], {target}
        for way in ways:
            if way[0]["base"] is None:
                return way
            if way[0]["base"] not in seen:
                seen.add(way[0]["base"])
                ways += [[edge, *way] for edge in self.edges(way[0]["base"])]
        raise Refused(f"no way leads to {target}")

    def lanes(self, version):
        """Arrays of lanes by name, made forwards from nothing."""
        lanes, told = {}, {}
        for edge in self.way(version):
            lanes = self.walk(edge, lanes)
            carried = self.layout(edge["layout"]).carried_from(edge["base_layout"] and self.layout(edge["base_layout"]))
            told = {name: value for name, value in told.items() if name in carried} | self.told(edge)
        check(told == {name: fingerprint(array) for name, array in lanes.items()}, "edges tell of other fingerprints")
        return lanes

    def told(self, edge):
        tensors = self.layout(edge["layout"]).tensors
        told = zip(edge["changed"], edge["fingerprints"], strict=True)
        return {tensors[place].name: int(digits, 16) for place, digits in told}

    def walk(self, edge, lanes, forward=True):
        """The lanes at the other end of an edge, proven to be that version's."""
        target, base = self.layout(edge["layout"]), edge["base_layout"] and self.layout(edge["base_layout"])
        check(forward or edge["reversible"], "an edge that cannot be walked back")
        carried = target.carried_from(base)
        to = target if forward else base
        made = {name: array.copy() for name, array in lanes.items() if name in carried}
        for name in to.stored.keys() - carried:
            made[name] = np.zeros(to.stored[name].lane_shape, f"u{to.stored[name].lane_bytes}")
        frames = self.frames(edge, target)
        check(sum(len(frame.payload) for frame in frames) == edge["nbytes"], "an edge of another size")
        for frame in frames:
            if forward or target.tensors[frame.place].name in carried:
                apply_frame(frame, target, made, forward)
        changes = sum(tensor.num_lanes for name, tensor in target.stored.items() if name not in carried)
        changes += sum(np.count_nonzero(made[name] != lanes[name]) for name in carried)
        check(changes == edge["changes"], "an edge that counts otherwise")
        version = self.version(edge["target"] if forward else edge["base"])
        check(version["layout"] == to.id, "an edge of another layout")
        prints = {name: fingerprint(array) for name, array in made.items()}
        check(root(to, prints) == version["fingerprint"], "weights that are not those of the version")
        return made

    def frames(self, edge, layout):
        found = []
        for use in edge["packs"]:
            body = self.named("packs", use["pack"], ".pack")
            of, index, frames = read_pack(body)
            check((of, index, len(body)) == (layout.id, use["index"], use["nbytes"]), "an edge of another pack")
            found += frames if "frames" not in use else [frames[number] for number in use["frames"]]
        return found

    def read(self, version):
        return self.state(version, self.lanes(version))

    def state(self, version, lanes):
        """{name: (dtype, shape, bytes)} in the layout's order, tied names too."""
        found = {}
        for tensor in self.layout(self.version(version)["layout"]).tensors:
            array = lanes[tensor.tie or tensor.name]
            found[tensor.name] = (tensor.dtype, tensor.shape, array.astype(f"<u{tensor.lane_bytes}").tobytes())
        return found
