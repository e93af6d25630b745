"""torch.distributed.checkpoint in one process: what is saved is a version, and what is loaded is what it says."""

import copy
import io
import os
import pickle

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed._shard import sharded_tensor
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import deltavc
from deltavc.errors import (
    BadMetadata,
    BadState,
    BranchMoved,
    Corruption,
    CorruptObject,
    LayoutMismatch,
    UnknownRef,
    UnsupportedDtype,
)
from deltavc.integrations.dcp import DeltaReader, DeltaWriter
from deltavc.integrations.dcp_ids import step_of
from deltavc.integrations.dcp_plan import joined, whole
from tests.states import of_every_dtype, random_bits, same, stepped

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")


@pytest.fixture
def repo(tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        yield repo


@pytest.fixture
def writer(repo):
    with DeltaWriter(repo) as writer:
        yield writer


def failure(call, *args, **kwargs):
    """What a call of dcp met on rank 0."""
    with pytest.raises(CheckpointException) as caught:
        call(*args, **kwargs)
    return caught.value.failures[0][0]


def blank(tensors):
    return {name: torch.empty_like(tensor) for name, tensor in tensors.items()}


def test_what_is_saved_is_loaded_bit_for_bit_and_is_a_version(repo, writer):
    run = [{"model": of_every_dtype(seed), "lr": 0.1 / (seed + 1)} for seed in range(2)]
    run.append({"model": stepped(run[1]["model"], 2), "lr": -0.0})
    for step, state in enumerate(run):
        dcp.save(state, storage_writer=writer.telling(step=step, metrics={"loss": step}))
        assert (writer.saved.step, writer.saved.metrics) == (step, {"loss": step})
    for step, state in enumerate(run):
        found = {"model": blank(state["model"]), "lr": None}
        dcp.load(found, storage_reader=DeltaReader(repo, f"step:{step}"))
        assert same(found["model"], state["model"])
        assert str(found["lr"]) == str(state["lr"])
        assert same(repo.checkout(f"step:{step}"), {f"model.{name}": each for name, each in state["model"].items()})


def test_an_optimizer_comes_back_whole(repo, writer):
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2), betas=(0.8, 0.99))
    model(torch.ones(6)).sum().backward()
    optimizer.step()
    model.weight.data[0, 0] = torch.nan  # a step that went wrong is kept as it is
    state = {"model": model.state_dict(), "optim": optimizer.state_dict()}
    dcp.save(state, storage_writer=writer)
    found = copy.deepcopy(state)
    for tensor in (
        *found["model"].values(),
        *found["optim"]["state"][0].values(),
        *found["optim"]["state"][1].values(),
    ):
        tensor.zero_()
    found["optim"]["param_groups"][0]["betas"] = None
    dcp.load(found, storage_reader=DeltaReader(repo))
    assert same(found["model"], state["model"])
    assert all(same(found["optim"]["state"][each], state["optim"]["state"][each]) for each in (0, 1))
    assert found["optim"]["param_groups"] == state["optim"]["param_groups"]


def test_a_second_save_is_of_what_changed_also_by_a_new_writer(repo):
    state = {"weight": torch.randn(400, 100), "values": {str(number): number / 7 for number in range(50)}}
    sizes = []
    for _ in range(3):
        with DeltaWriter(repo) as writer:
            dcp.save(state, storage_writer=writer)
        sizes.append(writer.saved.stored_bytes)
        state["weight"][3] += 1
    assert sizes[1] < sizes[0] / 50  # the row that changed, and no file, as none did
    assert sizes[2] < sizes[0] / 50


def test_what_anything_else_committed_is_loaded(repo):
    state = {"a": random_bits("bfloat16", (6, 4)), "b": random_bits("float32", ())}
    repo.commit(state)
    found = blank(state)
    dcp.load(found, storage_reader=DeltaReader(repo))
    assert same(found, state)


