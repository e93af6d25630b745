"""The two ends of Miles' and slime's disk deltas, written from their format with nothing of deltavc: a trainer that
publishes versions, and a host that brings its checkpoint to one of them."""

import json
import struct
import zlib

import blake3
import numpy as np
import safetensors.numpy
import xxhash
import zstandard

CHECKSUMS = {
    "adler32": lambda data: format(zlib.adler32(data), "08x"),
    "blake3": lambda data: blake3.blake3(data).hexdigest(),
    "xxh3-128": lambda data: xxhash.xxh3_128(data).hexdigest(),
}


class Host:
    """A host's own checkpoint: files whose bytes are changed in place. `version` is what it is at."""

    def __init__(self, folder):
        self.folder = folder
        self.version = 0

    def pull(self, deltas, target):
        while self.version < target:
            self._apply(deltas / f"weight_v{self.version + 1:06d}")

    def _apply(self, published):
        told = json.loads((published / "model.safetensors.index.json").read_bytes())["metadata"]
        assert int(told["base_version"]) == self.version
        assert told["compression_format"] == "zstd"
        mine = self._places()
        for file in sorted(published.glob("*.safetensors")):
            header, body = split(file.read_bytes())
            checksums = header.pop("__metadata__")
            for name, tensor in header.items():
                begin, end = tensor["data_offsets"]
                delta = np.frombuffer(zstandard.ZstdDecompressor().decompress(body[begin:end]), np.uint8)
                path, offset, size = mine[name]
                held = np.memmap(path, np.uint8, "r+", offset, (size,))
                if told["delta_encoding"] == "xor":
                    assert len(delta) == size
                    held ^= delta
                else:
                    (count,) = struct.unpack("<I", delta[:4].tobytes())
                    positions = delta[4 : 4 + 4 * count].copy().view("<u4")
                    held[positions] = delta[4 + 4 * count :]
                if CHECKSUMS[told["checksum_format"]](held.tobytes()) != checksums[name]:
                    raise RuntimeError(f"checksum mismatch: {name}")
                held.flush()
        self.version = int(told["version"])

    def _places(self):
        found = {}
        for path in self.folder.glob("*.safetensors"):
            raw = path.read_bytes()
            header, body = split(raw)
            for name, tensor in header.items():
                if name != "__metadata__":
                    begin, end = tensor["data_offsets"]
                    found[name] = (path, len(raw) - len(body) + begin, end - begin)
        return found


def split(raw):
    """A .safetensors file's header and what follows it."""
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def publish(deltas, number, old, new, encoding="xor", checksum="xxh3-128", files=1):
    """What a trainer of `files` source ranks writes for the step from one state to the next, both as bytes by name."""
    folder = deltas / f"weight_v{number:06d}"
    folder.mkdir(parents=True)
    ranks = [({}, {}) for _ in range(files)]
    for place, name in enumerate(sorted(new)):
        before, after = (np.frombuffer(state[name], np.uint8) for state in (old, new))
        if encoding == "xor":
            diff = (before ^ after).tobytes()
        else:
            where = np.flatnonzero(before != after)
            diff = struct.pack("<I", len(where)) + where.astype("<u4").tobytes() + after[where].tobytes()
        if old[name] != new[name]:
            tensors, checksums = ranks[place % files]
            tensors[name] = np.frombuffer(zstandard.ZstdCompressor(level=1).compress(diff), np.uint8)
            checksums[name] = CHECKSUMS[checksum](after.tobytes())
    ranks = [rank for rank in ranks if rank[0]]
    weight_map = {}
    for place, (tensors, checksums) in enumerate(ranks):
        file = f"model-{place:05d}-of-{len(ranks):05d}.safetensors"
        (folder / file).write_bytes(safetensors.numpy.save(tensors, metadata=checksums))
        weight_map.update(dict.fromkeys(tensors, file))
    metadata = {
        "version": f"{number:06d}",
        "base_version": f"{number - 1:06d}",
        "delta_encoding": encoding,
        "compression_format": "zstd",
        "checksum_format": checksum,
    }
    index = {"metadata": metadata, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
