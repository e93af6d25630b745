"""Bindings: every lane of a version has one place in live memory, whatever an engine made of it."""

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import deltavc
from deltavc import Shard, bindings
from deltavc.bindings import bind, concatenated, sharded
from deltavc.change import Box
from deltavc.delta.pack import check_pack
from deltavc.errors import LayoutMismatch
from deltavc.lanes import lanes
from deltavc.packing import FRAME_BYTES
from deltavc.weights.describe import describe
from tests import states


def write(bound, checkpoint):
    """Write a checkpoint into live memory, as a replica would."""
    for cell in bound.cells:
        whole = lanes(checkpoint[cell.name])
        assert tuple(whole.shape) == cell.shape
        cell.lanes.copy_(whole[cell.box.index] if cell.box.lengths else whole)


def times_written(bound, tensor):
    """How often each lane of a live tensor is in a cell."""
    bits = lanes(tensor)
    bits.zero_()
    for cell in bound.cells:
        cell.lanes.add_(1)
    return bits


@pytest.fixture(scope="module", autouse=True)
def small_cells():
    """Cells of 16 bytes, so that small tensors are cut into many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bindings, "FRAME_BYTES", 16)
        yield


# --- any arrangement ---


@st.composite
def arrangements(draw):
    """Fused, sharded, permuted, padded live tensors: live state, checkpoint, bindings, ignored, slices to expect."""
    live, checkpoint, bound_to, ignore, expected = {}, {}, {}, [], []
    for number in range(draw(st.integers(1, 3))):
        dtype = draw(st.sampled_from(["uint8", "bool", "bfloat16", "float32", "complex64", "complex128"]))
        dims = draw(st.integers(1, 3))
        dim = draw(st.integers(0, dims - 1))
        rows = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
        shape = [draw(st.integers(1, 4)) for _ in range(dims)]
        shape[dim] = sum(rows)
        order = draw(st.permutations(range(dims)))
        padding = draw(st.sampled_from([0, 0, 2]))
        memory = torch.zeros([shape[each] + padding for each in order], dtype=getattr(torch, dtype))
        fused = memory[tuple(slice(shape[each]) for each in order)].permute([order.index(each) for each in range(dims)])
        assert list(fused.shape) == shape
        live[f"live.{number}"] = memory
        if padding:
            ignore.append(f"live.{number}")
        names = {f"{number}.{part}": length for part, length in enumerate(rows)}
        for place, (name, view) in enumerate(concatenated(fused, names, dim - dims).items()):
            world = draw(st.integers(1, 3))
            cut = draw(st.integers(0, dims - 1))
            full = list(view.shape)
            full[cut] *= world
            rank = draw(st.integers(0, world - 1))
            whole = states.random_bits(dtype, full, draw(st.integers(0, 1000)) + place)
            checkpoint[name] = whole
            bound_to[name] = view if world == 1 else sharded(view, full, cut, rank, world)
            expected.append((view, whole.narrow(cut, rank * view.shape[cut], view.shape[cut])))
    return live, checkpoint, bound_to, ignore, expected


@given(arrangements())
def test_writing_every_cell_gives_live_views_the_slices_of_the_checkpoint(arrangement):
    live, checkpoint, bound_to, ignore, expected = arrangement
    bound = bind(live, describe(checkpoint), bound_to, ignore)
    before = {name: (tensor.data_ptr(), tensor.stride()) for name, tensor in live.items()}
    write(bound, checkpoint)
    assert all(states.same_tensor(view, part) for view, part in expected)
    assert before == {name: (tensor.data_ptr(), tensor.stride()) for name, tensor in live.items()}
    assert bound.nbytes == sum(view.nbytes for view, _ in expected)


@given(arrangements())
def test_cells_cover_each_bound_lane_once_and_no_other(arrangement):
    live, checkpoint, bound_to, ignore, expected = arrangement
    bound = bind(live, describe(checkpoint), bound_to, ignore)
    total = 0
    for name, tensor in live.items():
        counts = times_written(bound, tensor)
        assert set(counts.unique().tolist()) <= ({0, 1} if name in ignore else {1})
        total += int(counts.sum())
    assert total == sum(lanes(view).numel() for view, _ in expected)


@given(arrangements())
def test_names_are_whole_or_partial_and_cells_lie_in_their_tensor(arrangement):
    live, checkpoint, bound_to, ignore, _ = arrangement
    bound = bind(live, describe(checkpoint), bound_to, ignore)
    assert set(bound.names) == set(checkpoint) == bound.whole | bound.partial
    assert list(bound.names) == sorted(bound.names)
    assert not bound.whole & bound.partial
    assert not bound.missing
    for name in bound.names:
        cells = bound.cells_of(name)
        num_lanes = sum(cell.box.num_lanes for cell in cells)
        assert (name in bound.whole) == (num_lanes == lanes(checkpoint[name]).numel())
        for cell in cells:
            assert cell.box.fits(cell.shape)
            assert tuple(cell.lanes.shape) == cell.box.lengths
            assert cell.lanes.nbytes <= max(16, cell.lanes.element_size())


@given(arrangements().filter(lambda each: not each[3]), st.data())
def test_leaving_out_any_binding_is_an_error_unless_both_sides_are_ignored(arrangement, data):
    live, checkpoint, bound_to, _, _ = arrangement
    name = data.draw(st.sampled_from(sorted(bound_to)))
    view = bound_to.pop(name)
    with pytest.raises(LayoutMismatch, match="nothing is bound to it"):
        bind(live, describe(checkpoint), bound_to)
    if (view.tensor if isinstance(view, Shard) else view).numel():
        with pytest.raises(LayoutMismatch, match="no tensor of the version is bound to"):
            bind(live, describe(checkpoint), bound_to, [name])
    bound = bind(live, describe(checkpoint), bound_to, [name, "live.*"])
    assert bound.missing == {name}


def test_states_of_every_dtype_bind_by_name():
    checkpoint = states.of_every_dtype(1)
    live = states.of_every_dtype(2)
    bound = bind(live, describe(checkpoint))
    write(bound, checkpoint)
    assert states.same(live, checkpoint)
    assert bound.whole == set(checkpoint)
    assert bound.nbytes == sum(tensor.nbytes for tensor in live.values())
    assert bound.cells_of("bfloat16.0") == ()
    [cell] = bound.cells_of("bfloat16.scalar")
    assert (cell.box, cell.shape, cell.device) == (Box((), ()), (), torch.device("cpu"))


def test_cells_of_whole_tensors_are_the_boxes_that_commit_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(bindings, "FRAME_BYTES", FRAME_BYTES)
    state = {"a": torch.ones(9, 1 << 20, dtype=torch.float32), "b": torch.ones(3)}
    with deltavc.init(tmp_path / "repo") as repo:
        repo.commit(state)
    [path] = (tmp_path / "repo").glob("packs/*/*.pack")
    frames = check_pack(path.read_bytes(), path.stem).frames
    shapes = {0: (9, 1 << 20), 1: (3,)}
    written = [(frame.place, frame.box or Box.whole(shapes[frame.place])) for frame in frames]
    live = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    assert [("ab".index(cell.name), cell.box) for cell in bind(live, describe(state)).cells] == written
    assert len(written) > 2


# --- engines ---


class Attention(torch.nn.Module):
    """A trainer's: separate projections, embeddings tied to the head."""

    def __init__(self, fused):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 8)
        self.head = torch.nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight
        self.norm = torch.nn.BatchNorm1d(8)
        if fused:
            self.qkv = torch.nn.Linear(8, 12)
        else:
            self.q, self.k, self.v = torch.nn.Linear(8, 8), torch.nn.Linear(8, 2), torch.nn.Linear(8, 2)


