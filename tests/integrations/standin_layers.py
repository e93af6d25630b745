"""A small model laid out as SGLang and vLLM lay out theirs, and what each of its parameters has to hold.

The layers have the names, attributes and shapes that `contracts/*.json` records, and no more than that: they hold
weights, and compute nothing. `expected` cuts a checkpoint by hand, from the engines' own rules for loading, and shares
no code with what it checks.
"""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch

from tests.states import generator

HIDDEN, HEAD, VOCAB, PADDED, INTERMEDIATE = 8, 4, 50, 64, 12


@dataclass(frozen=True)
class Shape:
    """What a model is like, and which part of it a rank holds."""

    heads: int = 4
    kv_heads: int = 2
    layers: int = 1
    tied: bool = False
    stages: int = 1
    size: int = 1
    rank: int = 0
    stage: int = 0

    def on(self, worker, workers):
        """That of one of some workers: tensor-parallel ranks, of one pipeline stage after another."""
        size = workers // self.stages
        return replace(self, size=size, rank=worker % size, stage=worker // size)

    def has(self, name):
        """Whether the stage has a parameter: the embedding is in the first, norm and head in the last."""
        if ".layers." in name:
            return int(name.split(".")[2]) % self.stages == self.stage
        return self.stage == (0 if "embed" in name else self.stages - 1)

    @property
    def kv_on_rank(self):
        return max(1, self.kv_heads // self.size)

    @property
    def kv_copies(self):
        return max(1, self.size // self.kv_heads)


def checkpoint(shape, step):
    """A checkpoint as Hugging Face names it. A few of its elements are others at each step."""
    sizes = {"model.embed_tokens": (VOCAB, HIDDEN), "model.norm": (HIDDEN,)}
    if not shape.tied:
        sizes["lm_head"] = (VOCAB, HIDDEN)
    kv = shape.kv_heads * HEAD
    for layer in range(shape.layers):
        within = f"model.layers.{layer}"
        sizes |= {
            f"{within}.input_layernorm": (HIDDEN,),
            f"{within}.self_attn.q_proj": (shape.heads * HEAD, HIDDEN),
            f"{within}.self_attn.k_proj": (kv, HIDDEN),
            f"{within}.self_attn.v_proj": (kv, HIDDEN),
            f"{within}.self_attn.o_proj": (HIDDEN, shape.heads * HEAD),
            f"{within}.mlp.gate_proj": (INTERMEDIATE, HIDDEN),
            f"{within}.mlp.up_proj": (INTERMEDIATE, HIDDEN),
            f"{within}.mlp.down_proj": (HIDDEN, INTERMEDIATE),
        }
    state = {}
    for number, (name, size) in enumerate(sizes.items()):
        state[f"{name}.weight"] = torch.randn(size, generator=generator(number)).bfloat16()
        if name.endswith(("q_proj", "k_proj", "v_proj", "o_proj")):
            state[f"{name}.bias"] = torch.randn(size[0], generator=generator(1000 + number)).bfloat16()
    for number, tensor in enumerate(state.values()):
        if step:
            lanes = tensor.view(torch.int16).view(-1)
            lanes[(number + step) % 7 :: 7] = step * 100 + number
    return state


def expected(state, shape):
    """What every parameter of a rank holds of a checkpoint, cut by hand. Padding is zero."""
    rank, size = shape.rank, shape.size
    found = {}

    def rows(name, parts=size, part=rank):
        each = state[name].shape[0] // parts
        return state[name][part * each : (part + 1) * each]

    def columns(name):
        each = state[name].shape[1] // size
        return state[name][:, rank * each : (rank + 1) * each]

    def vocabulary(name):
        padded = torch.zeros(PADDED, HIDDEN, dtype=torch.bfloat16)
        padded[:VOCAB] = state[name]
        each = PADDED // size
        return padded[rank * each : (rank + 1) * each]

    found["model.embed_tokens.weight"] = vocabulary("model.embed_tokens.weight")
    if not shape.tied:
        found["lm_head.weight"] = vocabulary("lm_head.weight")
    found["model.norm.weight"] = state["model.norm.weight"]
    for layer in range(shape.layers):
        attn, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        for own in ("weight", "bias"):
            kv_parts, kv_part = min(size, shape.kv_heads), rank // shape.kv_copies
            parts = [rows(f"{attn}.q_proj.{own}")]
            parts += [rows(f"{attn}.{name}.{own}", kv_parts, kv_part) for name in ("k_proj", "v_proj")]
            found[f"{attn}.qkv_proj.{own}"] = torch.cat(parts)
        found[f"{attn}.o_proj.weight"] = columns(f"{attn}.o_proj.weight")
        found[f"{attn}.o_proj.bias"] = state[f"{attn}.o_proj.bias"]
        found[f"{mlp}.gate_up_proj.weight"] = torch.cat([rows(f"{mlp}.{name}_proj.weight") for name in ("gate", "up")])
        found[f"{mlp}.down_proj.weight"] = columns(f"{mlp}.down_proj.weight")
        norm = f"model.layers.{layer}.input_layernorm.weight"
        found[norm] = state[norm]
    return {name: value for name, value in found.items() if shape.has(name)}


def served(engine, shape, state):
    """A rank's model of an engine, "sglang" or "vllm", that has loaded a checkpoint."""
    part = _Part(engine, shape.rank, shape.size)
    model = torch.nn.Module()
    model.model = torch.nn.Module()
    model.model.embed_tokens = VocabParallelEmbedding(part)
    model.model.norm = RMSNorm()
    model.model.layers = torch.nn.ModuleList(_layer(part, shape) for _ in range(shape.layers))
    if engine == "vllm":
        model.packed_modules_mapping = {
            "qkv_proj": ["q_proj", "k_proj", "v_proj"],
            "gate_up_proj": ["gate_proj", "up_proj"],
        }
    model.lm_head = model.model.embed_tokens if shape.tied else ParallelLMHead(part)
    for name, _ in [*model.named_parameters()]:
        if not shape.has(name):
            path = name.removesuffix(".weight").removesuffix(".bias")
            model.set_submodule(path, torch.nn.Identity())  # as vLLM's PPMissingLayer is
    load(model, expected(state, shape))
    return model


def load(model, values):
    with torch.no_grad():
        parameters = dict(model.named_parameters())
        assert parameters.keys() == values.keys()
        for name, value in values.items():
            parameters[name].copy_(value)


@dataclass(frozen=True)
class _Part:
    engine: str
    rank: int
    size: int

    def told_to(self, layer):
        """Say which part a layer is as its engine does."""
        if self.engine == "vllm":
            layer.tp_rank, layer.tp_size = self.rank, self.size
        else:
            layer.tp_group = SimpleNamespace(rank_in_group=self.rank, world_size=self.size) if self.size > 1 else None


class UnquantizedLinearMethod:
    pass


class RMSNorm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = _parameter(HIDDEN)


class LinearBase(torch.nn.Module):
    def __init__(self, part, rows, columns, bias_rows=0):
        super().__init__()
        part.told_to(self)
        self.quant_method = UnquantizedLinearMethod()
        self.weight = _parameter(rows, columns)
        if bias_rows:
            self.bias = _parameter(bias_rows)
        else:
            self.register_parameter("bias", None)


class ColumnParallelLinear(LinearBase):
    pass


class MergedColumnParallelLinear(ColumnParallelLinear):
    def __init__(self, part, output_sizes):
        super().__init__(part, sum(output_sizes) // part.size, HIDDEN)
        self.output_sizes = output_sizes


class QKVParallelLinear(ColumnParallelLinear):
    def __init__(self, part, shape):
        heads = shape.heads // part.size
        rows = (heads + 2 * shape.kv_on_rank) * HEAD
        super().__init__(part, rows, HIDDEN, rows)
        self.head_size = self.v_head_size = HEAD
        self.total_num_heads, self.total_num_kv_heads = shape.heads, shape.kv_heads
        self.num_heads, self.num_kv_heads = heads, shape.kv_on_rank
        self.num_kv_head_replicas = shape.kv_copies
        self.output_sizes = [each * HEAD * part.size for each in (heads, shape.kv_on_rank, shape.kv_on_rank)]
        if part.engine == "sglang":
            self.kv_tp_group = self.tp_group


class RowParallelLinear(LinearBase):
    pass


class VocabParallelEmbedding(torch.nn.Module):
    def __init__(self, part):
        super().__init__()
        part.told_to(self)
        self.quant_method = UnquantizedLinearMethod()
        self.org_vocab_size, self.num_embeddings_padded = VOCAB, PADDED
        each = PADDED // part.size
        begin, end = part.rank * each, (part.rank + 1) * each
        self.shard_indices = SimpleNamespace(
            org_vocab_start_index=min(begin, VOCAB), org_vocab_end_index=min(end, VOCAB)
        )
        self.weight = _parameter(each, HIDDEN)


class ParallelLMHead(VocabParallelEmbedding):
    pass


def _layer(part, shape):
    layer = torch.nn.Module()
    layer.input_layernorm = RMSNorm()
    layer.self_attn = torch.nn.Module()
    layer.self_attn.qkv_proj = QKVParallelLinear(part, shape)
    layer.self_attn.o_proj = RowParallelLinear(part, HIDDEN, shape.heads * HEAD // part.size, HIDDEN)
    layer.mlp = torch.nn.Module()
    layer.mlp.gate_up_proj = MergedColumnParallelLinear(part, [INTERMEDIATE, INTERMEDIATE])
    layer.mlp.down_proj = RowParallelLinear(part, HIDDEN, INTERMEDIATE // part.size)
    return layer


def _parameter(*size):
    return torch.nn.Parameter(torch.zeros(size, dtype=torch.bfloat16), requires_grad=False)
