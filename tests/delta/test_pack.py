"""A pack gives back its frames, and notices any byte that is not as it was written."""

import json
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deltavc import canonical
from deltavc.change import Box, Dense, Sparse, same
from deltavc.delta import pack as packs
from deltavc.delta.codecs import codec
from deltavc.delta.frames import Frame, check_payload, frame_header, open_frame
from deltavc.delta.pack import PackBuilder, PackIndex, check_pack, read_index
from deltavc.errors import BadPayload, UnknownCodec
from deltavc.layout import Layout, TensorSpec

LAYOUT = Layout.of(
    [
        TensorSpec("a", "bfloat16", (8, 16)),
        TensorSpec("b", "float32", (10,)),
        TensorSpec("c", "bfloat16", (8, 16), tie="a"),
        TensorSpec("d", "complex128", ()),
        TensorSpec("e", "uint8", (0, 3)),
    ]
)

CHANGES = [
    (0, None, "sparse", Sparse("add", torch.tensor([3, 77]), torch.tensor([1, -5], dtype=torch.int16))),
    (0, Box((2, 0), (1, 16)), "planes", Dense("add", torch.arange(16, dtype=torch.int16))),
    (1, None, "xor-zstd", Dense("xor", torch.arange(10, dtype=torch.int32))),
    (3, None, "raw", Dense("add", torch.tensor([-1, 2**62]))),
    (1, None, "sparse", Sparse("xor", torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int32))),
]


def lanes_of(place, box):
    return LAYOUT.tensors[place].num_lanes if box is None else box.num_lanes


def make_pack(changes=CHANGES):
    builder = PackBuilder(LAYOUT.id)
    for place, box, name, change in changes:
        payload = codec(name).encode(change, lanes_of(place, box))
        builder.add(place, box, name, change.operation, payload, change.num_changes)
    return builder.finish()


@pytest.fixture(scope="module")
def pack():
    return make_pack()


def payload_of(body, frame):
    return body[frame.offset : frame.offset + frame.nbytes]


def read_like_a_client(body, offset):
    """What a reader does that fetches the end of a pack, then each frame."""
    index = read_index(body[offset:], len(body))
    return index, [open_frame(payload_of(body, frame), frame, LAYOUT) for frame in index.frames]


def test_frames_come_back_from_a_pack(pack):
    index, changes = read_like_a_client(pack.body, pack.index[0])
    assert index == check_pack(pack.body, pack.id) == PackIndex(LAYOUT.id, pack.frames)
    assert [(frame.place, frame.box, frame.codec) for frame in index.frames] == [each[:3] for each in CHANGES]
    assert all(same(change, each[3]) for change, each in zip(changes, CHANGES, strict=True))


def test_frames_are_aligned_and_the_builder_knows_its_size(pack):
    builder = PackBuilder(LAYOUT.id)
    assert builder.nbytes == 0
    builder.add(1, None, "raw", "add", bytes(40), 10)
    assert builder.nbytes == 64 + 40
    assert [frame.offset % 64 for frame in pack.frames] == [0] * len(CHANGES)


def test_no_two_packs_are_the_same_object():
    one, two = make_pack(), make_pack()
    assert one.id != two.id
    assert one.frames == two.frames


def test_an_empty_pack_is_a_pack():
    pack = make_pack([])
    assert check_pack(pack.body, pack.id).frames == ()


def test_a_pack_of_twenty_thousand_frames_comes_back():
    builder = PackBuilder(LAYOUT.id)
    for number in range(20_000):
        builder.add(1, None, "raw", "add", number.to_bytes(40, "little"), 10)
    pack = builder.finish()
    assert check_pack(pack.body, pack.id).frames == pack.frames
    assert pack.index[1] < 30 * 20_000


def test_every_damaged_byte_of_a_whole_pack_is_noticed(pack):
    for at in range(len(pack.body)):
        damaged = bytearray(pack.body)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(BadPayload):
            check_pack(damaged, pack.id)


def test_every_damaged_byte_is_noticed_or_changes_nothing_for_a_reader_of_ranges(pack):
    expected = read_like_a_client(pack.body, pack.index[0])
    for at in range(len(pack.body)):
        damaged = bytearray(pack.body)
        damaged[at] ^= 1 << at % 8
        covered = at >= pack.index[0] or any(f.offset <= at < f.offset + f.nbytes for f in pack.frames)
        if covered:
            with pytest.raises(BadPayload):
                read_like_a_client(damaged, pack.index[0])
        else:
            index, changes = read_like_a_client(damaged, pack.index[0])
            assert index == expected[0]
            assert all(same(*pair) for pair in zip(changes, expected[1], strict=True))


def test_a_structure_damaged_under_a_right_name_is_noticed(pack):
    """As by a writer with a fault: the name fits, the pack does not."""
    ends = [frame.offset + frame.nbytes for frame in pack.frames]
    padding = [
        at for at in range(24, pack.index[0]) if not any(f.offset <= at < f.offset + f.nbytes for f in pack.frames)
    ]
    for at in [0, 7, *padding, *(end - 1 for end in ends[:-1]), len(pack.body) - 1]:
        damaged = bytearray(pack.body)
        damaged[at] ^= 16
        with pytest.raises(BadPayload):
            check_pack(damaged, canonical.content_id(damaged))


def test_a_pack_cut_short_is_noticed(pack):
    for length in range(len(pack.body)):
        cut = pack.body[:length]
        with pytest.raises(BadPayload):
            check_pack(cut, canonical.content_id(cut))
        with pytest.raises(BadPayload):
            read_index(cut[pack.index[0] :], len(pack.body))
        with pytest.raises(BadPayload):
            read_index(cut[pack.index[0] :], len(cut))


