"""The model card of a starter build: `README.md` next to the weights, with every value taken from the manifest."""

from __future__ import annotations

from trainyard.json_types import JsonMapping

CARD = """---
license: apache-2.0
language: en
library_name: transformers
tags: [trainyard, starter]
---

# Trainyard's starter model

A Llama with {parameters:,} parameters, trained from random weights by Trainyard itself, so that every chain can be
tried without a hub, an account or a GPU. The weights are stored in bfloat16.

## Use and limits

It is a base for small adapters: after fine-tuning on a small handbook it quotes the handbook's sentences. Without one
it writes short English sentences in the style of documentation and knows hardly any facts. It has had no safety
training: do not use it for anything that a reader should rely on.

## Training data

The docstrings of these packages, as they are installed with Trainyard ({passages:,} passages; corpus digest
`{corpus_sha256}`):

| package | version | licence |
|---|---|---|
{packages}

One passage of a hundred, chosen by its digest, was not trained on.

## Training

| | |
|---|---|
| held-out loss, nats per token | {heldout_loss} |
| training loss, first and last fiftieth of the steps | {first_loss}, {last_loss} |
| tokens | {tokens:,} in {steps:,} steps |
| seed | {seed} |
| precision | {precision} ({precision_why}); Muon's products in {newton_schulz} |
| threads, seconds | {threads}, {seconds} |
| versions | {versions} |
| recipe digest | `{recipe_sha256}` |

`trainyard starter build` trains it again from the same recipe and corpus; the held-out losses differ by less than 2 %.
"""


def model_card(manifest: JsonMapping) -> str:
    """Return the card as Markdown, with the metadata block that the Hub reads."""
    packages = [f"| {name} | {entry['version']} | {entry['license']} |" for name, entry in manifest["packages"].items()]
    return CARD.format(
        **{
            **manifest,
            "packages": "\n".join(packages),
            "first_loss": manifest["losses"][0][1],
            "last_loss": manifest["losses"][-1][1],
            "steps": manifest["recipe"]["steps"],
            "seed": manifest["recipe"]["seed"],
            "versions": ", ".join(f"{name} {version}" for name, version in manifest["versions"].items()),
        }
    )
