"""Preflight checks of deploy targets for the adapter that a trainer will produce.

What training will write into the adapter's files is known from the trainer's config and its base, so the functions
that the deployer calls (`targets.TARGETS[…].check`) answer now. A server that does not answer now may answer then: it
is asked again by the deployer, and nothing is refused because of it here.
"""

from __future__ import annotations

from pathlib import Path

import httpx

from trainyard.data.paths import data_roots
from trainyard.data.renderers.choice import ChosenTemplate, choose_template
from trainyard.data.renderers.tokenizer import choose_for_tokenizer
from trainyard.errors import Reason, Refused, TrainyardError
from trainyard.loading import load_object
from trainyard.serve.deploy import address
from trainyard.serve.targets.calling import http_client
from trainyard.serve.targets.contract import AdapterCandidate, TargetDeployment
from trainyard.serve.targets.table import TARGETS
from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.methods import AdapterSettings, Method, find_rank
from trainyard.spec.nodes import DeployerConfig, Target
from trainyard.spec.training import TrainerConfig
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.models import chat_template, resolve_model

ANSWER_S = 5.0
"""How long a server may take to say what it serves."""
NOT_YET = ("E-SERVER-UNREACHABLE", "E-API-KEY", "R-TARGET-DOWN")
"""What may be otherwise when the deployer asks: a server that is not up, a key that only the worker has."""


def expect_candidate(config: TrainerConfig, settings: Settings, *, rank: int = 0) -> AdapterCandidate:
    """Return the adapter that a trainer will produce. `rank` is that of the adapters that are written as one with it.

    Raises what `resolve_model` raises for a base that is not here or may not be loaded.
    """
    base = resolve_model(str(config.base_model), settings)
    sha256 = text = ""  # only the training knows it
    if base.path is not None and config.backend is not BackendName.SCRIPT:
        choice = choose_for_base(base.path, config.engine.template, settings)
        sha256, text = choice.sha256, choice.text
    adapter = {
        "peft_type": "OFT" if config.method.type is Method.OFT else "LORA",
        "r": find_rank(config.method) + rank,
        "use_dora": config.method.type is Method.DORA,
        "modules_to_save": list(config.method.modules_to_save) if isinstance(config.method, AdapterSettings) else [],
    }
    return AdapterCandidate(
        kind="adapter" if config.method.facts.adapter else "model",
        base_model=str(config.base_model),
        base_path=base.location,
        base_sha256=base.sha256 if base.path else "",
        chat_template_sha256=sha256,
        adapter_config=adapter,
        template=text,
    )


def choose_for_base(base: Path, name: str, settings: Settings) -> ChosenTemplate:
    """Return the template that a training on a base saves. Its tokenizer is read only if it may change the text."""
    base_template, roots = chat_template(base), data_roots(settings)
    choice = choose_template(name, base_template, roots=roots)
    if choice.text == base_template:
        return choice
    try:
        tokenizer = load_object("transformers:AutoTokenizer").from_pretrained(base, trust_remote_code=False)
    except (OSError, ValueError):  # the trainer's own check names what its files lack
        return choice
    return choose_for_tokenizer(tokenizer, name, roots=roots)


def target_reasons(config: DeployerConfig, candidate: AdapterCandidate, settings: Settings) -> list[Reason]:
    """Every reason why a target would not take the candidate, as far as it can be asked now."""
    reasons: list[Reason] = []
    for index, target in enumerate(config.targets):
        if target.type.facts.server == "none":
            continue
        try:
            reasons += ask_target(target, index, candidate, settings)
        except Refused as refused:
            reasons += refused.reasons
        except TrainyardError as error:
            if error.code not in NOT_YET:
                because = f"{error.what} {error.why}".strip()
                reasons.append(Reason(error.code, None, f"config.targets.{index}.url", because, error.do))
    return reasons


def ask_target(target: Target, index: int, candidate: AdapterCandidate, settings: Settings) -> list[Reason]:
    site = TargetDeployment(target, candidate, AdapterRegistry(settings.adapters), index, settings=settings)
    if target.type.facts.server != "running":
        return TARGETS[target.type].check(site)
    with http_client(target, address(target, settings), settings) as client:
        client.timeout = httpx.Timeout(ANSWER_S)
        site.http = client
        return TARGETS[target.type].check(site)
