"""Delta directories of Miles and slime: what they publish is imported, what deltavc exports they can read."""

import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import deltavc
from deltavc.errors import BadDelta, BadPayload, LayoutMismatch, UnknownRef
from deltavc.interchange import delta_dir, payload
from deltavc.interchange.delta_dir import published, write
from tests.interchange.receiver import Host, publish
from tests.states import changed, of_every_dtype, random_bits, raw, same, stepped

BASE = {"w": random_bits("bfloat16", (40, 33), 1), "b": random_bits("float32", (7,), 2), "s": torch.tensor(3)}
STATES = [BASE]
for seed in range(1, 4):
    STATES.append({**STATES[-1], "w": changed(STATES[-1]["w"], seed, 0.05), "s": torch.tensor(seed)})


KINDS = [("xor", "xxh3-128"), ("overwrite", "blake3"), ("xor", "adler32")]


def as_bytes(state):
    return {name: raw(tensor).view(torch.uint8).numpy().tobytes() for name, tensor in state.items()}


@pytest.fixture
def repo(tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        yield repo


@pytest.fixture
def base(tmp_path):
    """The checkpoint that version 0 stands for."""
    folder = tmp_path / "base"
    folder.mkdir()
    save_file(BASE, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text('{"n": 1}')
    return folder


def publish_all(folder, **how):
    for number in range(1, len(STATES)):
        publish(folder, number, as_bytes(STATES[number - 1]), as_bytes(STATES[number]), **how)
    return folder


# --- payloads ---


@given(st.binary(min_size=1, max_size=300), st.data(), st.sampled_from(["xor", "overwrite"]))
def test_a_payload_leads_from_the_old_bytes_to_the_new(old, data, encoding):
    new = data.draw(st.binary(min_size=len(old), max_size=len(old)))
    before, after = (np.frombuffer(each, np.uint8).copy() for each in (old, new))
    stored = payload.encode(encoding, before, after)
    assert (stored is None) == (old == new)
    if stored is not None:
        payload.apply(encoding, np.frombuffer(stored, np.uint8), before)
        assert before.tobytes() == new


@given(st.binary(max_size=80), st.sampled_from(["xor", "overwrite"]))
def test_any_other_payload_is_refused(stored, encoding):
    with pytest.raises(BadPayload):
        payload.apply(encoding, np.frombuffer(stored, np.uint8), np.zeros(10, np.uint8))


@pytest.mark.parametrize("positions", [[10], [2**32 - 1], [1, 2, 3]])
def test_positions_outside_or_without_values_are_refused(positions):
    body = np.array([len(positions), *positions], "<u4").tobytes() + bytes(len(positions) % 3)
    stored = payload.zstd.compress(body)
    with pytest.raises(BadPayload):
        payload.apply("overwrite", np.frombuffer(stored, np.uint8), np.zeros(10, np.uint8))


def test_overwriting_is_refused_where_its_positions_would_wrap():
    large = np.broadcast_to(np.zeros(1, np.uint8), (2**32 + 1,))
    with pytest.raises(ValueError, match=r"4294967297 bytes.*take xor"):
        payload.encode("overwrite", large, large)
    with pytest.raises(BadPayload, match="do not reach"):
        payload.apply("overwrite", np.zeros(1, np.uint8), large)


# --- in ---


@pytest.mark.parametrize(("encoding", "checksum"), KINDS)
def test_what_is_published_is_imported_onto_a_checkpoint(repo, base, tmp_path, encoding, checksum):
    deltas = publish_all(tmp_path / "deltas", encoding=encoding, checksum=checksum, files=2)
    done = deltavc.import_deltas(repo, deltas, base)
    assert (done.num_new, [taken.step for taken in done.checkpoints]) == (3, [1, 2, 3])
    for step, state in enumerate(STATES):
        assert same(repo.checkout(f"step:{step}"), state)
        assert repo.version(f"step:{step}").meta["weight_version"] == step
        assert repo.read_file(f"step:{step}", "config.json") == b'{"n": 1}'
    again = deltavc.import_deltas(repo, deltas, base)
    assert (again.num_new, len(repo.log())) == (0, 4)


def test_it_goes_on_with_what_is_published_later(repo, base, tmp_path):
    deltas = publish_all(tmp_path / "deltas")
    late = shutil.move(deltas / "weight_v000003", tmp_path / "late")
    first = repo.commit(base, "elsewhere")
    assert deltavc.import_deltas(repo, deltas, "elsewhere", "main").num_new == 2
    shutil.move(late, deltas / "weight_v000003")
    assert deltavc.import_deltas(repo, deltas, "elsewhere", "main", dry_run=True).num_new == 1
    shutil.rmtree(deltas / "weight_v000001")
    done = deltavc.import_deltas(repo, deltas, "main")  # whose head is version 2
    assert [(taken.step, taken.new) for taken in done.checkpoints] == [(3, True)]
    assert same(repo.checkout(), STATES[3])
    assert repo.resolve("main~3") == first.id


def test_a_whole_checkpoint_may_be_among_the_versions(repo, base, tmp_path):
    deltas = publish_all(tmp_path / "deltas")
    shutil.rmtree(deltas / "weight_v000001")
    shutil.rmtree(deltas / "weight_v000002")
    (deltas / "weight_v000002").mkdir()
    save_file(STATES[2], deltas / "weight_v000002" / "model.safetensors")
    deltavc.import_deltas(repo, deltas, base)
    assert same(repo.checkout("step:2"), STATES[2])
    assert same(repo.checkout("step:3"), STATES[3])


def test_a_version_that_turns_up_before_those_that_are_imported_is_refused(repo, base, tmp_path):
    other = {**STATES[1], "b": random_bits("float32", (7,), 5)}
    deltas = tmp_path / "deltas"
    publish(deltas, 1, as_bytes(BASE), as_bytes(STATES[1]))
    (deltas / "weight_v000003").mkdir()
    save_file(STATES[3], deltas / "weight_v000003" / "model.safetensors")
    deltavc.import_deltas(repo, deltas, base)
    publish(deltas, 2, as_bytes(STATES[1]), as_bytes(other))
    with pytest.raises(BadDelta, match=r"version 2.*has gone past"):
        deltavc.import_deltas(repo, deltas, base)
    assert [version.step for version in repo.log()] == [3, 1, 0]


def test_tied_tensors_are_changed_once_and_stay_tied(repo, tmp_path):
    tied = torch.arange(12.0)
    repo.commit({"a": tied, "b": tied, "c": torch.zeros(3)})
    old = {"a": tied, "b": tied, "c": torch.zeros(3)}
    new = {"a": tied + 1, "b": tied + 1, "c": torch.zeros(3)}
    publish(tmp_path / "deltas", 1, as_bytes(old), as_bytes(new))
    publish(tmp_path / "deltas", 2, as_bytes(new), as_bytes(new))  # nothing changed
    deltavc.import_deltas(repo, tmp_path / "deltas", "main")
    assert same(repo.checkout(), new)
    assert repo.tensors()[1]["tie"] == "a"
    publish(tmp_path / "deltas", 3, as_bytes(new), as_bytes({**new, "b": tied}))
    publish(tmp_path / "deltas", 4, as_bytes(new), as_bytes({**new, "a": tied + 5, "b": tied}))
    shutil.rmtree(tmp_path / "deltas" / "weight_v000003")
    (tmp_path / "deltas" / "weight_v000004").rename(tmp_path / "deltas" / "weight_v000003")
    index = tmp_path / "deltas" / "weight_v000003" / "model.safetensors.index.json"
    index.write_text(
        index.read_text().replace("000004", "000003").replace('base_version": "000003', 'base_version": "000002')
    )
    with pytest.raises(BadDelta, match=r"tensor 'b'.*is due"):
        deltavc.import_deltas(repo, tmp_path / "deltas", "main")


def damage_file(folder):
    (file,) = folder.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


def edit(**members):
    def change(folder):
        index = folder / "model.safetensors.index.json"
        content = json.loads(index.read_text())
        content["metadata"].update(members)
        index.write_text(json.dumps(content))

    return change


def edit_map(change):
    def edited(folder):
        index = folder / "model.safetensors.index.json"
        content = json.loads(index.read_text())
        change(content["weight_map"])
        index.write_text(json.dumps(content))

    return edited


def write_index(text):
    return lambda folder: (folder / "model.safetensors.index.json").write_text(text)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (damage_file, "tensor '[sw]'"),
        (shutil.rmtree, "version 3: it builds on version 2, and version 1 is the last"),
        (edit(base_version="000000"), "builds on version 0"),
        (edit(version="000009"), "another version"),
        (edit(version="../../x"), "version is no number"),
        (edit(version=2), "version is no number"),
        (edit(delta_encoding="gzip"), "none of xor, overwrite"),
        (edit(delta_encoding=["xor"]), "none of xor, overwrite"),
        (edit(checksum_format="md5"), "none of xxh3-128"),
        (edit(compression_format="lz4"), "only zstd"),
        (edit(delta_encoding="overwrite"), "its change is damaged"),
        (
            edit_map(lambda names: names.update({"../x": "../../y"})),
            r"tensor '\.\./x': is in the index, and in no file",
        ),
        (edit_map(lambda names: names.pop("w")), "tensor 'w': is not in the index"),
        (write_index("{"), "does not say what it should"),
        (write_index('{"metadata": {"delta_encoding": "xor"}, "weight_map": [1]}'), "no map"),
        (write_index("[" * 100_000), "does not say what it should"),
        (lambda folder: (folder / "model.safetensors.index.json").unlink(), "no delta_encoding"),
        (lambda folder: next(folder.glob("*.safetensors")).unlink(), "in no file"),
    ],
)
def test_what_is_wrong_is_said_and_what_came_before_it_is_committed(repo, base, tmp_path, change, said):
    deltas = publish_all(tmp_path / "deltas")
    change(deltas / "weight_v000002")
    with pytest.raises(BadDelta, match=said) as caught:
        deltavc.import_deltas(repo, deltas, base)
    assert caught.value.version in (2, 3)
    assert set(repo.branches()) <= {"main"}
    assert [version.step for version in repo.log()] in ([], [0], [1, 0]) if repo.branches() else True
    shutil.rmtree(deltas)
    deltavc.import_deltas(repo, publish_all(deltas), base)
    assert same(repo.checkout(), STATES[3])


