"""Checkout into live tensors, of parts, onto paths: what fits is written exactly, and what does not changes nothing."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import deltavc
from deltavc.errors import BadCheckpoint, BadState, LayoutMismatch, UnknownRef, WrongWeights
from tests import states


@pytest.fixture
def repo(tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        yield repo


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(30, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 30, bias=False)
        self.head.weight = self.embed.weight


def test_a_module_is_written_in_place_and_stays_tied(repo):
    model, expected = Model(), {}
    with repo.writer() as writer:
        for step in range(3):
            with torch.no_grad():
                for tensor in [*model.parameters(), *model.buffers()]:
                    tensor.add_(1)
            writer.commit(model, step=step)
            expected[step] = states.copied(model.state_dict())
    storages = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    for step in (0, 2, 1):
        found = repo.checkout(f"step:{step}", into=model)
        assert states.same(model.state_dict(), expected[step])
        assert found["embed.weight"] is model.embed.weight
        assert found["embed.weight"].requires_grad
    assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == storages
    assert model.head.weight is model.embed.weight


def test_live_tensors_may_have_any_strides(repo):
    state = {"image": states.random_bits("float32", (2, 3, 4, 5)), "bytes": states.random_bits("float8_e5m2", (6, 6))}
    state |= {"wide": states.random_bits("complex128", (4, 5)), "scalar": states.random_bits("bfloat16", ())}
    repo.commit(state)
    repo.commit(states.stepped(state, 1))
    repo.commit(state)
    around = torch.full((4, 6, 4, 5), 7.0)
    live = {
        "image": around[::2, ::2].permute(0, 1, 2, 3),
        "bytes": torch.zeros(6, 6, dtype=torch.uint8).view(torch.float8_e5m2).t(),
        "wide": torch.zeros(5, 4, dtype=torch.complex128).t(),
        "scalar": torch.zeros(3, dtype=torch.bfloat16)[1],
    }
    repo.checkout(into=live)
    assert states.same(live, state)
    around[::2, ::2] = 7.0
    assert bool((around == 7.0).all())
    channels_last = state["image"].clone(memory_format=torch.channels_last).zero_()
    repo.checkout(into={**live, "image": channels_last})
    assert states.same_tensor(channels_last, state["image"])
    assert channels_last.is_contiguous(memory_format=torch.channels_last)


def test_names_tied_in_the_version_are_filled_where_the_live_state_holds_them_apart(repo):
    weight = torch.randn(5)
    repo.commit({"a": weight, "b": weight, "c": torch.randn(2)})
    live = {name: torch.zeros(2 if name == "c" else 5) for name in "abc"}
    repo.checkout(into=live)
    assert torch.equal(live["a"], weight)
    assert torch.equal(live["b"], weight)
    part = {"b": torch.zeros(5)}
    repo.checkout(into=part, tensors=["b"])
    assert torch.equal(part["b"], weight)


def unfit_states():
    good = {"a": torch.full((4,), 9.0), "b": torch.full((2, 3), 9.0), "z": torch.full((2,), 9.0, dtype=torch.complex64)}
    shared = torch.full((4,), 9.0)
    return {
        "missing": ({name: good[name] for name in "az"}, "'b' is in the version but not"),
        "extra": ({**good, "x": torch.ones(1)}, "'x' is in the live state but not"),
        "retyped": ({**good, "b": good["b"].double()}, "'b' is float64"),
        "reshaped": ({**good, "b": good["b"].reshape(3, 2)}, "'b' is float32 \\[3, 2\\]"),
        "tied": ({**good, "a": shared, "aa": shared}, "'aa' shares memory with 'a'"),
        "expanded": ({**good, "a": torch.tensor(9.0).expand(4)}, "'a' is expanded"),
        "conjugate": ({**good, "z": good["z"].conj()}, "'z' is a lazy conjugate"),
        "negative": ({**good, "a": torch.full((4,), 9 + 9j).conj().imag}, "'a' is a lazy conjugate or negative"),
    }


@pytest.mark.parametrize("case", unfit_states())
@pytest.mark.parametrize("how", ["checkout", "move", "rollback"])
def test_live_tensors_that_do_not_fit_are_named_and_nothing_is_changed(repo, case, how):
    live, reason = unfit_states()[case]
    names = ["a", "aa", "b", "z"] if case == "tied" else ["a", "b", "z"]
    shapes = {"a": (4,), "aa": (4,), "b": (2, 3)}
    state = {name: torch.randn(shapes[name]) for name in names if name != "z"} | {"z": torch.randn(2) * 1j}
    with repo.writer() as writer:
        first = writer.commit(state)
        last = writer.commit(states.stepped(state, 1))
        before = states.copied(live)
        into = repo.checkout if how == "checkout" else getattr(writer, how)
        with pytest.raises(LayoutMismatch, match=reason):
            into(first.id, into=live)
        assert states.same(live, before)
        assert (writer.version, repo.resolve("main")) == (last.id, last.id)
        writer.commit(state)
        assert states.same(repo.checkout(), state)


@pytest.mark.parametrize("how", ["checkout", "move", "rollback"])
def test_live_tensors_that_overlap_are_noticed(repo, how):
    tied = torch.randn(4)
    state = {"a": tied, "b": tied, "c": torch.randn(4), "d": torch.randn(3, 3)}
    with repo.writer() as writer:
        first = writer.commit(state)
        writer.commit(states.stepped(state, 1))
        into = repo.checkout if how == "checkout" else getattr(writer, how)
        memory = torch.zeros(20)
        fit = {"a": memory[:4], "b": memory[4:8], "c": memory[8:16:2], "d": torch.zeros(3, 3)}
        into(first.id, into=fit)
        assert states.same(fit, state)
        for part in ({"c": memory[2:6]}, {"b": memory[6:10]}, {"d": memory.as_strided((3, 3), (1, 1), 11)}):
            with pytest.raises(WrongWeights):
                into(first.id, into={**fit, **part})
        assert states.same(repo.checkout(first.id), state)


def test_live_tensors_that_overlap_one_they_are_tied_to_are_noticed(repo):
    square = torch.randn(3, 3)
    repo.commit({"a": square, "b": square})
    memory = torch.zeros(20)
    a = memory[:9].view(3, 3)
    for b in (a.T, memory[1:10].view(3, 3), memory[2:11].view(3, 3).T):
        with pytest.raises(WrongWeights):
            repo.checkout(into={"a": a, "b": b})
    b = memory[9:18].view(3, 3).T
    repo.checkout(into={"a": a, "b": b})
    assert torch.equal(a, square)
    assert torch.equal(b, square)


def test_a_part_is_not_written_where_others_would_change_with_it(repo):
    repo.commit({"a": torch.randn(4), "b": torch.randn(4), "c": torch.randn(2)})
    shared = torch.zeros(4)
    for name in "ab":
        with pytest.raises(LayoutMismatch, match="'b' shares memory with 'a'"):
            repo.checkout(into={"a": shared, "b": shared, "c": torch.zeros(2)}, tensors=[name])
    repo.checkout(into={"a": shared, "b": shared, "c": torch.zeros(2)}, tensors=["c"])
    assert not shared.any()


def test_into_something_that_is_no_state_is_refused(repo):
    repo.commit({"a": torch.ones(2)})
    for bad in (5, [("a", torch.zeros(2))], {"a": [0, 0]}, {"a": torch.zeros(2, device="meta")}, {}):
        with pytest.raises(BadState):
            repo.checkout(into=bad)


def test_patterns_choose_tensors_which_are_proven_all_the_same(repo):
    state = {f"layers.{number}.{part}": torch.randn(20) for number in range(12) for part in ("w", "b")}
    with repo.writer() as writer:
        for seed in range(3):
            writer.commit(state, snapshot=seed == 1)
            state = states.stepped(state, seed)
        writer.commit(state)
    for patterns, count in ((["layers.1.*"], 2), (["*.w"], 12), (["*"], 24), (["*.b", "layers.0.w"], 13), ([], 0)):
        found = repo.checkout(tensors=patterns)
        assert len(found) == count
        assert all(states.same_tensor(found[name], state[name]) for name in found)
        live = {name: torch.zeros(20) for name in state}
        repo.checkout(tensors=patterns, into=live)
        expected = {name: state[name] if name in found else torch.zeros(20) for name in state}
        assert states.same(live, expected)
    with pytest.raises(LayoutMismatch, match="matches no tensor"):
        repo.checkout(tensors=["layers.1.*", "layer.*"])


def test_a_name_is_a_pattern_of_itself_whatever_is_in_it(repo):
    state = {"w[0]": torch.ones(1), "w0": torch.zeros(1), "*": torch.full((1,), 2), "w?": torch.full((1,), 3)}
    repo.commit(state)
    for pattern, names in (("w[0]", {"w[0]", "w0"}), ("w?", {"w?", "w0"}), ("*", set(state)), ("w0", {"w0"})):
        assert set(repo.checkout(tensors=[pattern])) == names


def sharded(directory, state):
    """A checkpoint as Hugging Face lays it out, with other files beside."""
    directory.mkdir()
    names = sorted(state)
    parts = {"model-00001-of-00002.safetensors": names[:2], "model-00002-of-00002.safetensors": names[2:]}
    for file, part in parts.items():
        save_file({name: state[name] for name in part}, directory / file, metadata={"part": file})
    weight_map = {name: file for file, part in parts.items() for name in part}
    index = {"metadata": {"total_size": sum(t.nbytes for t in state.values())}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    (directory / "config.json").write_text('{"hidden": 8}')
    (directory / "tokenizer").mkdir()
    (directory / "tokenizer" / "merges.txt").write_bytes(bytes(range(256)) * 10)


def files_below(directory):
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def test_a_checkout_never_goes_into_a_repository(repo, tmp_path):
    repo.commit({"w": torch.ones(3)}, files={"deltavc.json": b"another"})
    before = files_below(tmp_path / "repo" / "packs"), (tmp_path / "repo" / "deltavc.json").read_bytes()
    for overwrite in (False, True):
        with pytest.raises(BadCheckpoint, match="is a repository"):
            repo.checkout(path=tmp_path / "repo", overwrite=overwrite)
    assert before == (files_below(tmp_path / "repo" / "packs"), (tmp_path / "repo" / "deltavc.json").read_bytes())
    assert not (tmp_path / "repo" / "model.safetensors").exists()


def test_a_directory_comes_back_file_by_file(repo, tmp_path):
    dtypes = [dtype for dtype in states.DTYPES if dtype != "complex128"]
    state = {f"t{number}": states.random_bits(dtype, (4, 6), number) for number, dtype in enumerate(dtypes)}
    sharded(tmp_path / "in", state)
    version = repo.commit(tmp_path / "in", files={"optimizer.bin": b"moments"})
    assert version.files.keys() == {"config.json", "tokenizer/merges.txt", "optimizer.bin"}
    found = repo.checkout(path=tmp_path / "out")
    assert states.same(found, state)
    assert files_below(tmp_path / "out") == {**files_below(tmp_path / "in"), "optimizer.bin": b"moments"}
    with pytest.raises(BadCheckpoint, match="not empty"):
        repo.checkout(path=tmp_path / "out")
    new = states.stepped(state, 1)
    repo.commit(new)
    repo.checkout(path=tmp_path / "out", overwrite=True)
    assert states.same(load_file(tmp_path / "out" / "model.safetensors"), new)
    assert "config.json" in files_below(tmp_path / "out")
    assert not (tmp_path / "out" / "model.safetensors.index.json").exists()


def test_ties_are_written_under_each_name(repo, tmp_path):
    weight = torch.randn(3, 3)
    repo.commit({"a": weight, "b": weight})
    repo.checkout(path=tmp_path / "out")
    assert states.same(load_file(tmp_path / "out" / "model.safetensors"), {"a": weight, "b": weight})


def test_tensors_that_files_cannot_hold_are_named_and_no_file_is_written(repo, tmp_path):
    repo.commit({"ok": torch.ones(2), "x.wide": torch.ones(2, dtype=torch.complex128), "__metadata__": torch.ones(1)})
    with pytest.raises(BadCheckpoint, match=r"'__metadata__'.*'x\.wide' \(the format has no complex128\)"):
        repo.checkout(path=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(BadCheckpoint, match="leave out tensors="):
        repo.checkout(path=tmp_path / "out", tensors=["ok"])


def test_files_are_kept_shared_with_the_parent_and_read_back(repo, tmp_path):
    (tmp_path / "big.bin").write_bytes(b"x" * 100_000)
    state = {"a": torch.ones(2)}
    files = {"optimizer.pt": tmp_path / "big.bin", "rng": b"\x00\x01", "empty": bytearray(), "view": memoryview(b"v")}
    first = repo.commit(state, files=files)
    assert first.stored_bytes > 100_000
    second = repo.commit(state, files={**files, "rng": b"\x02"})
    assert second.stored_bytes == 1
    assert repo.stats().file_bytes == 100_004
    third = repo.commit(state)
    assert third.files == {}
    assert repo.read_file(first.id, "rng") == b"\x00\x01"
    assert repo.read_file(second.id, "rng") == b"\x02"
    assert repo.read_file(second.id, "optimizer.pt") == b"x" * 100_000
    assert repo.read_file(second.id, "empty") == b""
    with pytest.raises(UnknownRef, match="keeps no file"):
        repo.read_file("main", "rng")


def test_every_way_to_a_version_gives_equal_weights_on_the_device_asked_for(repo):
    state = {"x": torch.randn(300), "y": torch.randn(20, 20).bfloat16()}
    with repo.writer() as writer:
        for seed in range(6):
            state = states.stepped(state, seed)
            writer.commit(state, step=seed, snapshot=False)
        chained = repo.checkout(device=torch.device("cpu"))
        before = repo.stats().num_snapshots
        again = writer.commit(state, snapshot=True)
    assert repo.stats().num_snapshots == before + 1
    assert again.changed_lanes == 0
    assert states.same(chained, state)
    assert states.same(repo.checkout(again.id), state)
    assert again.fingerprint == repo.version(chained.version).fingerprint
