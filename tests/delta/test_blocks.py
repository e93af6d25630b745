"""Blocks are what other decoders read: plain ones in Python, the libraries', and a device's, which wants them raw."""

import lz4.block
import numpy as np
import pytest
import snappy
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from deltavc.change import Dense, same
from deltavc.delta.codecs import codec, nvcomp
from deltavc.delta.codecs.base import FrameHeader
from deltavc.errors import BadPayload
from deltavc.kernels.cpu_blocks import BLOCK, find_bad_lz4, find_bad_snappy
from tests.delta.samples import WIDTHS, header_of, make_dense, make_sparse
from tests.format.independent_reader import Refused, unlz4, unsnappy

NAMES = ("xor-lz4", "xor-snappy-zstd", "xor-lz4hc-zstd")
PLAIN = {"LZ4": unlz4, "Snappy": unsnappy}
DEVICE = torch.cuda.is_available() and torch.version.cuda and nvcomp._library() is not None


def library(algorithm, block, size):
    """What the library makes of a block, or None."""
    try:
        found = lz4.block.decompress(block, uncompressed_size=size) if algorithm == "LZ4" else snappy.uncompress(block)
    except (lz4.block.LZ4BlockError, snappy.UncompressError):
        return None
    return found if len(found) == size else None


def plain(algorithm, block, size):
    """What a decoder made from the page makes of a block, or None."""
    try:
        return PLAIN[algorithm](block, size)
    except (Refused, IndexError):
        return None


def passes(algorithm, block, size):
    stored = np.frombuffer(block, np.uint8)
    stored.flags.writeable = False
    find_bad = find_bad_lz4 if algorithm == "LZ4" else find_bad_snappy
    return find_bad(stored, np.array([len(block)]), size) == -1


def compressed(data):
    """A block of each kind: (algorithm, block)."""
    yield "Snappy", snappy.compress(data)
    for level in (1, 3, 9, 12):
        yield "LZ4", lz4.block.compress(data, mode="high_compression", compression=level, store_size=False)
    yield "LZ4", lz4.block.compress(data, store_size=False)


def changes(num_lanes=200_000, density=0.002):
    """One of each width of lanes."""
    sparse = [make_sparse(0, width, "xor", num_lanes, density, "scattered", "steps") for width in WIDTHS]
    return [make_dense(change, num_lanes) for change in sparse]


@st.composite
def datas(draw):
    """Bytes of a block: any few, or up to 64 KiB of which some are not zero."""
    if draw(st.booleans()):
        return draw(st.binary(min_size=1, max_size=300))
    rng, size = np.random.default_rng(draw(st.integers(0, 2**32))), draw(st.integers(1, BLOCK))
    values = rng.integers(0, draw(st.sampled_from([2, 5, 256])), size)
    return (values * (rng.random(size) < draw(st.sampled_from([0, 0.001, 0.02, 0.3, 1])))).astype(np.uint8).tobytes()


@given(datas())
def test_blocks_of_any_writer_pass_and_decode_alike(data):
    for algorithm, block in compressed(data):
        assert passes(algorithm, block, len(data))
        assert plain(algorithm, block, len(data)) == library(algorithm, block, len(data)) == data


@given(datas().filter(lambda data: len(data) < 2000), st.data())
def test_damaged_blocks_pass_only_if_every_decoder_reads_the_same(data, more):
    for algorithm, block in compressed(data):
        damaged = bytearray(block)
        for _ in range(more.draw(st.integers(1, 3))):
            damaged[more.draw(st.integers(0, len(damaged) - 1))] ^= more.draw(st.integers(1, 255))
        size = more.draw(st.just(len(data)) | st.integers(1, 2000))
        found = plain(algorithm, bytes(damaged), size)
        assert passes(algorithm, bytes(damaged), size) == (found is not None)
        if found is not None:
            assert library(algorithm, bytes(damaged), size) == found


@given(st.sampled_from(["LZ4", "Snappy"]), st.binary(min_size=1, max_size=40), st.integers(1, 200))
def test_arbitrary_blocks_pass_only_if_every_decoder_reads_the_same(algorithm, block, size):
    if algorithm == "Snappy":
        size %= 128
        block = bytes((size,)) + block
    found = plain(algorithm, block, size) if size else None
    assert size == 0 or passes(algorithm, block, size) == (found is not None)
    if found is not None:
        assert library(algorithm, block, size) == found


