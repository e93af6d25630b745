"""Whatever ranks hold, their shares add up to whole tensors, each lane once, and copies that differ are found."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import deltavc
from deltavc import kernels
from deltavc.bindings import bind
from deltavc.change import Box
from deltavc.errors import LayoutMismatch
from deltavc.lanes import lanes
from deltavc.proof import shares
from deltavc.ranks.holdings import Holdings, description
from deltavc.weights.describe import describe
from tests.states import generator, random_bits

SHAPES = {"a": (12, 10), "b": (7,), "c": (3, 4, 5), "d": (), "e": (0, 3)}


def state(seed=0):
    found = {name: random_bits("bfloat16", shape, seed + number) for number, (name, shape) in enumerate(SHAPES.items())}
    return found | {"tied": found["a"]}


@st.composite
def arrangements(draw):
    """For each tensor the boxes of a grid over it, each with the ranks that hold it."""
    num_ranks = draw(st.integers(1, 5))
    found = {}
    for name, shape in SHAPES.items():
        edges = []
        for length in shape:
            cuts = draw(st.sets(st.integers(1, length - 1), max_size=3)) if length > 1 else set()
            edges.append([0, *sorted(cuts), length])
        boxes = [((), ())]
        for dim in edges:
            pairs = list(itertools.pairwise(dim))
            boxes = [((*o, start), (*n, end - start)) for o, n in boxes for start, end in pairs]
        ranks = st.sets(st.integers(0, num_ranks - 1), min_size=1)
        found[name] = [(Box(offsets, lengths), draw(ranks)) for offsets, lengths in boxes]
    return num_ranks, found


def bound_ranks(num_ranks, boxes, layout, values):
    """What each rank has bound: its boxes as tensors of their own."""
    found = []
    for rank in range(num_ranks):
        live, bindings = {}, {}
        for name, each in boxes.items():
            parts = []
            for number, (box, ranks) in enumerate(each):
                if rank in ranks:
                    live[f"{name}.{number}"] = values[name][box.index].clone()
                    parts.append(deltavc.Shard(live[f"{name}.{number}"], SHAPES[name], box.offsets))
            if parts:
                bindings[name] = parts
        found.append(bind(live, layout, bindings, complete=False))
    return found


def summed(bounds, layout):
    told = [description(bound, []) for bound in bounds]
    held = [Holdings(layout, rank, told) for rank in range(len(bounds))]
    fingerprints = [shares(bound) for bound in bounds]
    return held, fingerprints, sum(each.terms(found) for each, found in zip(held, fingerprints, strict=True))


@given(arrangements(), st.integers(0, 1 << 16))
def test_shares_add_up_to_whole_tensors_and_the_first_copy_that_differs_is_told(arrangement, seed):
    num_ranks, boxes = arrangement
    values = state(seed)
    layout = describe(values, None)
    bounds = bound_ranks(num_ranks, boxes, layout, values)
    held, _, sums = summed(bounds, layout)
    whole = {
        name: kernels.fingerprint(lanes(values[name]), Box.whole(shape), shape) if values[name].numel() else 0
        for name, shape in SHAPES.items()
    }
    assert all(each.totals(sums) == whole and not each.differing(sums) for each in held)

    copied = [(name, box, ranks) for name, each in boxes.items() for box, ranks in each if len(ranks) > 1]
    copied = [each for each in copied if each[1].num_lanes]
    if copied:
        name, box, ranks = copied[seed % len(copied)]
        wrong = sorted(ranks)[seed % len(ranks)]
        cell = next(cell for cell in bounds[wrong].cells_of(name) if cell.box == box)
        cell.lanes.view(-1)[int(torch.randint(cell.lanes.numel(), (), generator=generator(seed)))] ^= 1
        held, fingerprints, sums = summed(bounds, layout)
        for each in held:
            assert each.differing(sums) == [name]
            told = [one.shares_of(name, found) for one, found in zip(held, fingerprints, strict=True)]
            assert (wrong,) in each.difference(name, told).ranks


@given(arrangements(), st.data())
def test_a_box_that_nobody_holds_or_that_overlaps_another_is_refused_by_name(arrangement, data):
    num_ranks, boxes = arrangement
    name = data.draw(st.sampled_from(["a", "b", "c"]))
    number = data.draw(st.integers(0, len(boxes[name]) - 1))
    if len(boxes[name]) > 1 and data.draw(st.booleans()):
        boxes[name].append((Box.whole(SHAPES[name]), {num_ranks}))
        num_ranks += 1
    else:
        del boxes[name][number]
    values = state()
    layout = describe(values, None)
    with pytest.raises(LayoutMismatch) as caught:
        summed(bound_ranks(num_ranks, boxes, layout, values), layout)
    assert caught.value.tensor == name
