"""What an engine's parameters hold of a checkpoint is found from its layers, for every way of cutting it."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deltavc.errors import LayoutMismatch
from deltavc.integrations.engines_bindings import held_by
from tests.integrations import standin_layers
from tests.integrations.standin_layers import Shape, checkpoint, served

CONTRACTS = Path(__file__).parent / "contracts"


@st.composite
def shapes(draw):
    size = draw(st.sampled_from([1, 2, 4]))
    kv_heads = draw(st.sampled_from([1, 2, 4]))
    return Shape(heads=4, kv_heads=kv_heads, tied=draw(st.booleans())).on(draw(st.integers(0, size - 1)), size)


def box_of(shard):
    return tuple(slice(at, at + length) for at, length in zip(shard.offsets, shard.tensor.shape, strict=True))


def described(state):
    return [{"name": name, "shape": list(tensor.shape)} for name, tensor in state.items()]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@given(shape=shapes())
def test_a_shard_holds_the_box_of_the_checkpoint_that_it_says_it_holds(engine, shape):
    state = checkpoint(shape, 1)
    held = held_by(served(engine, shape, state), described(state))
    for name, shards in held.bindings.items():
        for shard in shards:
            assert torch.equal(shard.tensor, state[name][box_of(shard)])
    assert {name for name in state if name not in held.bindings} == {
        name for name in state if name.endswith(("norm.weight", "layernorm.weight", "o_proj.bias"))
    }


@given(shape=shapes())
def test_ranks_together_hold_every_row_and_column(shape):
    state = checkpoint(shape, 0)
    covered = {name: torch.zeros(tensor.shape, dtype=torch.int) for name, tensor in state.items()}
    for rank in range(shape.size):
        held = held_by(served("vllm", shape.on(rank, shape.size), state), described(state))
        for name, shards in held.bindings.items():
            for shard in shards:
                covered[name][box_of(shard)] += 1
    assert all((covered[name] > 0).all() for name in held.bindings)


def test_what_the_checkpoint_has_fused_as_well_is_bound_in_parts():
    shape = Shape().on(1, 2)
    state = checkpoint(shape, 1)
    attn = "model.layers.0.self_attn"
    fused = {
        f"{attn}.qkv_proj.{own}": torch.cat([state[f"{attn}.{x}_proj.{own}"] for x in "qkv"])
        for own in ("weight", "bias")
    }
    apart = {
        name: tensor for name, tensor in state.items() if name.split(".")[-2] not in ("q_proj", "k_proj", "v_proj")
    }
    held = held_by(served("sglang", shape, state), described(apart | fused))
    for name, whole in fused.items():
        assert [shard.offsets[0] for shard in held.bindings[name]] == [8, 20, 28]
        for shard in held.bindings[name]:
            assert torch.equal(shard.tensor, whole[shard.offsets[0] :][: shard.tensor.shape[0]])


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_layers_are_asked_only_for_what_the_engine_has(engine):
    recorded = json.loads((CONTRACTS / f"{engine}.json").read_text())["layers"]
    known = {"weight", "quant_method"}  # by every layer: of torch.nn.Module and of the base of both linear kinds
    for name, attributes in recorded.items():
        kind = getattr(standin_layers, name)
        part = standin_layers._Part(engine, 1, 2)
        made = {"MergedColumnParallelLinear": [[12, 12]], "QKVParallelLinear": [Shape()]}
        layer = kind(part, *made.get(name, () if "shard_indices" in attributes or name == "ParallelLMHead" else (4, 4)))
        bases = [each.__name__ for each in kind.__mro__ if each.__name__ in recorded]
        has = known.union(*(recorded[base] for base in bases), attributes)
        assert {
            attribute for attribute in vars(layer) if not attribute.startswith("_") and attribute != "training"
        } <= has


def test_what_cannot_follow_is_refused():
    shape = Shape()
    state = checkpoint(shape, 0)

    class Fp8LinearMethod:
        pass

    quantised = served("vllm", shape, state)
    quantised.model.layers[0].mlp.down_proj.quant_method = Fp8LinearMethod()
    absorbed = served("sglang", shape, state)
    absorbed.post_load_weights = lambda: None
    wider = served("vllm", shape, state)
    wider.model.embed_tokens.org_vocab_size = 51
    for model, says in ((quantised, "Fp8LinearMethod"), (absorbed, "computes other tensors"), (wider, "51")):
        with pytest.raises(LayoutMismatch, match=says):
            held_by(model, described(state))
