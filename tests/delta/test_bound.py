"""Sizes beside what theory allows: the entropy of positions and values, where every lane moves by itself."""

import pytest

from bench.compare_inputs import bound_nbits, synthetic
from bench.peers.schemes import OwnCodec

DENSITIES = {"bf16": (0.001, 0.01, 0.03), "fp8": (0.001, 0.01, 0.03), "fp4": (0.00085, 0.01), "bytes": (0.00085, 0.01)}


def nbytes(old, new, codec=None):
    step = OwnCodec({"weights": old}, {"weights": new}, codec)
    step.encode()
    return step.nbytes


@pytest.mark.parametrize(("kind", "density"), [(kind, each) for kind, all in DENSITIES.items() for each in all])
def test_frames_are_within_4_percent_of_the_entropy(kind, density):
    old, new = synthetic(kind, 4 << 20, density)
    assert int((old != new).sum()) == pytest.approx(density * old.numel(), rel=0.1)
    bound = bound_nbits(old, new)
    assert bound <= 8 * nbytes(old, new) <= 1.04 * bound


@pytest.mark.parametrize(("kind", "most"), [("bf16", 0.5), ("fp8", 0.72), ("fp4", 0.78), ("bytes", 0.78)])
def test_sparse_steps_are_smaller_than_zstd_on_a_dense_xor(kind, most):
    # Of one-byte lanes zstd 1 makes 19 to 26 bits a change, so that the entropy itself is 0.61 to 0.75 of it; with a
    # worker thread, as its program runs by default, 28 to 34, and then it is 0.45 to 0.58.
    old, new = synthetic(kind, 8 << 20, 0.00085)
    assert nbytes(old, new) <= most * nbytes(old, new, "xor-zstd")
