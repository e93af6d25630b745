"""DCP directories as torch writes them, and what pretends to be one."""

import io
import pickle
import shutil

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex

import deltavc
from deltavc.errors import BadCheckpoint
from deltavc.held import fresh, on_disk
from deltavc.interchange.dcp import open_dcp
from deltavc.interchange.dcp_metadata import read_metadata
from tests.interchange.folders import weights_at
from tests.states import of_every_dtype, same

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def saved(state, folder):
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder


def opened(folder):
    return dict(open_dcp(folder, fresh("cpu")))


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A DCP directory of a model, an optimizer and a step."""
    model = weights_at(1)
    state = {"model": model, "optimizer": {"state": {"model.w": {"exp_avg": torch.ones(4)}}, "lr": 0.1}, "step": 7}
    return saved(state, tmp_path_factory.mktemp("dcp") / "step-7")


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "step-7")


def rewrite(folder, change):
    """Change what the metadata says, as torch's own classes."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    change(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def test_a_folder_of_dcp_directories_is_imported(tmp_path):
    for step in (2, 10):
        state = {"model": weights_at(step), "optimizer": {"state": {"m": torch.ones(3)}}, "step": step}
        saved(state, tmp_path / "run" / f"step-{step}")
    with deltavc.init(tmp_path / "repo") as repo:
        deltavc.import_checkpoints(repo, tmp_path / "run", files="all")
        assert [version.step for version in repo.log()] == [10, 2]
        assert same(repo.checkout("step:2"), weights_at(2))
        assert same(repo.checkout(), weights_at(10))
        assert deltavc.import_checkpoints(repo, tmp_path / "run").num_new == 0
        assert repo.version().files == {}


def test_every_dtype_comes_bit_for_bit_in_memory_and_on_disk(tmp_path):
    state = {name: tensor for name, tensor in of_every_dtype().items() if "float4" not in name}
    folder = saved(state, tmp_path / "flat")
    assert same(opened(folder), state)
    assert same(dict(open_dcp(folder, on_disk(tmp_path))), state)


def test_the_sharded_weights_of_an_fsdp_checkpoint_are_found(tmp_path, original):
    at = tmp_path / "out" / "checkpoint-7"
    shutil.copytree(original, at / "pytorch_model_fsdp_0")
    shutil.copytree(original, at / "optimizer_0")
    (at / "config.json").write_text("{}")
    with deltavc.init(tmp_path / "repo") as repo:
        deltavc.import_checkpoints(repo, tmp_path / "out")
        assert same(repo.checkout("step:7"), weights_at(1))
        assert set(repo.version().files) == {"config.json"}


def test_a_tensor_in_chunks_is_put_together(tmp_path):
    whole = torch.arange(48).view(6, 8)
    cuts = {(0, 0): whole[:4, :5], (0, 5): whole[:4, 5:], (4, 0): whole[4:]}
    folder = saved({"w": whole}, tmp_path / "x")
    body, places = io.BytesIO(), {}
    for offsets, part in cuts.items():
        start = body.tell()
        torch.save(part.clone(), body)
        places[offsets] = (start, body.tell() - start)
    (folder / "__1_0.distcp").write_bytes(body.getvalue())

    def cut(metadata):
        chunks = [ChunkStorageMetadata(torch.Size(at), part.shape) for at, part in cuts.items()]
        metadata.state_dict_metadata["w"].chunks = chunks
        metadata.storage_data = {
            MetadataIndex("w", at, number): _StorageInfo("__1_0.distcp", *places[at])
            for number, at in enumerate(places)
        }

    rewrite(folder, cut)
    assert same(opened(folder), {"w": whole})
    rewrite(folder, lambda metadata: metadata.state_dict_metadata["w"].chunks.pop())
    with pytest.raises(BadCheckpoint, match="do not make it up"):
        opened(folder)


def test_weights_that_cannot_be_told_are_refused(tmp_path):
    folder = saved({"model": {"w": torch.ones(2)}, "state_dict": {"w": torch.ones(2)}}, tmp_path / "two")
    with pytest.raises(BadCheckpoint, match="'state_dict' and 'model'"):
        opened(folder)
    with pytest.raises(BadCheckpoint, match="only under 'net'"):
        opened(saved({"net": {"w": torch.ones(2)}, "step": 3}, tmp_path / "none"))


