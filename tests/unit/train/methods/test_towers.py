"""A base with a vision tower: the language model gets adapters, the tower none, and the report says which share."""

from __future__ import annotations

import warnings

from peft import LoraConfig, get_peft_model
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from trainyard.spec.axes.methods import adapter_settings
from trainyard.spec.training import TrainerConfig, resolve_trainer
from trainyard.train.methods.coverage import measure_coverage
from trainyard.train.methods.targets import list_adapted, targets

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def test_a_vision_tower_gets_no_adapter_and_the_share_says_so() -> None:
    vision = CLIPVisionConfig(**SIZES, image_size=32, patch_size=16)
    text = LlamaConfig(**SIZES, vocab_size=128, num_key_value_heads=2)
    model = LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text, image_token_index=120))
    lora_targets = targets(model, adapter_settings(resolve_trainer(TrainerConfig(), "base").method))
    names = [name for name, _ in list_adapted(model, lora_targets.modules)]
    assert len(names) == 7 * 2
    assert all(name.startswith("model.language_model.layers.") for name in names)
    with warnings.catch_warnings(action="ignore"):  # PEFT asks transformers for a name that goes
        adapted = get_peft_model(model, LoraConfig(r=4, target_modules=names))
    coverage = measure_coverage(adapted, "default")
    assert coverage["kinds"]["towers"][0] == 0
    assert coverage["kinds"]["attention"][0] == coverage["kinds"]["attention"][1] > 0
    assert "towers 0 % of" in coverage["note"]
