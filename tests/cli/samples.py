"""Checkpoints of a tiny model while it trains."""

import torch
from safetensors.torch import save_file


def write_checkpoints(folder):
    """Write step1 ... step4: directories whose weights differ a little from each to the next."""
    generator = torch.Generator().manual_seed(7)
    weights = {
        "layer.weight": torch.randn(32, 32, generator=generator).bfloat16(),
        "layer.bias": torch.randn(32, generator=generator),
    }
    for step in range(1, 5):
        weights["layer.weight"].view(torch.int16)[step, :3] += 1
        (folder / f"step{step}").mkdir()
        save_file(weights, folder / f"step{step}" / "model.safetensors", metadata={"format": "pt"})
        (folder / f"step{step}" / "config.json").write_text("{}")
