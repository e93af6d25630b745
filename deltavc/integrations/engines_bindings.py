"""Bindings of a served model: which rows and columns of an engine's parameters are which checkpoint tensors.

SGLang and vLLM share the names and layouts of their layers, and name modules as checkpoints do, but for what they fuse:

    checkpoint                       rank 1 of 2 holds
    q_proj.weight   (8, h) ────────┐ qkv_proj.weight      q rows 4..7, k rows 2..3, v rows 2..3
    k_proj, v_proj  (4, h) ────────┘                      (a kv head that has more ranks than one is copied)
    gate_proj, up_proj (6, h) ─────> gate_up_proj.weight  gate rows 3..5, up rows 3..5
    o_proj.weight   (h, 8) ────────> o_proj.weight        columns 4..7
    embed_tokens    (50, h) ───────> embed_tokens.weight  rows 32..49, and 14 rows of padding
    norm.weight     (h,) ──────────> norm.weight          all of it

A layer is known by the name of its class, so that no engine need be imported, and everything that it is assumed to be
is checked: `repo.replica_group` reads the weights and compares them with the version. Where these rules are wrong,
nothing can be staged.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deltavc.errors import LayoutMismatch
from deltavc.shard import Shard

FUSED: Mapping[str, Sequence[str]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""What engines fuse in every model that has it. A model's own `packed_modules_mapping` (vLLM) adds to it."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a worker holds of a version, as `repo.replica_group` takes it.

    live: the model's parameters by the engine's names. bindings: checkpoint tensors that lie elsewhere than under their
    own name, or in part. ignore: live tensors with rows that are no checkpoint's: padding.
    """

    live: Mapping[str, Tensor]
    bindings: Mapping[str, list[Shard]]
    ignore: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Section:
    """A run of rows, or columns, of a fused parameter: `length` of them, which begin at `start` of `total` in the
    checkpoint's tensor."""

    length: int
    start: int
    total: int


def held_by(model: torch.nn.Module, tensors: Iterable[Mapping[str, Any]]) -> Held:
    """Find where a model of SGLang or vLLM holds the tensors of a version.

    Args:
        model: a worker's own.
        tensors: of the version, as `repo.tensors` gives them.

    Raises:
        LayoutMismatch: a layer is quantised, or keeps what is computed from weights, or is of a kind that is not known
            here, or has another shape than the version's tensors.
    """
    _check_plain(model)
    shapes = {tensor["name"]: tuple(tensor["shape"]) for tensor in tensors}
    fused = {**FUSED, **getattr(model, "packed_modules_mapping", {})}
    live: dict[str, Tensor] = {}
    bindings: dict[str, list[Shard]] = {}
    ignore = []
    for path, module in model.named_modules():
        for own, parameter in module.named_parameters(recurse=False):
            name = f"{path}.{own}" if path else own
            live[name] = parameter.data.as_subclass(Tensor)
            for bound, shard in _parts(path, own, module, live[name], fused, shapes):
                if bound in shapes:
                    bindings.setdefault(bound, []).append(shard(shapes[bound]))
            if _padded(module, live[name]):
                ignore.append(name)
        for own, buffer in module.named_buffers(recurse=False):
            name = f"{path}.{own}" if path else own
            if name in shapes:
                live[name] = buffer
    return Held(live, bindings, ignore)


_Cut = Callable[[tuple[int, ...]], Shard]
"""Makes a shard, once the shape of the whole tensor is known."""


