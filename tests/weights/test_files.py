"""Checkpoints are opened exactly, or refused with the reason."""

import contextlib
import json
import os
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from deltavc.errors import BadCheckpoint, InputError, UnsupportedDtype
from deltavc.weights.files import open_checkpoint
from tests.weights.samples import IN_SAFETENSORS, every_bit_pattern, same_bits, write_raw


def shard(folder, names, metadata=None):
    """Tensors spread over files as `names` says: file to tensor names."""
    tensors = {}
    for file, members in names.items():
        part = {name: torch.randn(3) for name in members}
        save_file(part, folder / file, metadata=metadata)
        tensors |= part
    return tensors


def index(folder, weight_map, name="model.safetensors.index.json", **content):
    (folder / name).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map, **content}))


def reason(path):
    with pytest.raises(BadCheckpoint) as caught:
        open_checkpoint(path)
    return str(caught.value)


@pytest.mark.parametrize("dtype", IN_SAFETENSORS)
def test_every_dtype_is_read_bit_for_bit_from_what_the_library_wrote(tmp_path, dtype):
    tensor = every_bit_pattern(dtype)
    save_file({"w": tensor}, tmp_path / "a.safetensors")
    checkpoint = open_checkpoint(tmp_path / "a.safetensors")
    assert same_bits(checkpoint.load("w"), tensor)
    assert [(spec.dtype, spec.shape) for spec in checkpoint.layout.tensors] == [(dtype, tuple(tensor.shape))]


def test_a_single_file_iterates_in_name_order(tmp_path):
    tensors = {"b": torch.ones(2, dtype=torch.float64), "a": torch.tensor(3), "c": torch.zeros(0, 4)}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(str(tmp_path / "x.safetensors"))
    assert [name for name, _ in checkpoint] == ["a", "b", "c"]
    assert all(same_bits(tensor, tensors[name]) for name, tensor in checkpoint)
    assert checkpoint.source == {
        "single": True,
        "index": None,
        "files": [{"name": "x.safetensors", "metadata": {"format": "pt"}}],
        "tensors": None,
    }
    assert checkpoint.extras == {}


def test_loading_twice_maps_the_same_pages(tmp_path):
    save_file({"w": torch.ones(1000)}, tmp_path / "x.safetensors")
    checkpoint = open_checkpoint(tmp_path / "x.safetensors")
    assert checkpoint.load("w").data_ptr() == checkpoint.load("w").data_ptr()


