"""What is exported is byte for byte what was imported; and real software reads it."""

import json
import shutil
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import deltavc
from deltavc.errors import BadCheckpoint, BadDelta
from tests.interchange.receiver import split
from tests.states import DTYPES, random_bits, same
from tests.weights.samples import contents

HELD = sorted(set(DTYPES) - {"complex128", "float4_e2m1fn_x2"})


@pytest.fixture(scope="module")
def repo(tmp_path_factory):
    with deltavc.init(tmp_path_factory.mktemp("export") / "repo") as repo:
        yield repo


def imported(repo, folder, **told):
    """The version that a checkpoint becomes on a branch of its own."""
    branch = f"b{len(repo.branches())}"
    (taken,) = deltavc.import_checkpoints(repo, folder, branch, **told).checkpoints
    return taken.version


@settings(max_examples=12)
@given(
    st.dictionaries(st.text("abc.µ", min_size=1, max_size=6), st.sampled_from(HELD), min_size=1, max_size=5),
    st.none() | st.dictionaries(st.text("xyé", max_size=3), st.text(max_size=4), max_size=3),
    st.integers(0, 1000),
)
def test_a_file_goes_through_byte_for_byte(repo, tmp_path_factory, names, metadata, seed):
    at = tmp_path_factory.mktemp("x")
    state = {name: random_bits(dtype, (seed % 4, 3), seed) for name, dtype in names.items()}
    save_file(state, at / "step-1.safetensors", metadata=metadata)
    deltavc.export(repo, imported(repo, at / "step-1.safetensors"), at / "out")
    before, after = ((folder / "step-1.safetensors").read_bytes() for folder in (at, at / "out"))
    assert split(after) == split(before)
    if len(metadata or {}) < 2:  # the library writes more of them in any order
        assert after == before


def test_a_model_that_transformers_saved_goes_through_byte_for_byte_and_loads(repo, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=16, dtype="bfloat16")
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config).to(torch.bfloat16)
    folder = tmp_path / "run" / "checkpoint-7"
    model.save_pretrained(folder, max_shard_size="40kB")
    assert (folder / "model.safetensors.index.json").exists()
    version = imported(repo, tmp_path / "run", files="all")
    done = deltavc.export(repo, version, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(folder)
    assert done.num_files == len(contents(folder))
    deltavc.export(repo, version, tmp_path / "again", max_shard=25_000)
    for out in ("out", "again"):
        found = GPT2LMHeadModel.from_pretrained(tmp_path / out, dtype=torch.bfloat16)
        assert same(dict(found.state_dict()), dict(model.state_dict()))
    index = json.loads((tmp_path / "again" / "model.safetensors.index.json").read_text())
    before = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"] == before["metadata"]
    assert index["weight_map"] != before["weight_map"]
    assert index["weight_map"].keys() == before["weight_map"].keys()


def test_the_metadata_of_headers_is_kept_in_new_shards(repo, tmp_path):
    state = {"a": torch.ones(100), "b": torch.ones(100), "c": torch.ones(3)}
    (tmp_path / "step-1").mkdir()
    save_file(state, tmp_path / "step-1" / "model.safetensors", metadata={"format": "pt", "by": "me"})
    version = imported(repo, tmp_path / "step-1")
    deltavc.export(repo, version, tmp_path / "out", max_shard=400)
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) == 3
    assert all(b'"by":"me"' in file.read_bytes() for file in files)
    assert same({name: tensor for file in files for name, tensor in load_file(file).items()}, state)


def test_weights_that_came_from_no_file_are_laid_out_as_usual(repo, tmp_path):
    version = repo.commit({"w": (w := torch.ones(3)), "v": w}, "live", files={"config.json": b"{}"}, parents=[])
    deltavc.export(repo, version.id, tmp_path / "out")
    assert set(contents(tmp_path / "out")) == {"model.safetensors", "config.json"}
    with pytest.raises(BadCheckpoint, match="not empty"):
        deltavc.export(repo, version.id, tmp_path / "out")
    deltavc.export(repo, version.id, tmp_path / "out", overwrite=True)


def test_a_checksum_that_takes_a_package_says_so_where_it_is_not_installed(repo, tmp_path, monkeypatch):
    repo.commit({"w": torch.ones(30)}, "sums", parents=[])
    repo.commit({"w": torch.zeros(30)}, "sums")
    deltavc.export(repo, "sums~1", tmp_path / "base")
    deltavc.export_deltas(repo, "sums~1", "sums", tmp_path / "deltas")
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(BadDelta, match="pip install xxhash, or take another checksum"):
        deltavc.export_deltas(repo, "sums~1", "sums", tmp_path / "other")
    assert not any((tmp_path / "other").iterdir())
    with pytest.raises(BadDelta, match="for which xxhash has to be installed: pip install xxhash"):
        deltavc.import_deltas(repo, tmp_path / "deltas", tmp_path / "base", "sums-in")
    shutil.rmtree(tmp_path / "deltas")
    deltavc.export_deltas(repo, "sums~1", "sums", tmp_path / "deltas", algorithm="adler32")
    deltavc.import_deltas(repo, tmp_path / "deltas", tmp_path / "base", "sums-in")
    with pytest.raises(ValueError, match="none of xor"):
        deltavc.export_deltas(repo, "sums~1", "sums", tmp_path / "deltas", encoding="zip")