@given(st.binary(max_size=300), st.integers(0, 2**63))
def test_arbitrary_bytes_are_no_pack(body, nbytes):
    with pytest.raises(BadPayload):
        check_pack(body, canonical.content_id(body))
    with pytest.raises(BadPayload):
        read_index(body, nbytes)


def forge(pack, change):
    """The pack with its index rewritten by `change` and everything around it right."""
    offset = pack.index[0]
    item = canonical.loads(packs.zstd.decompress(pack.body[offset : offset + pack.index[1]], pack.index[2]))
    body = change(item)
    if not isinstance(body, bytes):
        body = canonical.dumps(item if body is None else body)
    stored = packs.zstd.compress(body)
    checksum = packs.blake3(stored).digest(length=16)
    trailer = packs._TRAILER.pack(offset, len(stored), len(body), checksum, packs.MAGIC)
    return pack.body[:offset] + stored + trailer


def frame_entry(number, column, value):
    def change(item):
        item["frames"][number][column] = value

    return change


FORGERIES = {
    "not JSON": lambda item: b"{",
    "not an object": lambda item: [],
    "not canonical": lambda item: json.dumps(item).encode(),
    "a stranger's key": lambda item: item.update(extra=1),
    "no frames": lambda item: item.pop("frames") and None,
    "a layout that is no id": lambda item: item.update(layout="x"),
    "frames that are a number": lambda item: item.update(frames=5),
    "codecs that are a number": lambda item: item.update(codecs=5),
    "a codec not used": lambda item: item["codecs"].append("zzz"),
    "a codec's name with capitals": lambda item: item["codecs"].__setitem__(0, "A"),
    "a frame too short": lambda item: item["frames"][0].pop() and None,
    "a frame too long": lambda item: item["frames"][1].append(1),
    "negative place": frame_entry(0, 0, -1),
    "place true": frame_entry(0, 0, True),
    "unknown codec number": frame_entry(0, 1, 9),
    "unknown operation": frame_entry(0, 2, 2),
    "offset not aligned": frame_entry(0, 3, 65),
    "offset over another": frame_entry(1, 3, 64),
    "length beyond the pack": frame_entry(4, 4, 2**50),
    "length negative": frame_entry(0, 4, -1),
    "checksum too short": frame_entry(0, 5, "ab"),
    "checksum in capitals": frame_entry(0, 5, "AB" * 16),
    "changes fractional": frame_entry(0, 6, 0.5),
    "box a number": frame_entry(1, 7, 3),
    "box odd": frame_entry(1, 7, [1, 2, 3]),
    "box of strings": frame_entry(1, 7, ["1", "2"]),
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_index_is_refused(pack, forgery):
    body = forge(pack, forgery)
    with pytest.raises(BadPayload):
        check_pack(body, canonical.content_id(body))


def test_an_index_is_canonical_json(pack):
    assert forge(pack, lambda item: None) == pack.body


def test_an_index_that_unpacks_to_more_than_it_says_is_refused(pack):
    offset = pack.index[0]
    stored = packs.zstd.compress(bytes(1 << 20))
    for unpacked in (5, packs.MAX_INDEX_BYTES, packs.MAX_INDEX_BYTES + 1, 0):
        trailer = packs._TRAILER.pack(
            offset, len(stored), unpacked, packs.blake3(stored).digest(length=16), packs.MAGIC
        )
        with pytest.raises(BadPayload):
            read_index(stored + trailer, offset + len(stored) + len(trailer))


@given(st.integers(0, len(CHANGES) - 2), st.data())
def test_a_frame_with_any_damage_is_refused(number, data):
    pack = make_pack()
    frame = pack.frames[number]
    payload = bytearray(payload_of(pack.body, frame))
    how = data.draw(st.sampled_from(["flip", "cut", "append"]))
    if how == "flip":
        payload[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    elif how == "cut":
        del payload[data.draw(st.integers(0, len(payload) - 1)) :]
    else:
        payload += os.urandom(3)
    with pytest.raises(BadPayload):
        open_frame(payload, frame, LAYOUT)
    with pytest.raises(BadPayload):
        check_payload(payload, frame)


@pytest.mark.parametrize(
    ("place", "box", "changes"),
    [
        (5, None, 1),
        (2, None, 1),  # tied to another
        (0, None, 129),
        (0, Box((0,), (16,)), 1),
        (0, Box((8, 0), (1, 16)), 1),
        (0, Box((0, 0), (0, 16)), 0),
        (4, None, 0),  # without lanes
    ],
)
def test_frames_that_the_layout_has_no_room_for_are_refused(place, box, changes):
    payload = b""
    frame = Frame(place, box, "sparse", "add", 64, 0, packs.blake3(payload).digest(length=16), changes)
    with pytest.raises(BadPayload):
        open_frame(payload, frame, LAYOUT)


def test_headers_count_lanes_not_elements():
    frame = Frame(3, None, "raw", "add", 64, 16, bytes(16), 2)
    assert (frame_header(frame, LAYOUT).num_lanes, frame_header(frame, LAYOUT).lane_bytes) == (2, 8)


def test_a_codec_of_a_later_release_is_named():
    payload = b"future"
    frame = Frame(0, None, "quantum", "add", 64, 6, packs.blake3(payload).digest(length=16), 1)
    with pytest.raises(UnknownCodec, match="quantum"):
        open_frame(payload, frame, LAYOUT)