def test_versions_are_loaded_without_a_database_too(repo, writer):
    state = {"a": torch.randn(6, 4), "lr": 0.5}
    dcp.save(state, storage_writer=writer)
    with deltavc.open(repo.url, db="none") as bare:
        found = {"a": torch.zeros(6, 4), "lr": None}
        dcp.load(found, storage_reader=DeltaReader(bare))
    assert torch.equal(found["a"], state["a"])
    assert found["lr"] == 0.5


def test_a_part_of_the_names_is_loaded_without_the_rest(repo, writer):
    state = {"model": {"a": torch.ones(3), "b": torch.ones(4)}, "optim": {"lr": 0.5, "steps": [1, (2, None)]}}
    dcp.save(state, storage_writer=writer)
    found = {"model": {"b": torch.zeros(4)}, "optim": {"steps": None}}
    dcp.load(found, storage_reader=DeltaReader(repo))
    assert torch.equal(found["model"]["b"], torch.ones(4))
    assert found["optim"] == {"steps": [1, (2, None)]}
    assert _load_state_dict_from_keys(storage_reader=DeltaReader(repo))["optim"] == state["optim"]


@pytest.mark.parametrize(
    ("given", "step"),
    [("120", 120), ("step-120", 120), ("runs/7/global_step120/", 120), ("runs/7", 7), ("llama3", None), ("v2", None)],
)
def test_a_checkpoint_id_names_a_step_if_its_last_part_does(given, step):
    assert step_of(given) == step


def test_checkpoint_ids_are_steps_and_messages_when_saved_and_refs_when_loaded(repo, writer, tmp_path):
    for step in range(2):
        dcp.save({"a": torch.full((3,), step)}, storage_writer=writer, checkpoint_id=tmp_path / f"step-{step}")
        assert (writer.saved.step, writer.saved.message) == (step, str(tmp_path / f"step-{step}"))
    dcp.save({"a": torch.full((3,), 2)}, storage_writer=writer.telling(step=5, message="last"), checkpoint_id="1")
    assert (writer.saved.step, writer.saved.message) == (5, "last")
    dcp.save({"a": torch.full((3,), 3)}, storage_writer=writer)
    assert (writer.saved.step, writer.saved.message) == (None, "")  # an id is that of one save
    reader = DeltaReader(repo)
    for ref, expected in ((tmp_path / "step-1", 1), ("step:0", 0), ("main~1", 2), (writer.saved.parents[0], 2)):
        found = {"a": torch.zeros(3, dtype=torch.int64)}
        dcp.load(found, storage_reader=reader, checkpoint_id=ref)
        assert found["a"].tolist() == [expected] * 3
    dcp.load(found, storage_reader=reader)
    assert found["a"].tolist() == [3] * 3
    with pytest.raises(CheckpointException, match="step"):
        dcp.load(found, storage_reader=reader, checkpoint_id="step-9")


def test_other_dtypes_are_converted_as_by_dcp(repo, writer):
    weight = torch.randn(5, 4)
    dcp.save({"a": weight}, storage_writer=writer)
    found = {"a": torch.zeros(5, 4, dtype=torch.bfloat16)}
    dcp.load(found, storage_reader=DeltaReader(repo))
    assert torch.equal(found["a"], weight.bfloat16())


def test_names_that_share_memory_are_loaded_where_their_values_agree(repo, writer):
    weight = torch.randn(5, 4)
    for state in ({"a": weight, "b": weight}, {"a": weight, "b": weight.clone()}):
        dcp.save(state, storage_writer=writer)
        live = torch.zeros(5, 4)
        dcp.load({"a": live, "b": live}, storage_reader=DeltaReader(repo))
        assert torch.equal(live, weight)
        apart = {"a": torch.zeros(5, 4), "b": torch.zeros(5, 4)}
        dcp.load(apart, storage_reader=DeltaReader(repo))
        assert torch.equal(apart["a"], weight)
        assert torch.equal(apart["b"], weight)
    dcp.save({"a": weight, "b": weight + 1}, storage_writer=writer)
    error = failure(dcp.load, {"a": live, "b": live}, storage_reader=DeltaReader(repo))
    assert isinstance(error, LayoutMismatch)
    assert error.tensor == "b"


