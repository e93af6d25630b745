"""Bindings that leave a lane without a place, or a place with two lanes, are refused by name, with the way out."""

import subprocess
import sys

import pytest
import torch

from deltavc import Shard
from deltavc.bindings import bind, concatenated, sharded
from deltavc.errors import BadState, LayoutMismatch, UnsupportedDtype
from deltavc.weights.describe import describe
from tests import states

CHECKPOINT = {"w": torch.randn(4, 6), "b": torch.randn(6)}


def refused(error, message, live=None, bound_to=None, ignore=()):
    full = {name: torch.zeros_like(tensor) for name, tensor in CHECKPOINT.items()}
    with pytest.raises(error, match=message):
        bind({**full, **(live or {})}, describe(CHECKPOINT), bound_to, ignore)


def test_another_dtype_is_refused_with_the_reason_and_the_way_out():
    refused(
        LayoutMismatch,
        r"'w' is bfloat16 .* a cast does not commute .* dtype='bfloat16'",
        {"w": torch.zeros(4, 6).bfloat16()},
    )


def test_a_quantised_copy_is_refused_with_another_way_out():
    refused(LayoutMismatch, "commit the values that the live state is to hold", {"w": torch.zeros(4, 6).char()})


def test_another_shape_is_refused_unless_it_is_given_as_a_shard():
    refused(
        LayoutMismatch,
        r"'w' is of shape \[2, 6\] .* \[4, 6\] in the version; .* deltavc.Shard",
        {"w": torch.zeros(2, 6)},
    )
    live = {"w": torch.zeros(2, 6)}
    refused(LayoutMismatch, r"\[8, 6\]", live, {"w": sharded(live["w"], (8, 6), 0, 1, 4)})
    bound = bind({**live, "b": torch.zeros(6)}, describe(CHECKPOINT), {"w": sharded(live["w"], (4, 6), 0, 1, 2)})
    assert bound.partial == {"w"}


def test_unknown_names_are_refused_with_names_near_them():
    spare = torch.zeros(4, 6)
    near = {"layers.0.weight": torch.zeros(4, 6)}
    with pytest.raises(
        LayoutMismatch, match=r"'layer\.0.* is bound, but is not in the version; did you mean 'layers\.0.weight'"
    ):
        bind(near, describe(near), {"layer.0.weight": spare})
    refused(LayoutMismatch, "'extra' has 24 of 24 elements", {"extra": spare})


def test_several_tensors_that_are_not_held_are_counted():
    with pytest.raises(
        LayoutMismatch, match=r"'b' is in the version, .* \(and so for 1 more\): use bindings=, or name"
    ):
        bind({"x": torch.zeros(2)}, describe(CHECKPOINT))


@pytest.mark.parametrize("pattern", ["v", "layers.*", "W"])
def test_ignoring_what_is_not_there_is_refused(pattern):
    refused(LayoutMismatch, "is to be ignored, and matches no tensor", ignore=[pattern])


def test_an_ignored_name_is_not_bound_by_itself():
    live = {"w": torch.zeros(4, 6), "b": torch.zeros(6)}
    assert set(bind(live, describe(CHECKPOINT), ignore=["w"]).names) == {"b"}
    assert set(bind(live, describe(CHECKPOINT), ignore="w").names) == {"b"}
    assert set(bind(live, describe(CHECKPOINT), {"w": live["w"]}, ignore=["w"]).names) == {"b", "w"}


@pytest.mark.parametrize(
    "computed",
    [lambda live: live.clone(), lambda live: live.float() * 2, lambda live: torch.cat([live[:2], live[2:]])],
    ids=["copy", "product", "concatenation"],
)
def test_what_is_computed_from_live_tensors_is_refused(computed):
    live = {"w": torch.zeros(4, 6)}
    refused(BadState, "'w' is bound to memory of no live tensor: bind a view", live, {"w": computed(live["w"])})


def test_views_that_are_no_plain_memory_are_refused():
    complex_state = {"w": torch.zeros(4, 6, dtype=torch.complex64)}
    with pytest.raises(BadState, match="lazy conjugate"):
        bind(complex_state, describe(complex_state), {"w": complex_state["w"].conj()})
    live = {"w": torch.zeros(6), "b": torch.zeros(6)}
    refused(BadState, "'w' is expanded", live, {"w": live["w"].expand(4, 6)})
    live = {"w": torch.zeros(9), "b": torch.zeros(6)}
    refused(
        LayoutMismatch, "'w' is bound to a view whose elements share memory", live, {"w": live["w"].unfold(0, 6, 1)}
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(4, 6, device="meta"), "meta device"),
        (torch.zeros(4, 6).to_sparse(), "not dense but sparse"),
        ([1.0, 2.0], "not a tensor but a list"),
    ],
    ids=["meta", "sparse", "list"],
)
def test_live_tensors_without_memory_are_refused_unless_they_are_ignored(value, message):
    refused(BadState, message, {"extra": value})
    refused(BadState, message, {"w": value})
    live = {"w": torch.zeros(4, 6), "b": torch.zeros(6), "extra": value}
    assert bind(live, describe(CHECKPOINT), ignore=["extra"]).whole == {"b", "w"}


def test_a_live_dtype_without_lanes_is_refused_unless_it_is_ignored():
    live = {"w": torch.zeros(4, 6), "b": torch.zeros(6), "extra": torch.zeros(2, dtype=torch.uint8).view(torch.bits8)}
    refused(UnsupportedDtype, "bits8", live)
    assert bind(live, describe(CHECKPOINT), ignore=["ext*"]).whole == {"b", "w"}