QKV = {"q": 8, "k": 2, "v": 2}


def fused_bindings(engine):
    return {
        **concatenated(engine.qkv.weight, {f"{name}.weight": rows for name, rows in QKV.items()}),
        **concatenated(engine.qkv.bias, {f"{name}.bias": rows for name, rows in QKV.items()}),
    }


def test_a_module_with_tied_embeddings_and_a_fused_qkv_follows_a_trainer():
    trainer, engine = Attention(fused=False), Attention(fused=True)
    checkpoint = trainer.state_dict(keep_vars=True)
    bound = bind(engine, describe(checkpoint), fused_bindings(engine))
    assert "embed.weight" in bound.names
    assert "head.weight" not in bound.names  # the same memory: written once
    assert bound.stored("embed.weight") == "embed.weight"
    write(bound, checkpoint)
    assert states.same_tensor(engine.qkv.weight, torch.cat([trainer.q.weight, trainer.k.weight, trainer.v.weight]))
    assert states.same_tensor(engine.qkv.bias, torch.cat([trainer.q.bias, trainer.k.bias, trainer.v.bias]))
    assert states.same_tensor(engine.head.weight, trainer.embed.weight)
    assert engine.head.weight is engine.embed.weight
    assert states.same_tensor(engine.norm.num_batches_tracked, trainer.norm.num_batches_tracked)


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_fused_and_sharded_projections_of_a_rank_with_replicated_kv_heads(rank):
    checkpoint = {name: states.random_bits("bfloat16", (rows * 4, 8), rows) for name, rows in QKV.items()}
    checkpoint["k"], checkpoint["v"] = checkpoint["k"][:4], checkpoint["v"][:4]  # two heads for four ranks
    checkpoint["out"] = states.random_bits("bfloat16", (8, 16))
    live = {"qkv": torch.zeros(12, 8, dtype=torch.bfloat16), "out": torch.zeros(8, 4, dtype=torch.bfloat16)}
    views = concatenated(live["qkv"], QKV)
    bound_to = {
        "q": sharded(views["q"], (32, 8), 0, rank, 4),
        "k": sharded(views["k"], (4, 8), 0, rank // 2, 2),
        "v": sharded(views["v"], (4, 8), 0, rank // 2, 2),
        "out": sharded(live["out"], (8, 16), 1, rank, 4),
    }
    bound = bind(live, describe(checkpoint), bound_to)
    write(bound, checkpoint)
    half = rank // 2 * 2
    parts = [checkpoint["q"][rank * 8 :][:8], checkpoint["k"][half:][:2], checkpoint["v"][half:][:2]]
    assert states.same_tensor(live["qkv"], torch.cat(parts))
    assert states.same_tensor(live["out"], checkpoint["out"][:, rank * 4 :][:, :4])
    assert bound.partial == set(checkpoint)
    assert not bound.whole


def test_transposed_and_interleaved_views_are_places():
    checkpoint = {name: states.random_bits("float32", (6, 4), seed) for seed, name in enumerate(["gate", "up", "out"])}
    live = {"gate_up": torch.zeros(4, 12), "out": torch.zeros(4, 6)}
    gate_up = live["gate_up"].t()  # stored transposed, gate and up in turn
    bound_to = {"gate": gate_up[::2], "up": gate_up[1::2], "out": live["out"].t()}
    write(bind(live, describe(checkpoint), bound_to), checkpoint)
    assert states.same_tensor(live["gate_up"][:, ::2].t(), checkpoint["gate"])
    assert states.same_tensor(live["gate_up"][:, 1::2].t(), checkpoint["up"])
    assert states.same_tensor(live["out"], checkpoint["out"].t().contiguous())


def test_a_tensor_may_be_held_as_shards_in_several_places():
    checkpoint = {"experts": states.random_bits("float16", (4, 3, 2))}
    live = {f"expert.{number}": torch.zeros(3, 2, dtype=torch.float16) for number in range(4)}
    shards = [Shard(live[f"expert.{number}"][None], (4, 3, 2), (number, 0, 0)) for number in range(4)]
    bound = bind(live, describe(checkpoint), {"experts": shards})
    assert bound.whole == {"experts"}
    write(bound, checkpoint)
    assert states.same_tensor(torch.stack([*live.values()]), checkpoint["experts"])
    assert bind(live, describe(checkpoint), {"experts": shards[1:]}, ["expert.0"]).partial == {"experts"}


def test_padding_is_allowed_where_the_live_tensor_is_ignored():
    checkpoint = {"head": states.random_bits("bfloat16", (10, 4))}
    live = {"head": torch.zeros(16, 4, dtype=torch.bfloat16)}
    bound_to = {"head": live["head"][:10]}
    with pytest.raises(LayoutMismatch, match=r"'head' has 24 of 64 elements .* that no tensor"):
        bind(live, describe(checkpoint), bound_to)
    write(bind(live, describe(checkpoint), bound_to, ["head"]), checkpoint)
    assert states.same_tensor(live["head"][:10], checkpoint["head"])
    assert not live["head"][10:].any()


def test_an_offset_within_complex_tensors_counts_elements():
    checkpoint = {"w": states.random_bits("complex128", (4, 6))}
    live = {"w": torch.zeros(4, 2, dtype=torch.complex128)}
    bound = bind(live, describe(checkpoint), {"w": Shard(live["w"], (4, 6), (0, 3))})
    assert {cell.shape for cell in bound.cells} == {(4, 6, 2)}
    write(bound, checkpoint)
    assert states.same_tensor(live["w"], checkpoint["w"][:, 3:5].contiguous())


@pytest.mark.parametrize("length", [0, 1, 5, 7, 8, 9])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_shards_are_cut_as_torch_chunk_cuts_and_make_up_the_whole(length, world):
    whole = torch.randn(3, length)
    chunks = list(whole.chunk(world, 1)) if length else []
    chunks += [whole[:, length:]] * (world - len(chunks))
    live = {str(rank): chunk.clone() for rank, chunk in enumerate(chunks)}
    shards = [sharded(live[str(rank)], (3, length), -1, rank, world) for rank in range(world)]
    assert bind(live, describe({"w": whole}), {"w": shards}).whole == {"w"}


def test_many_tensors_bind_in_time_that_grows_with_their_number():
    def seconds(count):
        checkpoint = {f"layers.{number}.weight": torch.zeros(2, 4) for number in range(2 * count)}
        live = {f"fused.{number}": torch.zeros(4, 4) for number in range(count)}
        views = {}
        for number in range(count):
            names = {f"layers.{2 * number}.weight": 2, f"layers.{2 * number + 1}.weight": 2}
            views |= concatenated(live[f"fused.{number}"], names)
        layout = describe(checkpoint)
        started = time.process_time()
        bind(live, layout, views, ["layers.1.*"])
        return time.process_time() - started

    assert seconds(10_000) < 40 * seconds(1_000)  # quadratic would be 100


# --- ties ---


def tied():
    weight = states.random_bits("float32", (6, 4))
    return {"embed": weight, "head": weight, "bias": states.random_bits("float32", (4,))}


def test_tied_names_that_live_apart_have_cells_each():
    checkpoint = tied()
    live = {name: torch.zeros_like(tensor) for name, tensor in checkpoint.items()}
    bound = bind(live, describe(checkpoint))
    assert set(bound.names) == {"bias", "embed", "head"}
    assert bound.stored("head") == "embed"
    write(bound, checkpoint)
    assert states.same(live, checkpoint)


def test_a_tied_name_needs_no_place_where_another_of_its_names_has_one():
    checkpoint = tied()
    live = {"head": torch.zeros(6, 4), "bias": torch.zeros(4)}
    bound = bind(live, describe(checkpoint))
    assert set(bound.names) == {"bias", "head"}
    assert not bound.missing
    assert bind({"bias": live["bias"]}, describe(checkpoint), ignore=["embed", "head"]).missing == {"embed"}
    with pytest.raises(LayoutMismatch, match="'head' is in the version"):
        bind({"bias": live["bias"]}, describe(checkpoint), ignore=["embed"])


def test_tied_shards_in_one_place_have_one_set_of_cells():
    checkpoint = tied()
    live = {"vocab": torch.zeros(3, 4), "bias": torch.zeros(4)}
    bound_to = {name: sharded(live["vocab"], (6, 4), 0, 1, 2) for name in ("embed", "head")}
    bound = bind(live, describe(checkpoint), bound_to)
    assert set(bound.names) == {"bias", "embed"}
    write(bound, checkpoint)
    assert states.same_tensor(live["vocab"], checkpoint["embed"][3:])


def test_tied_names_in_one_memory_but_not_one_order_are_refused():
    weight = torch.randn(4, 4)
    live = {"embed": torch.zeros(4, 4)}
    bound_to = {"head": live["embed"].t()}
    with pytest.raises(LayoutMismatch, match="'head' shares memory with 'embed', which it is tied to"):
        bind(live, describe({"embed": weight, "head": weight}), bound_to)
    rows = {"embed": live["embed"], "head": Shard(live["embed"][:2], (4, 4), (0, 0))}
    with pytest.raises(LayoutMismatch, match="not all of it in the same order"):
        bind(live, describe({"embed": weight, "head": weight}), rows)


def test_memory_that_is_shared_where_the_version_does_not_tie_is_refused():
    checkpoint = {"embed": torch.randn(4, 4), "head": torch.randn(4, 4)}
    weight = torch.zeros(4, 4)
    with pytest.raises(LayoutMismatch, match="'head' shares memory with 'embed' in the live state"):
        bind({"embed": weight, "head": weight}, describe(checkpoint))
    assert bind({"embed": weight, "head": weight}, describe(checkpoint), ignore=["head"]).missing == {"head"}


def test_slices_of_columns_that_overlap_by_one_are_refused():
    checkpoint = {"left": torch.randn(4, 3), "right": torch.randn(4, 3)}
    live = {"both": torch.zeros(4, 5)}
    with pytest.raises(LayoutMismatch, match="shares memory"):
        bind(live, describe(checkpoint), {"left": live["both"][:, :3], "right": live["both"][:, 2:]})