def test_a_sharded_directory_says_how_its_tensors_lie(tmp_path):
    tensors = shard(tmp_path, {"m-1.safetensors": ["a", "c"], "m-2.safetensors": ["b"]}, {"format": "pt"})
    index(tmp_path, {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-1.safetensors"})
    checkpoint = open_checkpoint(tmp_path)
    assert all(same_bits(tensor, tensors[name]) for name, tensor in checkpoint)
    assert checkpoint.source == {
        "single": False,
        "index": {"name": "model.safetensors.index.json", "metadata": {"total_size": 1}},
        "files": [
            {"name": "m-1.safetensors", "metadata": {"format": "pt"}},
            {"name": "m-2.safetensors", "metadata": {"format": "pt"}},
        ],
        "tensors": [0, 1, 0],
    }


def test_several_files_need_no_index_when_no_name_is_in_two(tmp_path):
    shard(tmp_path, {"1.safetensors": ["a"], "2.safetensors": ["b"]})
    assert [name for name, _ in open_checkpoint(tmp_path)] == ["a", "b"]
    shard(tmp_path, {"3.safetensors": ["b"]})
    assert reason(tmp_path).endswith("tensor 'b' is in both 2.safetensors and 3.safetensors")


def test_shards_that_say_there_are_more_of_them_need_those_or_an_index(tmp_path):
    for name, tensor in (("model-00001-of-00003", "a"), ("model-00003-of-00003", "b")):
        save_file({tensor: torch.ones(2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(BadCheckpoint, match="2 of the 3 files model-00001-of-00003"):
        open_checkpoint(tmp_path)
    save_file({"c": torch.ones(2)}, tmp_path / "model-00002-of-00003.safetensors")
    assert open_checkpoint(tmp_path).layout.place.keys() == {"a", "b", "c"}


def test_extras_are_the_files_that_are_not_weights(tmp_path):
    shard(tmp_path, {"model.safetensors": ["a"]})
    kept = ["config.json", "tokenizer/vocab.txt", "README.md", "nested/deep/x", "tokenizer/special.index.json"]
    left = [".hidden", ".git/config", ".deltavc/config.toml", "old.bin", "sub/x.safetensors", "a.PT", "m.gguf"]
    left += ["onnx/model.onnx", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack"]
    for name in kept + left:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    extras = open_checkpoint(tmp_path).extras
    assert sorted(extras) == sorted(kept)
    assert all(path.read_text() == name for name, path in extras.items())


def test_links_that_leave_the_directory_are_refused(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    shard(model, {"model.safetensors": ["a"]})
    (tmp_path / "secret").write_text("x")
    (model / "real.json").write_text("{}")
    (model / "inside.json").symlink_to("real.json")
    assert list(open_checkpoint(model).extras) == ["inside.json", "real.json"]
    (model / "config.json").symlink_to(tmp_path / "secret")
    assert "config.json: is a link that leaves the directory" in reason(model)
    (model / "config.json").unlink()
    (model / "folder").symlink_to(tmp_path)
    assert "is a link to a folder" in reason(model)
    (model / "folder").unlink()
    (model / "gone").symlink_to("nothing")
    assert "a link to nothing" in reason(model)
    (model / "gone").unlink()
    os.mkfifo(model / "pipe")
    assert "is not a plain file" in reason(model)


def test_a_hugging_face_cache_is_links_to_its_own_blobs(tmp_path):
    snapshot = tmp_path / "models--x" / "snapshots" / "abc"
    blobs = tmp_path / "models--x" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    save_file({"a": torch.ones(1)}, blobs / "1")
    (blobs / "2").write_text("{}")
    (snapshot / "model.safetensors").symlink_to("../../blobs/1")
    (snapshot / "config.json").symlink_to("../../blobs/2")
    assert list(open_checkpoint(snapshot).extras) == ["config.json"]


def test_an_index_that_does_not_fit_its_files_names_what_is_wrong(tmp_path):
    shard(tmp_path, {"1.safetensors": ["a"], "2.safetensors": ["b"]})
    index(tmp_path, {"a": "1.safetensors", "b": "9.safetensors"})
    assert reason(tmp_path).endswith("names files that are not there: 9.safetensors")
    index(tmp_path, {"a": "1.safetensors", "b": "../2.safetensors"})
    assert reason(tmp_path).endswith("names files that are not there: ../2.safetensors")
    index(tmp_path, {"a": "1.safetensors", "b": "2.safetensors"} | {f"t{n}": "1.safetensors" for n in range(9)})
    assert reason(tmp_path).endswith("names tensors that no file has: t0, t1, t2, t3, t4 and 4 more")
    index(tmp_path, {"a": "1.safetensors"})
    assert reason(tmp_path).endswith("does not name tensors that are in the files: b in 2.safetensors")
    index(tmp_path, {"a": "2.safetensors", "b": "2.safetensors"})
    assert reason(tmp_path).endswith("names the wrong file for tensors: a")
    index(tmp_path, {"a": "1.safetensors", "b": "2.safetensors"}, name="other.index.json")
    assert "has several indices" in reason(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'"x"',
        b'{"weight_map": 3}',
        b'{"weight_map": {"a": 1}}',
        b'{"weight_map": {}, "metadata": NaN}',
        b'{"weight_map": {}, "metadata": 1e400}',
        b'{"weight_map": {}, "metadata": 99999999999999999999}',
        b"\xff",
    ],
)
def test_what_is_no_index_is_refused(tmp_path, text):
    shard(tmp_path, {"1.safetensors": ["a"]})
    (tmp_path / "model.safetensors.index.json").write_bytes(text)
    assert "model.safetensors.index.json: " in reason(tmp_path)


def test_a_path_without_a_checkpoint_says_what_is_there(tmp_path):
    assert reason(tmp_path / "gone").endswith("there is no such file or directory")
    assert reason(tmp_path).endswith("is an empty directory")
    (tmp_path / "notes.txt").write_text("x")
    assert reason(tmp_path).endswith("is a directory without weights")
    assert "is neither a .safetensors file nor" in reason(tmp_path / "notes.txt")
    (tmp_path / "model.bin").write_text("x")
    assert "to read model.bin, name the file itself" in reason(tmp_path)
    index(tmp_path, {})
    assert "name the directory it is in" in reason(tmp_path / "model.safetensors.index.json")
    os.mkfifo(tmp_path / "pipe.safetensors")
    assert reason(tmp_path / "pipe.safetensors").endswith("is not a plain file")
    write_raw(tmp_path / "none.safetensors", {})
    assert reason(tmp_path / "none.safetensors").endswith("holds no tensors")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"abc",
        b"\xff" * 8 + b"{}",
        b"\x02" + b"\0" * 7 + b"{",
        b"\x02" + b"\0" * 7 + b"[]",
        b"version https://git-lfs",
    ],
)
def test_a_damaged_file_is_refused_without_a_traceback(tmp_path, body):
    (tmp_path / "x.safetensors").write_bytes(body)
    assert "not a safetensors file, or a damaged one" in reason(tmp_path / "x.safetensors")


@given(st.data())
def test_any_damage_to_a_header_is_refused_or_harmless(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damaged") / "x.safetensors"
    save_file({"a": torch.ones(3), "b": every_bit_pattern("float4_e2m1fn_x2", rows=1)}, path, metadata={"k": "v"})
    body = bytearray(path.read_bytes())
    length = 8 + int.from_bytes(body[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, length - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(body[: data.draw(st.integers(0, len(body)))] if data.draw(st.booleans()) else body)
    with contextlib.suppress(InputError):
        for _, tensor in open_checkpoint(path):
            tensor.clone()


def test_dtypes_without_lanes_are_named(tmp_path):
    write_raw(tmp_path / "x.safetensors", {"w": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}, b"abc")
    with pytest.raises(UnsupportedDtype, match="dtype F6_E2M3 of tensor 'w' is not supported"):
        open_checkpoint(tmp_path / "x.safetensors")
    write_raw(tmp_path / "y.safetensors", {"w": {"dtype": "F4", "shape": [2, 3], "data_offsets": [0, 3]}}, b"abc")
    assert "tensor 'w' has rows of 4-bit elements that end within a byte" in reason(tmp_path / "y.safetensors")


def test_a_pt_file_is_read_with_its_ties(tmp_path):
    shared = every_bit_pattern("bfloat16")
    state = {"b": shared, "a": shared, "view": shared[1:], "c": every_bit_pattern("complex128"), "n": torch.tensor(7)}
    for key in (None, "state_dict", "model"):
        torch.save(state if key is None else {key: state, "step": 3, "opt": {"lr": 0.1}}, tmp_path / "x.pt")
        checkpoint = open_checkpoint(tmp_path / "x.pt")
        assert [spec.tie for spec in checkpoint.layout.tensors] == [None, "a", None, None, None]
        assert all(same_bits(tensor, state[name]) for name, tensor in checkpoint)
        assert checkpoint.source is None


def test_a_pt_file_of_the_old_format_is_read(tmp_path):
    state = {"w": torch.randn(4, 4).t()}
    torch.save(state, tmp_path / "x.bin", _use_new_zipfile_serialization=False)
    assert same_bits(open_checkpoint(tmp_path / "x.bin").load("w"), state["w"])


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("save", [torch.save, lambda state, path: path.write_bytes(pickle.dumps(state))])
def test_pickles_are_never_executed(tmp_path, save):
    save({"w": Payload(str(tmp_path / "executed"))}, tmp_path / "x.pt")
    text = reason(tmp_path / "x.pt")
    assert "pickles are never executed" in text or "is damaged" in text
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([torch.ones(1)], "holds a list"),
        ({}, "is empty"),
        ({"w": torch.ones(1), "step": 3}, "has a int under 'step'"),
        ({1: torch.ones(1)}, "which is not a string"),
        ({"model": {"w": torch.ones(1)}, "ema": {"w": torch.ones(1)}}, "several mappings of tensors ('model', 'ema')"),
        ({"weights": {"w": torch.ones(1)}}, "has a dict under 'weights'"),
        ({"model": {"w": torch.ones(1), "n": 1}}, "has a dict under 'model'"),
    ],
)
def test_a_pt_file_of_another_structure_is_refused(tmp_path, content, says):
    torch.save(content, tmp_path / "x.pt")
    assert says in reason(tmp_path / "x.pt")


@pytest.mark.parametrize("body", [b"", b"abc", b"PK\x03\x04" + b"\0" * 100, b"\x80\x02."])
def test_a_damaged_pt_file_is_refused(tmp_path, body):
    (tmp_path / "x.pt").write_bytes(body)
    assert "x.pt" in reason(tmp_path / "x.pt")


def test_a_truncated_pt_file_is_refused(tmp_path):
    torch.save({"w": torch.randn(1000)}, tmp_path / "x.pt")
    (tmp_path / "x.pt").write_bytes((tmp_path / "x.pt").read_bytes()[:2000])
    assert "x.pt" in reason(tmp_path / "x.pt")