def test_a_dtensor_is_refused_and_its_local_tensor_is_bound_as_a_shard(tmp_path):
    code = f"""
import torch, torch.distributed as dist
from torch.distributed.tensor import distribute_tensor, init_device_mesh, Shard
from deltavc.bindings import bind, sharded
from deltavc.errors import BadState
from deltavc.weights.describe import describe
dist.init_process_group("gloo", init_method="file://{tmp_path}/group", rank=0, world_size=1)
weight = torch.nn.Parameter(distribute_tensor(torch.ones(4, 2), init_device_mesh("cpu", (1,)), [Shard(0)]))
layout = describe({{"w": torch.ones(4, 2)}})
try:
    bind({{"w": weight}}, layout)
except BadState as error:
    print(error)
print(bind({{"w": weight.to_local()}}, layout, {{"w": sharded(weight.to_local(), (4, 2), 0, 0, 1)}}).whole)
dist.destroy_process_group()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "tensor 'w' is a DTensor: give its to_local() as live tensor, and bind that as a deltavc.Shard",
        "frozenset({'w'})",
    ]


@pytest.mark.parametrize("value", [None, [], "w", 3, [torch.zeros(4, 6)], {"w": 1}])
def test_a_binding_is_a_tensor_a_shard_or_shards(value):
    refused(BadState, "'w' is bound to something that is not a tensor", bound_to={"w": value})


def test_live_states_and_bindings_are_mappings():
    with pytest.raises(BadState, match="live tensors are a mapping"):
        bind([torch.zeros(3)], describe(CHECKPOINT))
    with pytest.raises(BadState, match="bindings are a mapping"):
        bind(CHECKPOINT, describe(CHECKPOINT), [("w", CHECKPOINT["w"])])
    with pytest.raises(BadState, match="tensor names are strings"):
        bind({3: torch.zeros(3)}, describe(CHECKPOINT))


def test_shards_of_one_name_that_overlap_are_refused():
    live = {"one": torch.zeros(3, 6), "two": torch.zeros(3, 6), "b": torch.zeros(6)}
    shards = [Shard(live["one"], (4, 6), (0, 0)), Shard(live["two"], (4, 6), (1, 0))]
    with pytest.raises(
        BadState, match=r"'w' is bound to shards that overlap: \[3, 6\] at \[0, 0\] and \[3, 6\] at \[1, 0\]"
    ):
        bind(live, describe(CHECKPOINT), {"w": shards})
    shards = [Shard(live["one"][:2], (4, 6), (0, 0)), Shard(live["one"][1:], (4, 6), (2, 0))]
    with pytest.raises(LayoutMismatch, match="'w' is bound to two shards in the same memory"):
        bind(live, describe(CHECKPOINT), {"w": shards})


def test_a_refused_binding_leaves_live_tensors_as_they_were():
    live = {"w": states.random_bits("float32", (4, 6)), "b": torch.zeros(3)}
    before = states.copied(live)
    with pytest.raises(LayoutMismatch):
        bind(live, describe(CHECKPOINT))
    assert states.same(live, before)


@pytest.mark.parametrize(
    ("shape", "global_shape", "offsets", "message"),
    [
        ((2, 3), (4, 3), (0,), "2 dimensions, its global shape 2, its offsets 1"),
        ((2,), (4, 3), (0, 0), "1 dimensions"),
        ((2, 3), (4, 3), (3, 0), r"shape \[2, 3\] at \[3, 0\] does not lie in a tensor of shape \[4, 3\]"),
        ((2, 3), (4, 3), (-1, 0), "does not lie"),
    ],
)
def test_a_shard_lies_in_its_tensor(shape, global_shape, offsets, message):
    with pytest.raises(BadState, match=message):
        Shard(torch.zeros(shape), global_shape, offsets)


def test_a_shard_is_of_a_tensor():
    with pytest.raises(BadState, match="not of a list"):
        Shard([1.0], (1,), (0,))


@pytest.mark.parametrize(
    ("lengths", "dim", "message"),
    [
        ({"q": 8, "k": 2}, 0, r"q, k: 8 \+ 2 does not cover dimension 0 of \[12, 8\] exactly"),
        ({"q": 8, "k": 8}, 0, "does not cover"),
        ({"q": 14, "k": -2}, 0, "does not cover"),
        ({}, 0, "nothing does not cover"),
        ({"q": 8}, 2, "does not have"),
    ],
)
def test_a_concatenation_covers_its_dimension_exactly(lengths, dim, message):
    with pytest.raises(BadState, match=message):
        concatenated(torch.zeros(12, 8), lengths, dim)


@pytest.mark.parametrize(
    ("dim", "rank", "world", "message"),
    [
        (0, 0, 4, r"gives rank 0 the shape \[3, 4\]; this view has \[4, 4\]"),
        (0, 3, 3, "no rank 3 among 3"),
        (0, -1, 3, "no rank -1"),
        (2, 0, 3, "does not have"),
    ],
)
def test_a_shard_of_a_rank_has_the_shape_that_the_rank_holds(dim, rank, world, message):
    with pytest.raises(BadState, match=message):
        sharded(torch.zeros(4, 4), (12, 4), dim, rank, world)