@pytest.mark.parametrize(
    ("algorithm", "block", "size"),
    [
        ("LZ4", "1f 41 00 00 0a 50 61 62 63 64 65", 35),  # an offset of 0, which liblz4 lets pass
        ("LZ4", "10 41 02 00 80 61 62 63 64 65 66 67 68", 13),  # an offset before the block
        ("LZ4", "10 41 01 00 70 61 62 63 64 65 66 67", 12),  # a match in the last 12 bytes
        ("LZ4", "30 61 62 63", 4),
        ("LZ4", "31 61 62 63", 3),
        ("LZ4", "", 1),
        ("Snappy", "83 00 08 61 62 63", 3),  # a size with zeros in front
        ("Snappy", "05 00 61 05 00", 5),  # an offset of 0
        ("Snappy", "ff ff ff ff 0f 00 61", 1),
        ("Snappy", "03 08 61 62 63 00 64", 3),
        ("Snappy", "", 1),
    ],
)
def test_blocks_that_the_formats_forbid_do_not_pass(algorithm, block, size):
    assert not passes(algorithm, bytes.fromhex(block), size)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_peeled_is_a_table_and_raw_blocks(name):
    """Raw as nvCOMP has it: Snappy begins with the size before compression, LZ4 with a token."""
    for change in changes():
        header = header_of(change, 200_000)
        peeled = codec(name).peel(codec(name).encode(change, 200_000), header)
        data = change.values.numpy().tobytes()
        parts = [data[first : first + BLOCK] for first in range(0, len(data), BLOCK)]
        lengths = np.frombuffer(peeled, "<u4", len(parts)).tolist()
        ends = codec(name).block_ends(peeled, header).tolist()
        assert ends == np.cumsum([4 * len(parts), *lengths]).tolist()
        assert ends[-1] == len(peeled)
        for part, start, end in zip(parts, ends[:-1], ends[1:], strict=True):
            block = peeled[start:end]
            assert PLAIN[codec(name).algorithm](block, len(part)) == part
            if name == "xor-snappy-zstd":
                assert block == snappy.compress(part)
                assert block[:3] == b"\x80\x80\x04" or len(part) < BLOCK
            else:
                assert block[0] >> 4  # the token of a sequence with literals
        assert same(codec(name).open(peeled, header), change)


def test_zstd_comes_off_to_what_one_layer_stores():
    change = changes()[1]
    header = header_of(change, 200_000)
    payload = codec("xor-lz4hc-zstd").encode(change, 200_000)
    peeled = codec("xor-lz4hc-zstd").peel(payload, header)
    assert zstandard.ZstdDecompressor().decompress(payload) == peeled
    assert same(codec("xor-lz4").decode(peeled, header), change)
    stored = codec("xor-lz4").encode(change, 200_000)
    assert codec("xor-lz4").peel(stored, header) is stored


@given(st.sampled_from(NAMES), st.data())
def test_damaged_peeled_bytes_are_refused_or_are_a_change(name, data):
    change = make_dense(make_sparse(0, 2, "xor", 300, 0.1, "scattered", "any"), 300)
    header = header_of(change, 300)
    damaged = bytearray(codec(name).peel(codec(name).encode(change, 300), header))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        opened = codec(name).open(damaged, header)
    except BadPayload:
        return
    assert opened.values.shape == (300,)


@pytest.mark.parametrize("name", NAMES)
def test_noise_is_within_the_bound_for_what_is_peeled(name):
    for num_lanes in (1, 100, BLOCK, BLOCK + 1, 3 * BLOCK - 1):
        noise = torch.randint(-128, 128, (num_lanes,), dtype=torch.int8, generator=torch.Generator().manual_seed(1))
        change = Dense("xor", noise)
        assert same(codec(name).decode(codec(name).encode(change, num_lanes), header_of(change, num_lanes)), change)


@pytest.mark.parametrize("name", NAMES[1:])
def test_what_is_peeled_is_bounded_by_the_frame(name):
    header = FrameHeader(70_000, 1, "xor", 70_000)
    most = 2 * 36 + BLOCK + BLOCK // 6 + 4464 + 4464 // 6
    assert len(codec(name).peel(zstandard.compress(bytes(most)), header)) == most
    with pytest.raises(BadPayload, match="due"):
        codec(name).peel(zstandard.compress(bytes(most + 1)), header)


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not DEVICE, reason="no GPU, or no nvCOMP"))]
)
@pytest.mark.parametrize("name", NAMES)
def test_frames_open_on_a_device_to_the_same_changes(name, device):
    wanted = [*changes(), *changes(3), *changes(BLOCK)]
    frames = []
    for change in wanted:
        header = header_of(change, len(change.values))
        frames.append((codec(name).peel(codec(name).encode(change, len(change.values)), header), header))
    found = nvcomp.open_on_device(codec(name), frames, device)
    for change, opened in zip(wanted, found, strict=True):
        assert opened.values.device.type == device
        assert same(Dense(opened.operation, opened.values.cpu()), change)
    with pytest.raises(BadPayload):
        nvcomp.open_on_device(codec(name), [*frames, (frames[0][0][:-1], frames[0][1])], device)


def test_more_effort_halves_what_snappy_leaves():
    change = make_dense(make_sparse(0, 2, "xor", 4 << 20, 0.00085, "scattered", "steps"), 4 << 20)
    sizes = {name: len(codec(name).encode(change, 4 << 20)) for name in NAMES}
    assert 2 * sizes["xor-lz4hc-zstd"] < sizes["xor-snappy-zstd"] < sizes["xor-lz4"]
