"""A small real Trainer: a GPT-2 of 4,000 weights with dropout, shuffled data, AdamW and a schedule. Run as a script, it
is what a person writes, and is killed at the step that it is told."""

import math
import os
import signal
import sys
import warnings

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from deltavc.integrations.transformers import DeltavcCallback

STEPS_PER_EPOCH = 4


class Words(torch.utils.data.Dataset):
    """Sentences of eight words, the same in every process."""

    def __init__(self, count):
        self.ids = torch.randint(0, 40, (count, 8), generator=torch.Generator().manual_seed(3))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, place):
        return {"input_ids": self.ids[place], "labels": self.ids[place]}


class Stream(torch.utils.data.IterableDataset):
    """The same sentences, one after another."""

    def __iter__(self):
        return iter([*Words(64)])


class Spy(TrainerCallback):
    """Keeps the weights of every step, and does to a step what it is told."""

    def __init__(self, then=None):
        self.weights, self.then = {}, then or {}

    def on_epoch_begin(self, args, state, control, model=None, **kwargs):
        self.weights.setdefault(state.global_step, weights_of(model))

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.weights[state.global_step] = weights_of(model)

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        self.then.get(state.global_step + 1, lambda model: None)(model)


def weights_of(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def make_trainer(folder, *callbacks, data=None, **arguments):
    torch.manual_seed(7)
    config = GPT2Config(vocab_size=40, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    told = {
        "output_dir": str(folder),
        "max_steps": 10,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "cosine",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(**{**told, **arguments}),
        train_dataset=data or Words(4 * STEPS_PER_EPOCH - 1),
        eval_dataset=Words(4),
        callbacks=list(callbacks),
    )
    trainer.remove_callback(next(c for c in trainer.callback_handler.callbacks if "Printer" in type(c).__name__))
    return trainer


def kill(model):
    os.kill(os.getpid(), signal.SIGKILL)


class Crash(Exception):
    """What ends a run that is not killed, but gone on from in the same process."""


def crash(model):
    raise Crash


def spoil(model):
    """What a bad batch does."""
    with torch.no_grad():
        model.transformer.wte.weight[3] = float("nan")


def run(folder, callback, then=None, ref=None, **arguments):
    """What the script does, in this process. Returns the trainer, and the weights of every step that it made."""
    spy = Spy(then)
    trainer = make_trainer(folder, callback, spy, **arguments)
    try:
        trainer.train(resume_from_checkpoint=callback.checkpoint(ref))
    except Crash:
        callback.close()
    return trainer, spy.weights


def nan_gradients(metrics):
    return math.isnan(metrics["grad_norm"])


def main(folder, killed, spoiled="0"):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    callback = DeltavcCallback(f"{folder}/repo", state_every=4, rollback_if=nan_gradients)
    run(folder, callback, {int(killed): kill, int(spoiled): spoil})


if __name__ == "__main__":
    main(*sys.argv[1:])
