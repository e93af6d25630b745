"""docs/format.md says what is so: its examples hold, and codecs written from it read what the library writes."""

import ast
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deltavc import canonical, fingerprints
from deltavc.change import Dense, Sparse
from deltavc.delta import codecs
from deltavc.delta.codecs.base import FrameHeader
from deltavc.delta.pack import check_pack
from deltavc.layout import LANE_BYTES, Layout
from deltavc.lineage.records import EdgeRecord, VersionRecord, ref_entry_key
from tests.format import independent_reader as page

PAGE = Path(__file__).parents[2] / "docs" / "format.md"


def read_examples():
    for kind, text in re.findall(r"^```example (\S+)\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S):
        fields = {}
        for line in text.splitlines():
            key, _, value = line.partition(" ")
            fields.setdefault(key, []).append(value.strip())
        yield kind, fields


EXAMPLES = list(read_examples())


def of_kind(*kinds):
    found = [(kind, fields) for kind, fields in EXAMPLES if kind in kinds]
    assert found
    return pytest.mark.parametrize(("kind", "example"), found, ids=[kind for kind, _ in found])


def unhex(lines):
    return bytes.fromhex("".join(lines))


def words(lines):
    return " ".join(lines).split()


def test_every_example_is_of_a_kind_that_is_checked():
    known = {"hash", "json", "layout", "mix64", "root", "version", "edge", "ref", "pack", *page.CODECS}
    assert {kind for kind, _ in EXAMPLES} == known


@of_kind("hash", "layout")
def test_hashes_are_of_their_bytes(kind, example):
    assert page.hash_of(unhex(example["bytes"])) == example["hash"][0]


@of_kind("json")
def test_json_is_canonical(kind, example):
    assert canonical.dumps(json.loads(example["value"][0])) == unhex(example["bytes"])


@of_kind("layout")
def test_layouts(kind, example):
    body = unhex(example["bytes"])
    assert body == "".join(example["text"]).encode()
    assert page.Layout(body).id == Layout.parse(body).id == example["hash"][0]


@of_kind("version", "edge")
def test_records(kind, example):
    body = "".join(example["text"]).encode()
    record = (VersionRecord if kind == "version" else EdgeRecord).parse(body)
    assert page.hash_of(body) == record.id == example["hash"][0]


@of_kind("ref")
def test_refs(kind, example):
    (name,), (key,) = example["name"], example["key"]
    assert key == ref_entry_key(name, 1) == f"refs/{page.short_hash(name.encode())}/000000000001.json"


@of_kind("mix64")
def test_mix64(kind, example):
    indices = np.array([int(index) for index in words(example["index"])])
    values = np.array([int(lane, 16) for lane in words(example["lane"])])
    assert [f"{mixed:016x}" for mixed in page.mix64(indices, values)] == words(example["mixed"])


@of_kind("root")
def test_roots(kind, example):
    body = unhex(next(fields for kind, fields in EXAMPLES if kind == "layout")["bytes"])
    lanes = {name: np.array([int(lane, 16) for lane in words(example[name])]) for name in ("embed", "scale")}
    prints = {name: page.fingerprint(array) for name, array in lanes.items()}
    assert [f"{value:016x}" for value in prints.values()] == words(example["prints"])
    assert page.root(page.Layout(body), prints) == example["root"][0]
    assert fingerprints.root(Layout.parse(body), prints) == example["root"][0]


@of_kind("pack")
def test_packs(kind, example):
    (pack,), index = example.pop("hash"), json.loads("".join(example.pop("index")))
    offsets = [int(offset, 16) for offset in example]
    body = unhex(line for lines in example.values() for line in lines)
    assert offsets == list(range(0, len(body), 32))
    layout, (offset, nbytes, unpacked), frames = page.read_pack(body)
    assert (page.hash_of(body), layout) == (pack, index["layout"])
    assert json.loads(page.unzstd(body[offset : offset + nbytes], unpacked)) == index
    assert [(f.offset, f.nbytes) for f in check_pack(body, pack).frames] == [tuple(f[3:5]) for f in index["frames"]]
    tensors = page.Layout(unhex(next(fields for kind, fields in EXAMPLES if kind == "layout")["bytes"]))
    lanes = {"embed": np.zeros((2, 2), np.uint16)}
    for frame in frames:
        page.apply_frame(frame, tensors, lanes, True)
    assert lanes["embed"].tolist() == [[0x3F80, 0xC000], [0x3F00, 0xFFFF]]


@of_kind(*page.CODECS)
def test_payloads(kind, example):
    n, w, c = (int(number) for number in re.fullmatch(r"n=(\d+) w=(\d+) c=(\d+)", example["box"][0]).groups())
    payload = unhex(example["payload"])
    told = re.sub(r"(\S+) repeated (\d+) times", lambda m: " ".join([m[1]] * int(m[2])), example["values"][0])
    wanted = [int(value) for value in told.split()]
    positions, values = page.CODECS[kind](payload, n, w, c)
    assert values.view(f"i{w}").tolist() == wanted
    change = codecs.codec(kind).decode(payload, FrameHeader(n, w, "add", c))
    assert change.values.tolist() == wanted
    if kind == "sparse":
        assert positions == change.positions.tolist() == [int(place) for place in words(example["positions"])]


def test_the_page_names_every_dtype_and_its_lane():
    assert page.LANE_BYTES == LANE_BYTES
    table = re.search(r"^\| lane bytes .*?\n\n", PAGE.read_text("utf-8"), re.M | re.S)[0]
    rows = re.findall(r"^\| (\d) \| (.*) \|$", table, re.M)
    assert {name: int(width) for width, names in rows for name in re.findall("`(.*?)`", names)} == LANE_BYTES


def test_the_page_names_every_codec():
    assert set(codecs.names()) == set(page.CODECS)
    assert set(re.findall(r"^### `(.*?)`", PAGE.read_text("utf-8"), re.M)) == set(page.CODECS)


def test_the_independent_reader_is_independent():
    tree = ast.parse(Path(page.__file__).read_text("utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names == {"blake3", "dataclasses", "json", "math", "numpy", "os", "re", "zstandard"}


@given(
    width=st.sampled_from((1, 2, 4, 8)),
    num_lanes=st.integers(1, 2000),
    density=st.sampled_from((0.0, 0.001, 0.02, 0.3, 1.0)),
    spread=st.sampled_from((1, 2, 40, 1 << 62)),
    operation=st.sampled_from(("add", "xor")),
    seed=st.integers(0, 2**32 - 1),
)
def test_codecs_of_the_page_read_what_the_library_writes(width, num_lanes, density, spread, operation, seed):
    random = np.random.default_rng(seed)
    values = random.integers(-spread, spread + 1, num_lanes).astype(f"i{width}")
    values[random.random(num_lanes) >= density] = 0
    positions = np.flatnonzero(values)
    dense = Dense(operation, torch.from_numpy(values))
    sparse = Sparse(operation, torch.from_numpy(positions), torch.from_numpy(values[positions]))
    for name, decode in page.CODECS.items():
        change = sparse if name == "sparse" else dense
        payload = codecs.codec(name).encode(change, num_lanes)
        found, lanes = decode(payload, num_lanes, width, change.num_changes)
        assert lanes.view(f"i{width}").tolist() == change.values.tolist()
        assert found is None or found == positions.tolist()