class Odd:
    """A class that no checkpoint should need."""


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_what_could_not_be_loaded_again_is_not_saved(repo, writer):
    dcp.save({"a": torch.ones(3)}, storage_writer=writer)
    before = repo.resolve("main")
    for state, kind, named in (
        ({"a": torch.ones(3), "odd": Odd()}, BadState, "odd"),
        ({"a": torch.ones(3), "b": torch.zeros(2, dtype=torch.complex32)}, UnsupportedDtype, "b"),
        ({"a": torch.ones(3), "b": torch.ones(3).to_sparse()}, BadState, "b"),
    ):
        error = failure(dcp.save, state, storage_writer=writer)
        assert isinstance(error, kind)
        assert error.tensor == named
    assert repo.resolve("main") == before
    dcp.save({"a": torch.ones(4)}, storage_writer=writer)
    assert repo.checkout()["a"].shape == (4,)


def test_a_class_that_is_allowed_is_saved_and_loaded(repo, writer):
    odd = Odd()
    odd.size = 7
    with torch.serialization.safe_globals([Odd]):
        dcp.save({"a": torch.ones(3), "odd": odd}, storage_writer=writer)
        found = {"a": torch.zeros(3), "odd": None}
        dcp.load(found, storage_reader=DeltaReader(repo))
    assert found["odd"].size == 7
    with pytest.raises(CheckpointException, match="weights_only"):
        dcp.load(found, storage_reader=DeltaReader(repo))


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("form", ["torch", "pickle"])
def test_nothing_that_is_loaded_is_executed(repo, tmp_path, form):
    hostile = {"lr": Touch(str(tmp_path / "made"))}
    body = io.BytesIO()
    torch.save(hostile, body) if form == "torch" else body.write(pickle.dumps(hostile))
    repo.commit({"a": torch.ones(3)}, files={"dcp/values.0": body.getvalue()})
    with pytest.raises(CheckpointException, match="dcp/values"):
        dcp.load({"a": torch.zeros(3), "lr": 0.0}, storage_reader=DeltaReader(repo))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"format":2,"paths":{}}', b'{"format":1,"paths":{"a":[1.5]}}', b'{"format":1}']
)
def test_a_nesting_that_no_save_wrote_is_an_error(repo, body):
    repo.commit({"a": torch.ones(3)}, files={"dcp/paths.json": body})
    with pytest.raises(CorruptObject):
        DeltaReader(repo).read_metadata()


def test_damage_is_an_error_and_not_weights(repo, writer, tmp_path):
    state = {"weight": torch.randn(300, 300), "lr": 1.0}
    dcp.save(state, storage_writer=writer)
    for folder in ("packs", "files"):
        damaged = max((tmp_path / "repo" / folder).rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)
        whole = damaged.read_bytes()
        middle = len(whole) // 2
        damaged.chmod(0o600)
        damaged.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        with pytest.raises(CheckpointException, match="corrupt") as caught:
            dcp.load({"weight": torch.zeros(300, 300), "lr": 0.0}, storage_reader=DeltaReader(repo))
        error = caught.value.failures[0][0]
        assert isinstance(error, Corruption) or "is corrupt" in str(error)
        damaged.write_bytes(whole)
    dcp.load(state, storage_reader=DeltaReader(repo))


def test_parts_that_one_rank_writes_are_put_together_or_refused():
    rows = torch.arange(12.0).reshape(4, 3)
    parts = [deltavc.Shard(rows[at:end], (4, 3), (at, 0)) for at, end in ((2, 3), (3, 4), (4, 4))]
    part = joined("a", parts)
    assert part.offsets == (2, 0)
    assert torch.equal(part.tensor, rows[2:])
    with pytest.raises(BadState, match="no_dist"):
        whole("a", part)
    with pytest.raises(BadState, match="no box"):
        joined("a", [deltavc.Shard(rows[:1], (4, 3), (0, 0)), parts[1]])


