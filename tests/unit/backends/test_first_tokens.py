"""A base whose tokenizer puts BOS first and which has no chat template: BOS once, from training to serving."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.small_jobs import Jobs, train_here
from trainyard.backends.script.files import plain_spec
from trainyard.backends.trl.loading import load_tokenizer
from trainyard.data.renderers.choice import choose_template
from trainyard.data.rows import Message, SftRow
from trainyard.evals.job import EvaluationJob, Participant
from trainyard.evals.model import load_tokenizer as load_evaluated
from trainyard.serve.answers import Answers
from trainyard.serve.expected import expect_candidate
from trainyard.serve.inference import ModelRunner, Worker
from trainyard.serve.protocol import ChatRequest
from trainyard.serve.served import ServedBase, ServedModels
from trainyard.settings import settings
from trainyard.stores.models import ModelSource
from trainyard.testing.tiny import TEXT, build_tokenizer
from trainyard.train.rows.tokens import encode_sft

QUESTION = "What is node 1?"
ROW = SftRow([Message("user", QUESTION), Message("assistant", "A node.")])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama like the bases of Llama and Gemma: BOS by the post-processor, no template, no padding token."""
    folder = tmp_path_factory.mktemp("bases") / "base"
    tokenizer = build_tokenizer([TEXT * 5])
    tokenizer.add_special_tokens({"bos_token": "<bos>", "eos_token": "<|endoftext|>"})
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", tokenizer.bos_token_id)]
    )
    tokenizer.chat_template, tokenizer.pad_token = None, None
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def encode_served_prompt(folder: Path, **request: Any) -> list[int]:
    """The ids with which the model server asks a model in a folder."""
    engine, worker = ModelRunner(folder), Worker()
    served = ServedModels([ServedBase(ModelSource("base", folder, "0" * 64), engine, worker)], [])
    try:
        return (
            Answers(served, max_tokens=8)
            .by_base["base"]
            .chat_prompt(ChatRequest(model="base", messages=[{"role": "user", "content": QUESTION}], **request))
        )
    finally:
        worker.stop()


@pytest.mark.parametrize(("template", "text"), [("auto", "<bos>user: What is"), ("chatml", "<bos><|im_start|>user")])
def test_training_and_server_put_bos_first_once(
    template: str, text: str, base: Path, jobs: Jobs, tmp_path: Path
) -> None:
    job = jobs(
        base=base, backend="native", method="full", engine={"template": template}, hyperparameters={"max_steps": 1}
    )
    ran = train_here(job, tmp_path)
    assert any("The template does not write <bos>" in event["text"] for event in ran.of("warning"))
    saved = AutoTokenizer.from_pretrained(ran.folder)
    assert ran.record["renderer"] == ("role_colon" if template == "auto" else template)
    digest = hashlib.sha256(saved.chat_template.encode()).hexdigest()
    assert ran.record["chat_template_sha256"] == digest
    expected = expect_candidate(job.config.model_copy(update={"base_model": str(base)}), settings())
    assert expected.chat_template_sha256 == digest, "what a deployment is checked with beforehand"

    (example,), _ = encode_sft([ROW], saved, 64)
    prompt = encode_served_prompt(ran.folder)
    assert saved.decode(prompt).startswith(text)
    assert example["input_ids"][: len(prompt)] == prompt
    assert example["input_ids"].count(saved.bos_token_id) == 1
    turns = [{"role": "user", "content": QUESTION}]
    assert saved.apply_chat_template(turns, add_generation_prompt=True, return_dict=False) == prompt


def test_every_reader_of_a_base_chooses_the_same_template(base: Path, jobs: Jobs, home: Path) -> None:
    """TRL and the other tools, the evaluator of a base alone, and the script that needs nothing of this package."""
    alone = EvaluationJob(base_model="base", base_path=str(base), candidate=Participant(name="base"))
    texts = {
        load_tokenizer(jobs(base=base)).chat_template,
        load_evaluated(alone).chat_template,
        plain_spec(jobs(base=base, backend="script"))["chat_template"],
    }
    (text,) = texts
    assert text.startswith("{{ bos_token }}{% for")
    named = plain_spec(jobs(base=base, backend="script", engine={"template": "chatml"}))["chat_template"]
    assert named == "{{ bos_token }}" + choose_template("chatml").text
