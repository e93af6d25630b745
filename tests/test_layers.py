"""Layers: told from names, whole, and in an order that people count in."""

import secrets

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import deltavc
from deltavc.layers import by_layer, grouped, layer_of, layer_order


@pytest.mark.parametrize(
    ("tensor", "layer"),
    [
        ("model.layers.3.self_attn.q_proj.weight", "model.layers.3"),
        ("model.layers.12.mlp.experts.7.w1", "model.layers.12"),
        ("transformer.h.0.ln_1.bias", "transformer.h.0"),
        ("0.weight", "0"),
        ("model.embed_tokens.weight", "model.embed_tokens"),
        ("lm_head.weight", "lm_head"),
        ("scale", "scale"),
        ("", ""),
        ("a.²", "a"),
    ],
)
def test_a_layer_is_the_name_up_to_its_first_number_or_the_module(tensor, layer):
    assert layer_of(tensor) == layer


def test_layers_are_in_the_order_of_their_numbers():
    names = ["m.layers.10.w", "m.norm.w", "m.layers.9.w", "m.layers.9.b", "head.w", f"m.layers.{'9' * 5000}.w"]
    ordered = list(grouped(names, str))
    assert ordered[:4] == ["head", "m.layers.9", "m.layers.10", f"m.layers.{'9' * 5000}"]
    assert ordered[4:] == ["m.norm"]


@given(st.lists(st.text(alphabet="a.01²\n", max_size=6), unique=True))
def test_every_tensor_is_in_one_layer_and_layers_have_an_order(names):
    found = grouped(names, str)
    assert sorted(name for some in found.values() for name in some) == sorted(names)
    assert list(found) == sorted(found, key=layer_order)


def test_layers_of_a_diff_sum_up_to_the_whole():
    old = {"embed.weight": torch.zeros(10), "layers.0.a": torch.zeros(4), "layers.0.b": torch.zeros(4)}
    new = {name: value.clone() for name, value in old.items()} | {"layers.1.a": torch.ones(3)}
    new["layers.0.a"][0] = 1
    new["layers.0.b"][:2] = torch.finfo(torch.float32).tiny
    with deltavc.init(f"memory://layers-{secrets.token_hex(4)}") as repo:
        repo.commit(old)
        repo.commit(new)
        diff = repo.diff("main~1", "main")
    layers = {layer.name: layer for layer in diff.by_layer()}
    assert list(layers) == ["embed", "layers.0", "layers.1"]
    assert (layers["embed"].num_changed, layers["embed"].changed_elements) == (0, 0)
    assert (layers["layers.0"].num_changed, layers["layers.0"].changed_elements) == (2, 3)
    assert layers["layers.0"].largest_step == diff.total.largest_step
    assert (layers["layers.1"].num_changed, layers["layers.1"].num_elements) == (1, 3)
    assert sum(layer.changed_elements for layer in layers.values()) == diff.total.changed_elements
    assert by_layer(()) == ()