def test_a_base_that_is_not_the_one_is_told_by_the_checksums(repo, base, tmp_path):
    deltas = publish_all(tmp_path / "deltas")
    repo.commit({**BASE, "w": changed(BASE["w"], 9, 0.01)})
    with pytest.raises(BadDelta, match=r"version 1, tensor 'w': applied to its base it has the xxh3-128"):
        deltavc.import_deltas(repo, deltas, "main")
    with pytest.raises(BadDelta, match="has no version with these weights"):
        deltavc.import_deltas(repo, deltas, base)
    with pytest.raises(UnknownRef):
        deltavc.import_deltas(repo, deltas, "nothing")
    with pytest.raises(BadDelta, match="no weight_v000001"):
        deltavc.import_deltas(repo, base, "main")
    assert len(repo.log()) == 1


def test_a_branch_that_went_on_by_itself_is_left_alone(repo, base, tmp_path):
    first = repo.commit(base)
    repo.commit(STATES[2])
    with pytest.raises(BadDelta, match="neither the base nor from a delta directory"):
        deltavc.import_deltas(repo, publish_all(tmp_path / "deltas"), first.id)


# --- out ---


@pytest.mark.parametrize(("encoding", "checksum"), KINDS)
def test_an_independent_receiver_reads_what_is_exported(repo, tmp_path, encoding, checksum):
    some = ("3x5x7", "bfloat16.scalar", "int8.0")
    state = {name: tensor for name, tensor in of_every_dtype().items() if name.endswith(some)}
    state = {name: tensor for name, tensor in state.items() if not name.startswith(("complex128", "float4"))}
    states = [state, stepped(state, 1), stepped(state, 2)]
    for each in states:
        repo.commit(each)
    deltavc.export(repo, "main~2", tmp_path / "host", max_shard=1000)
    deltas = tmp_path / "deltas"
    told = {"encoding": encoding, "algorithm": checksum}
    deltavc.export_deltas(repo, "main~2", "main~1", deltas, **told)
    deltavc.export_deltas(repo, "main~1", "main", deltas, **told)
    host = Host(tmp_path / "host")
    for target in (1, 2):
        host.pull(deltas, target)
        found = {}
        for file in (tmp_path / "host").glob("*.safetensors"):
            found |= load_file(file)
        assert same(found, states[target])
    with deltavc.init(tmp_path / "other") as other:
        deltavc.export(repo, "main~2", tmp_path / "again")
        deltavc.import_deltas(other, deltas, tmp_path / "again")
        assert same(other.checkout(), states[2])


