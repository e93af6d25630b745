"""What is written is what was meant, where it was meant, or nothing."""

import errno
import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from deltavc.errors import BadCheckpoint, LayoutMismatch, StoreDenied, StoreFull
from deltavc.weights.describe import describe
from deltavc.weights.files import open_checkpoint
from deltavc.weights.output import write_checkpoint
from deltavc.weights.shards import plan
from deltavc.weights.state import open_state
from tests.weights.samples import IN_SAFETENSORS, contents, every_bit_pattern, same_bits, zeros


def write(directory, state, **options):
    return write_checkpoint(directory, state.items(), describe(state), **options)


def copy(path, to):
    """A checkpoint in and out again."""
    checkpoint = open_checkpoint(path)
    extras = {name: (lambda out, file=file: out.write(file.read_bytes())) for name, file in checkpoint.extras.items()}
    return write_checkpoint(to, checkpoint, checkpoint.layout, checkpoint.source, extras)


def some(**tensors):
    return tensors or {"a": torch.randn(3), "b": torch.randn(2, 2)}


def test_every_dtype_is_written_bit_for_bit_and_read_by_the_library(tmp_path):
    state = {dtype: every_bit_pattern(dtype) for dtype in IN_SAFETENSORS}
    state |= {f"{dtype}/empty": zeros(dtype, (0, 3)) for dtype in IN_SAFETENSORS}
    state |= {f"{dtype}/one": zeros(dtype, ()) for dtype in IN_SAFETENSORS if "float4" not in dtype}
    assert write(tmp_path / "out", state) == [tmp_path / "out" / "model.safetensors"]
    for found in (load_file(tmp_path / "out" / "model.safetensors"), dict(open_checkpoint(tmp_path / "out"))):
        assert found.keys() == state.keys()
        assert all(same_bits(found[name], state[name]) for name in state)