def _parts(
    path: str, own: str, module: Any, live: Tensor, fused: Mapping[str, Sequence[str]], shapes: Mapping[str, Any]
) -> Iterator[tuple[str, _Cut]]:
    """The checkpoint tensors that a parameter holds, and how to make the shard of each."""
    kinds = {kind.__name__ for kind in type(module).__mro__}
    name = f"{path}.{own}" if path else own
    if "VocabParallelEmbedding" in kinds:
        rows = module.shard_indices
        length = rows.org_vocab_end_index - rows.org_vocab_start_index
        if length:
            yield name, _cut(name, live, 0, 0, _Section(length, rows.org_vocab_start_index, module.org_vocab_size))
    elif "RowParallelLinear" in kinds and live.dim() > 1:
        rank, size = _rank_of(module)
        length = live.shape[1]
        yield name, _cut(name, live, 1, 0, _Section(length, rank * length, size * length))
    elif "ColumnParallelLinear" in kinds:
        sections = _sections(module, kinds, live.shape[0])
        begins = itertools.accumulate((section.length for section in sections), initial=0)
        parent, _, last = path.rpartition(".")
        within = f"{parent}." if parent else ""
        names = [f"{within}{part}.{own}" for part in fused.get(last, ())]
        if len(names) == len(sections) > 1 and any(each in shapes for each in names):
            for each, begin, section in zip(names, begins, sections, strict=False):
                yield each, _cut(each, live, 0, begin, section)
        else:  # the checkpoint has it fused as well, one whole part after the other, or there is one part only
            wholes = itertools.accumulate((section.total for section in sections), initial=0)
            total = sum(section.total for section in sections)
            for begin, whole, section in zip(begins, wholes, sections, strict=False):
                yield name, _cut(name, live, 0, begin, _Section(section.length, whole + section.start, total))


def _sections(module: Any, kinds: set[str], rows: int) -> list[_Section]:
    """The parts that the rows of a column-parallel layer are fused of, in order."""
    rank, size = _rank_of(module)
    if "QKVParallelLinear" in kinds:
        queries = module.num_heads * module.head_size
        own = rank if (group := getattr(module, "kv_tp_group", None)) is None else group.rank_in_group
        head = own // module.num_kv_head_replicas * module.num_kv_heads
        sizes = (module.head_size, module.v_head_size)
        return [
            _Section(queries, rank * queries, module.total_num_heads * module.head_size),
            *(_Section(module.num_kv_heads * each, head * each, module.total_num_kv_heads * each) for each in sizes),
        ]
    if "MergedColumnParallelLinear" in kinds:
        return [_Section(total // size, rank * (total // size), total) for total in module.output_sizes]
    return [_Section(rows, rank * rows, size * rows)]


def _cut(name: str, live: Tensor, dim: int, begin: int, section: _Section) -> _Cut:
    """The shard of a checkpoint tensor that a run of a live one is, along a dimension."""

    def cut(shape: tuple[int, ...]) -> Shard:
        if len(shape) != live.dim() or shape[dim] != section.total:
            engine = f"{section.total} along dimension {dim} of {live.dim()}"
            raise LayoutMismatch(name, f"is of shape {list(shape)} in the version; the engine's layer has {engine}")
        if begin + section.length > live.shape[dim]:
            raise LayoutMismatch(name, f"is held by a layer of {live.shape[dim]} rows, which is too few for its parts")
        offsets = tuple(section.start if each == dim else 0 for each in range(live.dim()))
        return Shard(live.narrow(dim, begin, section.length), shape, offsets)

    return cut


def _padded(module: Any, live: Tensor) -> bool:
    rows = getattr(module, "shard_indices", None)
    return rows is not None and rows.org_vocab_end_index - rows.org_vocab_start_index < live.shape[0]


def _rank_of(module: Any) -> tuple[int, int]:
    """Which part of how many a layer holds. vLLM's layers say so; SGLang's have the group, or None for all of it."""
    if hasattr(module, "tp_rank"):
        return module.tp_rank, module.tp_size
    group = module.tp_group
    return (0, 1) if group is None else (group.rank_in_group, group.world_size)


def _check_plain(model: torch.nn.Module) -> None:
    """Raise LayoutMismatch if what is served is not the weights themselves."""
    if hasattr(model, "post_load_weights"):
        reason = "computes other tensors from its weights when they are loaded, which would not follow"
        raise LayoutMismatch(type(model).__name__, reason)
    for path, module in model.named_modules():
        kind, method = type(module).__name__, getattr(module, "quant_method", None)
        if method is not None and not type(method).__name__.startswith("Unquantized"):
            raise LayoutMismatch(
                path, f"is quantised or packed ({type(method).__name__}): bits of it are not the version's"
            )
        if "MLA" in kind or ("MoE" in kind and list(module.parameters(recurse=False))):
            raise LayoutMismatch(path, f"is a {kind}, whose arrangement of weights is not known here")
