"""A trained reward model: one number for a prompt with its completion, read off the last token.

Every consumer loads it here: PPO's and GRPO's reward, PPO's critic, the evaluator, best-of-n in the generator.

Shapes: B rows, T positions.

The critic of PPO: a model with one value a token, which begins as the reward model where there is one.

It is a module of the policy while that is trained, so that checkpoints, clipping and the optimizer include it; it is
taken off before anything is saved. Its weights are its own, and so is its rate: a loss of the critic moves no policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from trainyard.errors import InvalidInput
from trainyard.train.losses.scoring import CRITIC
from trainyard.train.methods.adapters import NEW, load_adapter, read_config
from trainyard.train.methods.contract import Groups, PolicyRequest
from trainyard.train.methods.loading import load_base, load_model, require_memory, training_record
from trainyard.train.methods.table import METHODS, build
from trainyard.train.model.head import row_scores
from trainyard.train.rl.rewards import SampledCompletion

ROWS_AT_ONCE = 16


@dataclass(frozen=True)
class ScorerSource:
    """Location of a reward model: a whole one in `base`, or an adapter on it."""

    base: str
    adapter: str | None = None

    @property
    def folder(self) -> Path:
        """Return the folder that its trainer made."""
        return Path(self.adapter or self.base)


def find_source(folder: str, base: str, base_sha256: str) -> ScorerSource:
    """Return the source of a folder that a trainer of stage reward made, next to a policy on `base`.

    An adapter names the base that it was trained on: its own, where that is another one than the policy's.
    """
    if not (Path(folder) / "adapter_config.json").is_file():
        return ScorerSource(folder)
    record = training_record(folder)
    same = not record.get("base_sha256") or record["base_sha256"] == base_sha256
    return ScorerSource(base if same else str(record["base_path"]), folder)


def load_reward_model(source: ScorerSource, device: str, seed: int) -> Any:
    """Return the frozen model, in float32 on a CPU. Raises `LimitExceeded` (`E-MEMORY-FIT`) before any weight is
    read.
    """
    if device == "cpu":
        require_memory(source.base, torch.float32)
    dtype: Any = torch.float32 if device == "cpu" else "auto"
    torch.manual_seed(seed)  # a base has no score of its own; the adapter brings one
    options = {"trust_remote_code": False, "use_safetensors": True, "dtype": dtype}
    model = load_model(source.base, "reward", options).to(device)
    if source.adapter is not None:
        config = read_config(Path(source.adapter), "reward", trainable=False)
        model = load_adapter(model, Path(source.adapter), config, NEW, device)
    return model.eval().requires_grad_(False)


def load_own_tokenizer(source: ScorerSource) -> PreTrainedTokenizerBase:
    """Return the tokenizer with which a reward model was trained, or its base's."""
    folder = source.folder / "tokenizer" if source.adapter is not None else source.folder
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        str(folder if folder.is_dir() else source.base), trust_remote_code=False
    )
    return tokenizer


def require_same_tokens(source: ScorerSource, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `InvalidInput` (`E-MODEL-INVALID`) for a reward model that reads other tokens than the policy writes."""
    scorer = load_own_tokenizer(source)
    if scorer.get_vocab() != tokenizer.get_vocab():
        raise InvalidInput(
            "The reward model has another tokenizer than the model that is trained.",
            why=f"It knows {len(scorer.get_vocab()):,} tokens, the model {len(tokenizer.get_vocab()):,}, and it "
            "scores tokens.",
            do="Train the reward model from the same base, such as from the sft adapter that this trainer continues.",
            code="E-MODEL-INVALID",
        )
    if scorer.chat_template != tokenizer.chat_template:
        raise InvalidInput(
            "The reward model was trained with another chat template than the model that is trained.",
            why="It has never seen prompts as this trainer writes them.",
            do="Use the same engine.template in both trainers.",
            code="E-MODEL-INVALID",
        )


@dataclass
class RewardModelScorer:
    """Scores rows of tokens."""

    model: Any
    pad_id: int

    def score(self, completions: Sequence[SampledCompletion], _settings: Any) -> list[float]:
        """Return the reward of each completion after its prompt."""
        return self.score_rows([list(completion.ids) for completion in completions])

    def score_rows(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """Return the reward of each row; rows of similar length are computed together."""
        order = sorted(range(len(rows)), key=lambda at: (len(rows[at]), at))
        scores = [0.0] * len(rows)
        for start in range(0, len(order), ROWS_AT_ONCE):
            row_indices = order[start : start + ROWS_AT_ONCE]
            ids = [torch.tensor(rows[at]) for at in row_indices]
            ids_BT = pad_sequence(ids, batch_first=True, padding_value=self.pad_id).to(self.model.device)
            mask_BT = pad_sequence([torch.ones_like(row) for row in ids], batch_first=True).to(self.model.device)
            with torch.inference_mode():
                values = row_scores(self.model, ids_BT, mask_BT).tolist()
            for at, value in zip(row_indices, values, strict=True):
                scores[at] = value
        return scores


def make_critic(request: PolicyRequest, source: ScorerSource | None) -> Any:
    """Return a critic: the reward model, trainable as it was; without one the policy's own start, whose values are all
    0.

    Raises what `build` raises for the head of a reward model.
    """
    critic_request = replace(request, head="reward")
    if source is None:
        critic = build(critic_request, with_reference=False).model
        for name, value in critic.named_parameters():
            if "score" in name.split("."):
                torch.nn.init.zeros_(value)
        return critic
    if source.adapter is None:
        return load_base(critic_request, source.base).requires_grad_(True)
    config = read_config(Path(source.adapter), "reward", trainable=True)
    base = METHODS[request.config.method.type].load(critic_request, source.base)
    return load_adapter(base, Path(source.adapter), config, NEW, request.device)


def attach_critic(model: Any, critic: Any) -> None:
    """Make the critic a module of the policy."""
    model.add_module(CRITIC, critic)


def detach_critic(model: Any) -> None:
    """Remove the critic from a policy that has one: the saved model has no value head."""
    if CRITIC in dict(model.named_children()):
        delattr(model, CRITIC)


def split_groups(groups: Groups, rate: float | None) -> Groups:
    """Return the same groups with the critic's weights in groups of their own, with their own rate where it is
    given.
    """
    divided_groups: Groups = []
    for group in groups:
        members = list(zip(group["names"], group["params"], strict=True))
        for of_critic in (False, True):
            part = [(name, value) for name, value in members if name.startswith(f"{CRITIC}.") is of_critic]
            if part:
                entries = {"names": [name for name, _ in part], "params": [value for _, value in part]}
                divided_groups.append({**group, **entries, **({"lr": rate} if of_critic and rate is not None else {})})
    return divided_groups