def test_the_file_is_the_one_the_library_would_write(tmp_path):
    state = {f"{dtype}\n{mark}": every_bit_pattern(dtype) for dtype in IN_SAFETENSORS for mark in ('ä\x00"\\/', "z")}
    write(tmp_path / "out", state)
    save_file(state, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()


def test_names_of_any_characters_up_to_a_thousand_never_become_paths(tmp_path):
    names = [
        "../../x",
        "/etc/passwd",
        "a\x00b",
        "\u202e",
        "😀" * 1000,
        "C:\\x",
        " ",
        ".",
        "\x7f\r\n",
        "model.safetensors",
    ]
    state = {name: torch.full((2,), place) for place, name in enumerate(names)}
    write(tmp_path / "out", state)
    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(tmp_path / "out") == ["model.safetensors"]
    assert all(same_bits(tensor, state[name]) for name, tensor in open_checkpoint(tmp_path / "out"))


def test_a_directory_comes_back_file_for_file(tmp_path):
    here = tmp_path / "in"
    (here / "tokenizer").mkdir(parents=True)
    first, second = some(), {"c": every_bit_pattern("bfloat16"), "d": torch.tensor(1)}
    save_file(first, here / "m-00001-of-00002.safetensors", metadata={"format": "pt"})
    save_file(second, here / "m-00002-of-00002.safetensors")
    weight_map = {name: f"m-0000{1 + (name in second)}-of-00002.safetensors" for name in "abcd"}
    total = sum(tensor.nbytes for tensor in (*first.values(), *second.values()))
    index = {"metadata": {"note": "x", "total_size": total}, "weight_map": weight_map}
    (here / "m.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    (here / "config.json").write_text("{}")
    (here / "tokenizer" / "vocab.txt").write_text("a b")
    written = copy(here, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(here)
    assert sorted(written) == sorted(path for path in (tmp_path / "out").rglob("*") if path.is_file())


def test_a_single_file_comes_back_under_its_name(tmp_path):
    save_file(some(), tmp_path / "lora.safetensors", metadata={"rank": "8"})
    copy(tmp_path / "lora.safetensors", tmp_path / "out")
    assert contents(tmp_path / "out") == {"lora.safetensors": (tmp_path / "lora.safetensors").read_bytes()}


def test_without_a_source_large_states_are_cut_into_shards():
    layout = describe({name: torch.zeros(3) for name in "abcde"})
    planned = plan("out", layout, None, max_shard=24)
    assert planned.names == [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)] + [
        "model.safetensors.index.json"
    ]
    assert [[spec.name for spec in shard.specs] for shard in planned.shards] == [["a", "b"], ["c", "d"], ["e"]]
    assert json.loads(planned.index_text())["metadata"] == {"total_size": 60}
    assert len(plan("out", layout, None, max_shard=4).shards) == 5


def test_tied_tensors_are_written_under_each_name(tmp_path):
    shared = torch.randn(4, 4)
    state = {"head": shared, "embed": shared, "w": torch.ones(2)}
    layout = describe(state)
    write_checkpoint(tmp_path / "all", state.items(), layout)
    write_checkpoint(tmp_path / "stored", open_state(state).tensors.items(), layout)
    assert contents(tmp_path / "all") == contents(tmp_path / "stored")
    found = dict(open_checkpoint(tmp_path / "all"))
    assert all(same_bits(found[name], state[name]) for name in state)


@pytest.mark.parametrize("gathered", [16, 100, 1 << 20])
def test_strides_do_not_matter(tmp_path, monkeypatch, gathered):
    monkeypatch.setattr("deltavc.weights.output.GATHERED_BYTES", gathered)
    state = {
        "transposed": torch.randn(7, 5).t(),
        "expanded": torch.randn(1, 3).expand(4, 3),
        "channels": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "strided": torch.randn(100)[::3],
        "conjugate": torch.randn(3, 5, dtype=torch.complex64).conj(),
        "wide": torch.randn(60, 2).t()[:1],
    }
    write(tmp_path / "out", state)
    assert all(same_bits(tensor, state[name]) for name, tensor in open_checkpoint(tmp_path / "out"))


def test_tensors_that_the_format_cannot_hold_are_all_named_before_anything_is_written(tmp_path):
    state = {
        "c": torch.zeros(2, dtype=torch.complex128),
        "f": zeros("float4_e2m1fn_x2", ()),
        "__metadata__": torch.zeros(1),
        "ok": torch.zeros(1),
    }
    with pytest.raises(BadCheckpoint) as caught:
        write(tmp_path / "out", state)
    assert all(f"{name!r} (the format" in str(caught.value) for name in ("c", "f", "__metadata__"))
    assert "ok" not in str(caught.value)
    assert os.listdir(tmp_path) == []


HOSTILE = ["", ".", "..", "../x", "a/../../x", "/etc/x", "a//b", "a/", "C:x", "a\\b", "a\x00b", "a\nb", ".git/hooks/x"]
HOSTILE += [
    "x" * 256,
    "a/" * 500 + "b",
    "\ud800",
    "\u00e9" * 200,
    "model.safetensors",
    "model.safetensors/x",
    "y.safetensors",
]
HOSTILE += ["a.index.json"]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_hostile_names_of_extras_are_refused_before_anything_is_written(tmp_path, name):
    with pytest.raises(BadCheckpoint, match="cannot write"):
        write(tmp_path / "out", some(), extras={name: lambda out: out.write(b"x")})
    assert os.listdir(tmp_path) == []


def test_a_file_and_a_folder_of_one_name_are_refused(tmp_path):
    with pytest.raises(BadCheckpoint, match="another file is in its place"):
        write(tmp_path / "out", some(), extras={"a": lambda out: None, "a/b": lambda out: None})
    assert os.listdir(tmp_path) == []


GOOD = {"single": False, "index": None, "files": [{"name": "m.safetensors", "metadata": None}], "tensors": None}


@pytest.mark.parametrize(
    "change",
    [{"files": [{"name": name, "metadata": None}]} for name in ("../m.safetensors", "/m.safetensors", "m", "", None, 3)]
    + [
        {"files": [{"name": name, "metadata": None}]}
        for name in (".m.safetensors", "a\\m.safetensors", "a\x00.safetensors")
    ]
    + [{"files": files} for files in ([], None, {}, "x", [3], [{}], GOOD["files"] * 2)]
    + [{"files": [{"name": "m.safetensors", "metadata": metadata}]} for metadata in ("x", {"a": 1}, ["a"])]
    + [{"tensors": tensors} for tensors in ([0], [0, 0, 0], [0, 1], [0, -1], [0, "0"], [0, True], "00", 3, {})]
    + [{"files": GOOD["files"] * 2, "tensors": [0, 1]}]
    + [
        {"index": index}
        for index in ("x", {}, {"name": "../x.index.json", "metadata": None}, {"name": "x", "metadata": None})
    ]
    + [{"index": {"name": "x.index.json", "metadata": [1]}}],
    ids=ascii,
)
def test_a_hostile_source_is_refused_before_anything_is_written(tmp_path, change):
    with pytest.raises(BadCheckpoint):
        write(tmp_path / "out", some(), source=GOOD | change)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("missing", sorted(GOOD.keys() - {"single"}))
def test_a_source_that_lacks_a_part_is_refused(tmp_path, missing):
    with pytest.raises(BadCheckpoint, match="damaged"):
        write(tmp_path / "out", some(), source={key: value for key, value in GOOD.items() if key != missing})


def test_a_directory_with_files_in_it_is_kept_unless_asked(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(BadCheckpoint, match="is not empty"):
        write(tmp_path, some())
    with pytest.raises(BadCheckpoint, match="is not a directory"):
        write(tmp_path / "notes", some())
    assert contents(tmp_path) == {"notes": b"mine"}


def test_overwriting_leaves_no_old_weights_and_no_other_file_touched(tmp_path):
    (tmp_path / "notes").write_text("mine")
    for name in ("model-00001-of-00002.safetensors", "model.safetensors.index.json", "config.json"):
        (tmp_path / name).write_text("old")
    state = some()
    write(tmp_path, state, extras={"config.json": lambda out: out.write(b"new")}, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["config.json", "model.safetensors", "notes"]
    assert (tmp_path / "config.json").read_text() == "new"
    assert all(same_bits(tensor, state[name]) for name, tensor in open_checkpoint(tmp_path))


def test_overwriting_does_not_follow_links_out_of_the_directory(tmp_path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "x").write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    (out / "sub").symlink_to(tmp_path / "victim")
    (out / "config.json").symlink_to(tmp_path / "victim" / "x")
    with pytest.raises(BadCheckpoint, match="sub is a link"):
        write(out, some(), extras={"sub/x": lambda file: file.write(b"bad")}, overwrite=True)
    write(out, some(), extras={"config.json": lambda file: file.write(b"new")}, overwrite=True)
    assert (tmp_path / "victim" / "x").read_text() == "mine"
    assert not (out / "config.json").is_symlink()


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError(errno.ENOSPC, "full"), StoreFull),
        (OSError(errno.EACCES, "no"), StoreDenied),
        (OSError(errno.EIO, "broken"), BadCheckpoint),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (ZeroDivisionError(), ZeroDivisionError),
    ],
    ids=ascii,
)
def test_a_failure_leaves_nothing_half_written(tmp_path, error, raised, exists):
    def fail(out):
        out.write(b"half")
        raise error

    target = tmp_path / "deep" / "out"
    if exists:
        target.mkdir(parents=True)
        save_file({"old": torch.ones(1)}, target / "model.safetensors")
    before = contents(tmp_path)
    with pytest.raises(raised):
        write(target, some(), extras={"config.json": fail}, overwrite=True)
    assert contents(tmp_path) == before
    assert (tmp_path / "deep").exists() == exists


def test_tensors_that_are_not_the_layouts_are_refused(tmp_path):
    layout = describe({"a": torch.zeros(2), "b": torch.zeros(2)})
    a, b = ("a", torch.zeros(2)), ("b", torch.zeros(2))
    for tensors, says in (
        ([a], "'b' is missing"),
        ([a, a, b], "'a' came twice"),
        ([a, b, ("c", torch.zeros(2))], "'c' is not in the layout"),
        ([a, ("b", torch.zeros(3))], "'b' is torch.float32"),
        ([a, ("b", torch.zeros(2, dtype=torch.int32))], "'b' is torch.int32"),
    ):
        with pytest.raises(LayoutMismatch, match=says):
            write_checkpoint(tmp_path / "out", tensors, layout)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_reported_and_cleaned_up(tmp_path):
    code = f"""
import resource, signal, torch, os
from deltavc.errors import BadCheckpoint
from deltavc.weights.describe import describe
from deltavc.weights.output import write_checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
state = {{"a": torch.zeros(1000)}}
try:
    write_checkpoint({str(tmp_path / "out")!r}, state.items(), describe(state))
except BadCheckpoint as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "cannot be written: File too large" in done.stdout
    assert os.listdir(tmp_path) == []


def test_metadata_of_a_file_comes_back(tmp_path):
    metadata = {"format": "pt", "ünï": "😀\n\x00", "": ""}
    save_file(some(), tmp_path / "x.safetensors", metadata=metadata)
    copy(tmp_path / "x.safetensors", tmp_path / "out")
    with safe_open(tmp_path / "out" / "x.safetensors", "pt") as file:
        assert file.metadata() == metadata
