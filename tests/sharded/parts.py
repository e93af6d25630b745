"""Ways in which ranks hold a state in parts."""

import torch

from deltavc import Shard


def cut(tensor, bounds, dim, rank):
    """The part of a rank that has from bounds[rank] to bounds[rank + 1] along a dimension."""
    start, end = bounds[rank], bounds[rank + 1]
    offsets = [start if each == dim else 0 for each in range(tensor.dim())]
    return Shard(tensor.narrow(dim, start, end - start).clone(), tuple(tensor.shape), tuple(offsets))


def chunked(tensor, dim, rank, size):
    """As torch.chunk cuts, and DTensor and FSDP: the last ranks have less, or nothing."""
    length = tensor.shape[dim]
    each = -(-length // size)
    return cut(tensor, [min(number * each, length) for number in range(size + 1)], dim, rank)


def by_rows(rank, size, state):
    """Every tensor by its first dimension; those without one on every rank."""
    return {name: chunked(tensor, 0, rank, size) if tensor.dim() else tensor for name, tensor in state.items()}


def by_columns(rank, size, state):
    return {
        name: chunked(tensor, -1 % tensor.dim(), rank, size) if tensor.dim() else tensor
        for name, tensor in state.items()
    }


def unevenly(rank, size, state):
    """By rows, all but the first rank with one at most."""
    held = {}
    for name, tensor in state.items():
        length = tensor.shape[0] if tensor.dim() else 0
        bounds = [0, *(max(length - size + 1 + number, min(length, number)) for number in range(size))]
        held[name] = cut(tensor, sorted(bounds), 0, rank) if tensor.dim() else tensor
    return held


def in_blocks(rank, size, state):
    """Matrices by rows and columns, a block for every pair of ranks; the rest copied."""
    pair, pairs = rank // 2, -(-size // 2)
    held = {}
    for name, tensor in state.items():
        if tensor.dim() < 2:
            held[name] = tensor
            continue
        rows = chunked(tensor, 0, rank % 2, 2)
        within = chunked(rows.tensor, 1, pair, pairs)
        held[name] = Shard(within.tensor, tuple(tensor.shape), (rows.offsets[0], within.offsets[1], *rows.offsets[2:]))
    return held


def in_stages(rank, size, state):
    """As a pipeline: each rank has some tensors."""
    return {name: tensor for place, (name, tensor) in enumerate(state.items()) if place % size == rank}


def copied(rank, size, state):
    """All of it on every rank."""
    return dict(state)


WAYS = [by_rows, by_columns, unevenly, in_blocks, in_stages, copied]


def apart(held):
    """The same parts in memory of their own, where a test may write."""
    return {
        name: Shard(part.tensor.clone(), part.global_shape, part.offsets) if isinstance(part, Shard) else part.clone()
        for name, part in held.items()
    }


def bits(tensor):
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32)
