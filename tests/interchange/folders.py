"""Checkpoints of a small model while it trains, as other people's software leaves them."""

import json

import torch
from safetensors.torch import save_file

from tests.states import generator

STEPS = (10, 20, 30)


def weights_at(step, rows=64):
    """A step's weights from its number alone: 1 % of a matrix changes a step, and a bias wholly."""
    w = torch.randn(rows, 128, generator=generator(1)).bfloat16() * 0.02
    for each in range(step // 10 + 1):
        w.view(torch.int16).view(-1)[each % 100 :: 100] += 1
    return {"model.w": w, "model.b": torch.full((16,), float(step)), "lm_head.weight": w[:3].clone()}


def write_trainer_state(folder, steps):
    """What a Trainer that logs and evaluates at these steps writes at the last of them."""
    log = []
    for step in steps:
        log.append({"epoch": step / 100, "grad_norm": 1.5, "learning_rate": 1e-6, "loss": 1 / step, "step": step})
        log.append({"epoch": step / 100, "eval_loss": 2 / step, "eval_runtime": 0.5, "step": step})
    state = {"global_step": steps[-1], "log_history": log, "best_metric": None, "is_world_process_zero": True}
    (folder / "trainer_state.json").write_text(json.dumps(state, indent=2))


def write_trainer_checkpoint(folder, step, steps=STEPS):
    """One checkpoint-N of a Trainer; optimizer and RNG state are there in name only."""
    at = folder / f"checkpoint-{step}"
    at.mkdir(parents=True)
    save_file(weights_at(step), at / "model.safetensors", metadata={"format": "pt"})
    (at / "config.json").write_text('{"model_type": "tiny"}')
    (at / "tokenizer.json").write_text('{"version": "1.0"}')
    write_trainer_state(at, [each for each in steps if each <= step])
    (at / "optimizer.pt").write_bytes(b"optimizer of %d" % step)
    (at / "rng_state.pth").write_bytes(b"rng of %d" % step)
    return at


def write_trainer_output(folder, steps=STEPS):
    for step in steps:
        write_trainer_checkpoint(folder, step, steps)
    return folder