def test_a_save_of_single_ranks_is_refused(repo, writer):
    with pytest.raises(BadState, match="use_collectives"):
        dcp.save({"a": torch.ones(3)}, storage_writer=writer, use_collectives=False)


@pytest.fixture
def group_of_one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_process_group_of_one_saves_as_one_process(repo, writer, group_of_one):
    weight = torch.randn(4, 3)
    spread = distribute_tensor(weight, init_device_mesh("cpu", (1,)), [Shard(0)])
    for options in ({}, {"no_dist": True}):
        dcp.save({"a": spread, "lr": 1}, storage_writer=writer, **options)
        assert torch.equal(repo.checkout()["a"], weight)
        found = {"a": torch.zeros(4, 3), "lr": None}
        dcp.load(found, storage_reader=DeltaReader(repo), **options)
        assert torch.equal(found["a"], weight)


@pytest.mark.filterwarnings("ignore:Please use DTensor instead")
def test_a_rank_may_hold_several_parts_of_a_tensor(repo, writer, group_of_one):
    def cut(rows):
        parts = zip((0, 3, 4), rows.split([3, 1, 2]), strict=True)
        shards = [sharded_tensor.Shard.from_tensor_and_offsets(part.clone(), [at, 0], 0) for at, part in parts]
        return sharded_tensor.init_from_local_shards(shards, rows.shape)

    rows = torch.randn(6, 3)
    dcp.save({"a": cut(rows)}, storage_writer=writer)
    assert torch.equal(repo.checkout()["a"], rows)
    found = cut(torch.zeros(6, 3))
    dcp.load({"a": found}, storage_reader=DeltaReader(repo))
    assert torch.equal(torch.cat([shard.tensor for shard in found.local_shards()]), rows)


def test_after_the_branch_was_moved_a_closed_writer_goes_on_from_there(repo, writer):
    for step in range(3):
        dcp.save({"a": torch.full((9,), step)}, storage_writer=writer.telling(step=step))
    first = repo.rollback("main", "step:0").id
    assert isinstance(failure(dcp.save, {"a": torch.ones(9)}, storage_writer=writer), BranchMoved)
    writer.close()
    dcp.save({"a": torch.ones(9)}, storage_writer=writer)
    assert writer.saved.parents == (first,)


def test_saves_go_on_in_the_background(repo, writer):
    state = {"a": torch.zeros(9), "step": 0}
    for step in range(3):
        state = {"a": state["a"] + 1, "step": step}
        future = dcp.async_save(state, storage_writer=writer.telling(step=step))
        state["a"] = state["a"].clone()
        future.result()
    found = {"a": torch.zeros(9), "step": None}
    dcp.load(found, storage_reader=DeltaReader(repo, "step:1"))
    assert (found["a"].tolist(), found["step"]) == ([2.0] * 9, 1)


def test_files_may_go_along_under_names_of_their_own(repo, writer):
    dcp.save({"a": torch.ones(3), "lr": 1}, storage_writer=writer.telling(files={"notes.txt": b"good"}))
    assert set(writer.saved.files) == {"notes.txt", "dcp/values.0", "dcp/paths.json"}
    with pytest.raises(BadMetadata):
        writer.telling(files={"dcp/values.0": b""})


def test_a_writer_does_not_leave_its_process(writer):
    with pytest.raises(TypeError, match="THREAD"):
        pickle.dumps(writer)


def test_an_unknown_ref_says_so(repo, writer):
    dcp.save({"a": torch.ones(3)}, storage_writer=writer)
    with pytest.raises(UnknownRef):
        DeltaReader(repo, "none").read_metadata()