def test_any_pair_of_versions_can_be_exported_backwards_too_and_tied_names_are(repo, tmp_path):
    tied = torch.arange(12.0)
    for step in (0, 1, 2):
        repo.commit({"a": (w := tied + step), "b": w}, step=step)
    deltavc.export(repo, "step:2", tmp_path / "host")
    deltavc.export_deltas(repo, "step:2", "step:0", tmp_path / "deltas")
    host = Host(tmp_path / "host")
    host.pull(tmp_path / "deltas", 1)
    assert same(load_file(tmp_path / "host" / "model.safetensors"), {"a": tied, "b": tied})
    deltavc.export_deltas(repo, "step:0", "step:0", tmp_path / "deltas")
    host.pull(tmp_path / "deltas", 2)
    assert same(load_file(tmp_path / "host" / "model.safetensors"), {"a": tied, "b": tied})


def test_a_directory_is_gone_on_with_only_from_where_it_ends(repo, tmp_path):
    for state in STATES:
        repo.commit(state)
    deltas = tmp_path / "deltas"
    done = deltavc.export_deltas(repo, "main~3", "main~2", deltas)
    again = deltavc.export_deltas(repo, "main~3", "main~2", deltas)
    assert (done.new, again.new, again.path) == (True, False, done.path)
    with pytest.raises(BadDelta, match="the directory ends at version"):
        deltavc.export_deltas(repo, "main~1", "main", deltas)
    publish(deltas, 2, as_bytes(STATES[1]), as_bytes(STATES[2]))
    with pytest.raises(BadDelta, match="deltavc did not write"):
        deltavc.export_deltas(repo, "main~1", "main", deltas)
    assert [one.number for one in published(deltas)] == [1, 2]