class Gotcha:
    def __init__(self, call, *args):
        self.call, self.args = call, args

    def __reduce__(self):
        return self.call, self.args


def test_a_pickle_that_would_run_something_runs_nothing(folder, tmp_path):
    import os

    marker = tmp_path / "ran"
    for call, args in ((os.system, (f"touch {marker}",)), (eval, ("1",)), (getattr, ("x", "upper"))):
        for metadata in (Gotcha(call, *args), Metadata({"w": Gotcha(call, *args)}, storage_data={}, planner_data={})):
            (folder / ".metadata").write_bytes(pickle.dumps(metadata))
            with pytest.raises(BadCheckpoint, match="never executed"):
                opened(folder)
    assert not marker.exists()


def test_a_chunk_that_would_run_something_runs_nothing(folder, tmp_path):
    import os

    marker = tmp_path / "ran"
    body = io.BytesIO()
    torch.save({"x": Gotcha(os.system, f"touch {marker}")}, body)
    (folder / "__9.distcp").write_bytes(body.getvalue())

    def point(metadata):
        for index in metadata.storage_data:
            metadata.storage_data[index] = _StorageInfo("__9.distcp", 0, len(body.getvalue()))

    rewrite(folder, point)
    with pytest.raises(BadCheckpoint, match="is not a tensor; it was refused"):
        opened(folder)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["../x.distcp", "/etc/passwd", ".metadata", "a/b", "", 7])
def test_a_chunk_lies_in_a_plain_file_of_the_directory(folder, name):
    (folder.parent / "x.distcp").write_bytes((folder / "__0_0.distcp").read_bytes())

    def point(metadata):
        for info in metadata.storage_data.values():
            info.relative_path = name

    rewrite(folder, point)
    with pytest.raises(BadCheckpoint):
        opened(folder)


def first(metadata):
    return metadata.state_dict_metadata["model.model.w"]


@pytest.mark.parametrize(
    "change",
    [
        lambda metadata: metadata.storage_data.clear(),
        lambda metadata: setattr(first(metadata), "size", torch.Size([2**40, 2**20])),
        lambda metadata: setattr(first(metadata), "chunks", first(metadata).chunks * 2),
        lambda metadata: setattr(first(metadata), "chunks", []),
        lambda metadata: setattr(first(metadata).properties, "dtype", torch.float64),
        lambda metadata: setattr(first(metadata).chunks[0], "offsets", torch.Size([1, 0])),
        lambda metadata: setattr(metadata, "storage_data", None),
        lambda metadata: setattr(metadata, "state_dict_metadata", [3]),
        lambda metadata: [setattr(info, "offset", 10**9) for info in metadata.storage_data.values()],
        lambda metadata: [setattr(info, "length", 10**15) for info in metadata.storage_data.values()],
        lambda metadata: [setattr(info, "offset", -1) for info in metadata.storage_data.values()],
        lambda metadata: [setattr(info, "transform_descriptors", ["zstd"]) for info in metadata.storage_data.values()],
    ],
)
def test_metadata_that_does_not_add_up_is_refused(folder, change):
    rewrite(folder, change)
    with pytest.raises(BadCheckpoint):
        opened(folder)


def test_a_damaged_directory_is_refused(folder):
    whole = (folder / ".metadata").read_bytes()
    for end in range(0, len(whole), 97):
        (folder / ".metadata").write_bytes(whole[:end])
        with pytest.raises(BadCheckpoint):
            read_metadata(folder)
    (folder / ".metadata").write_bytes(whole)
    data = (folder / "__0_0.distcp").read_bytes()
    (folder / "__0_0.distcp").write_bytes(data[: len(data) // 2])
    with pytest.raises(BadCheckpoint):
        opened(folder)
    (folder / "__0_0.distcp").unlink()
    with pytest.raises(BadCheckpoint, match="not there"):
        opened(folder)
