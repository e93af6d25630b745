"""A real GRPO run and a real SFT run of TRL with the callback, on models made from nothing and without a network."""

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

import deltavc
from deltavc.integrations.transformers import DeltavcCallback
from tests.integrations.trainers import Crash, Spy, crash, weights_of
from tests.states import same

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # TRL asks transformers by names that are going to change.
    pytest.mark.filterwarnings(r"ignore:`\w*gradient_checkpointing\w*` is deprecated:FutureWarning"),
]


def tokenizer():
    words = ["<pad>", "<eos>", *(f"w{number}" for number in range(30))]
    model = models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<pad>")
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")


def llama():
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    words = {"vocab_size": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, max_position_embeddings=64, **sizes, **words))


def ones(completions, **kwargs):
    """The reward: how often a completion says a word with a 1 in it."""
    return [float(completion.count("w1")) for completion in completions]


def told(folder):
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False}
    return {"output_dir": str(folder), "max_steps": 6, "learning_rate": 1e-2, "logging_steps": 1, **quiet}


def grpo(folder, *callbacks, **more):
    sizes = {"per_device_train_batch_size": 4, "num_generations": 2, "max_completion_length": 6}
    return GRPOTrainer(
        model=llama(),
        reward_funcs=ones,
        args=GRPOConfig(save_strategy="no", **sizes, **told(folder), **more),
        train_dataset=Dataset.from_list([{"prompt": f"w{number} w{number + 1}"} for number in range(2, 14)]),
        processing_class=tokenizer(),
        callbacks=list(callbacks),
    )


def reusing(folder, *callbacks):
    """Each generation is used for two steps."""
    return grpo(folder, *callbacks, num_iterations=2)


def sft(folder, *callbacks):
    return SFTTrainer(
        model=llama(),
        args=SFTConfig(save_strategy="no", per_device_train_batch_size=2, max_length=8, **told(folder)),
        train_dataset=Dataset.from_list([{"text": f"w{number} w{number + 1}"} for number in range(2, 20)]),
        processing_class=tokenizer(),
        callbacks=list(callbacks),
    )


def run(make, folder, repo, then=None):
    callback, spy = DeltavcCallback(repo, state_every=2), Spy(then)
    trainer = make(folder, callback, spy)
    try:
        trainer.train(resume_from_checkpoint=callback.checkpoint())
    except Crash:
        callback.close()
    return trainer, spy.weights


def fingerprints(repo):
    return [(version.step, version.fingerprint) for version in repo.log()]


@pytest.mark.parametrize(
    ("make", "metric"),
    [
        (grpo, "reward"),
        pytest.param(reusing, "loss", marks=pytest.mark.long),
        pytest.param(sft, "loss", marks=pytest.mark.long),
    ],
)
def test_every_step_is_a_version_and_a_run_that_ended_goes_on_as_if_it_had_not(tmp_path, make, metric):
    name = f"memory://{make.__name__}"
    with deltavc.init(name) as never, deltavc.init(f"{name}-ended") as ended:
        trainer, weights = run(make, tmp_path, never)
        assert [version.step for version in never.log()] == [6, 5, 4, 3, 2, 1, 0]
        for version in never.log():
            assert same(never.checkout(version.id), weights[version.step])
            assert (metric in version.metrics) == (version.step > 0)
        assert never.version(f"best:{metric}").step > 0

        run(make, tmp_path, ended, {4: crash})
        again, _ = run(make, tmp_path, ended)
        assert same(weights_of(again.model), weights_of(trainer.model))
        assert fingerprints(ended) == fingerprints(never)

        never.checkout("step:3", path=tmp_path / "step3")
        assert same(weights_of(LlamaForCausalLM.from_pretrained(tmp_path / "step3")), weights[3])
        assert AutoTokenizer.from_pretrained(tmp_path / "step3")("w3")["input_ids"] == [5]
