"""A language model small enough for a CPU, its trainer, and texts that lie on every machine: what the examples share.

A transformer over bytes, in plain torch. As in most training, AdamW works on float32 masters; what is committed and
served is their bf16 copy.
"""

from __future__ import annotations

import copy
import inspect
import random
import sys
import sysconfig
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

BYTES = 256
BATCH = 8


class LanguageModel(nn.Module):
    """Says of every byte of a text which one comes next."""

    def __init__(self, width: int = 128, layers: int = 3, heads: int = 4, context: int = 64) -> None:
        super().__init__()
        self.context = context
        self.bytes = nn.Embedding(BYTES, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, BYTES)

    def forward(self, text: Tensor) -> Tensor:
        """Logits, shape (texts, length, 256), of what follows each byte; `text` is int64, shape (texts, length)."""
        hidden = self.bytes(text) + self.places(torch.arange(text.shape[1]))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))

    @torch.inference_mode()
    def continued(self, texts: Tensor, length: int) -> Tensor:
        """Texts with so many more bytes each, drawn as likely as the model says."""
        for _ in range(length):
            likely = self(texts[:, -self.context :])[:, -1].float().softmax(-1)
            texts = torch.cat([texts, torch.multinomial(likely, 1)], 1)
        return texts


class Block(nn.Module):
    """Attention, then two layers, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norms[0](hidden)).chunk(3, dim=-1)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(seen.transpose(1, 2).flatten(-2))
        return hidden + self.down(functional.gelu(self.up(self.norms[1](hidden))))


class Trainer:
    """Float32 masters under AdamW, taught to go on with a text. The last part of the text is held out.

    seed: which parts of the text it draws.
    """

    def __init__(self, masters: LanguageModel, text: Tensor, seed: int = 0) -> None:
        self.masters = masters
        self._text, self._held_out = text[: -len(text) // 20], text[-len(text) // 20 :]
        self._pick = torch.Generator().manual_seed(seed)
        self._optimizer = torch.optim.AdamW(masters.parameters())

    def steps(self, count: int, learning_rate: float) -> None:
        """Take so many steps of AdamW."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        for _ in range(count):
            self._optimizer.zero_grad()
            self._loss(self._batch(self._text, BATCH, self._pick)).backward()
            self._optimizer.step()

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """The loss, in nats a byte, on text that was held out; the same text every time."""
        return self._loss(self._batch(self._held_out, 4 * BATCH, torch.Generator().manual_seed(0))).item()

    def checkpoint(self) -> Any:
        """A copy of all that training needs."""
        return copy.deepcopy((self.masters.state_dict(), self._optimizer.state_dict()))

    def restore(self, checkpoint: Any) -> None:
        masters, optimizer = copy.deepcopy(checkpoint)
        self.masters.load_state_dict(masters)
        self._optimizer.load_state_dict(optimizer)

    def _batch(self, text: Tensor, count: int, pick: torch.Generator) -> Tensor:
        starts = torch.randint(len(text) - self.masters.context - 1, (count, 1), generator=pick)
        return text[starts + torch.arange(self.masters.context + 1)]

    def _loss(self, batch: Tensor) -> Tensor:
        return functional.cross_entropy(self.masters(batch[:, :-1]).flatten(0, 1).float(), batch[:, 1:].flatten())


def stdlib_sources() -> Tensor:
    """Some of Python's standard library, as bytes in an int64 tensor."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-c]*.py"))
    return as_bytes("".join(path.read_text(encoding="utf-8") for path in paths))


def docstrings() -> Tensor:
    """The docstrings of modules of Python's standard library."""
    found = []
    for name in sorted(sys.stdlib_module_names):
        module = sys.modules.get(name)
        for thing in vars(module).values() if module is not None else ():
            if (inspect.isclass(thing) or inspect.isroutine(thing)) and (text := inspect.getdoc(thing)):
                found.append(text)
    return as_bytes("\n\n".join(dict.fromkeys(found)))


def character_names() -> Tensor:
    """The names of all characters, in no order."""
    names = [name for code in range(0x3000) if (name := unicodedata.name(chr(code), ""))]
    return as_bytes("\n".join(random.Random(0).sample(names, len(names))))


def as_bytes(text: str) -> Tensor:
    return torch.tensor(list(text.encode()))


def as_text(row: Sequence[int]) -> str:
    """A line that shows what a model wrote."""
    return bytes(row).decode(errors="replace").replace("\n", "⏎")
