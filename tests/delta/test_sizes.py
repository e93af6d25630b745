"""Sizes that are promised: of changes against zstd on a dense XOR, of snapshots against raw weights."""

import pytest

from deltavc.change import Dense, Sparse
from deltavc.delta.codecs import choose, codec
from tests.delta.samples import make_sparse, real_weights, training_run


def sparse_of(before, after):
    difference = after - before
    positions = difference.nonzero().flatten()
    return Sparse("add", positions, difference[positions])


def test_sparse_is_at_most_055_of_zstd_on_a_dense_xor():
    num_lanes = 1 << 20
    sparse = xor = 0
    for before, after in training_run(num_lanes, steps=8, seed=0):
        change = sparse_of(before, after)
        assert 0.003 < change.num_changes / num_lanes < 0.009
        sparse += len(codec("sparse").encode(change, num_lanes))
        xor += len(codec("xor-zstd").encode(Dense("xor", before ^ after), num_lanes))
    assert sparse <= 0.55 * xor


@pytest.mark.parametrize(("density", "most"), [(1e-4, 17.7), (1e-3, 13.9), (0.01, 10.2), (0.05, 7.9), (0.3, 5.2)])
def test_sparse_takes_few_bits_a_change(density, most):
    # Entropies of the positions are 14.7, 11.4, 8.1, 5.7 and 2.9 bits, of these values about 2.3.
    change = make_sparse(0, 2, "add", 1 << 20, density, "scattered", "steps")
    assert 8 * len(codec("sparse").encode(change, 1 << 20)) <= most * change.num_changes


def test_a_bf16_snapshot_of_a_real_model_is_at_most_067_of_raw():
    raw = stored = 0
    for lanes in real_weights():
        change, name = Dense("add", lanes), choose(Dense("add", lanes), lanes.numel())
        if name != "sparse":  # a tensor of zeros
            stored += len(codec(name).encode(change, lanes.numel()))
        raw += lanes.nbytes
    assert stored <= 0.67 * raw