def test_versions_of_other_tensors_are_refused(repo, tmp_path):
    repo.commit(BASE)
    repo.commit({**BASE, "new": torch.ones(2)})
    with pytest.raises(LayoutMismatch, match="'new'"):
        deltavc.export_deltas(repo, "main~1", "main", tmp_path / "deltas")
    assert not (tmp_path / "deltas").exists()


def test_changes_are_split_into_files_and_an_export_that_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(delta_dir, "FILE_BYTES", 1000)
    large = bytes(1000)
    changes = [("a", large, "x"), ("b", b"22", "y"), ("c", b"333", "z")]
    folder = write(tmp_path, 1, iter(changes), "xor", "blake3", ("a", "b"))
    assert sorted(file.name for file in folder.glob("*.safetensors")) == [
        "model-00000-of-00002.safetensors",
        "model-00001-of-00002.safetensors",
    ]
    (one,) = published(tmp_path)
    assert [(name, len(stored), digest) for name, stored, digest in one.changes()] == [
        ("a", 1000, "x"),
        ("b", 2, "y"),
        ("c", 3, "z"),
    ]

    def failing():
        yield changes[1]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, 2, failing(), "xor", "blake3", ("b", "c"))
    assert [path.name for path in tmp_path.iterdir()] == ["weight_v000001"]
