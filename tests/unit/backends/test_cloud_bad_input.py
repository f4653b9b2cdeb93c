"""Bad input at each provider: a wrong or expired key, a model or region that it lacks, a file that is too large.

Each is one clear error by name, no job is left at the provider, and the key is in no file and no traceback.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from benchmarks.providers import ADDRESSES, DOUBLES
from trainyard import CloudFineTuneConfig, FineTuneProviderFactory, TrainingManager
from trainyard.backends.cloud import hf_jobs
from trainyard.backends.cloud.contract import ProviderAddress
from trainyard.backends.cloud.errors import HIDDEN, ProviderError
from trainyard.backends.manager import Options
from trainyard.errors import LimitExceeded, Refused
from trainyard.settings import settings
from trainyard.spec.axes.providers import PROVIDERS
from trainyard.spec.states import JobState
from trainyard.testing.providers.bedrock import REGIONS
from trainyard.testing.providers.double import EXPIRED_KEY, KEY, ProviderDouble
from trainyard.testing.providers.faults import CreateFault, Faults
from trainyard.testing.providers.openai import OpenAiDouble
from trainyard.testing.providers.vertex import GEMINI, LOCATIONS, VertexDouble

for package in ("together", "fireworks", "openai", "boto3"):
    pytest.importorskip(package)
pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]
TURNS = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A node."}]
LLAMA = "meta-llama/Llama-3-8b"
WRONG_KEY = "sk-wrong-key-of-this-test"
Open = Callable[..., ProviderDouble]
every_provider = pytest.mark.parametrize("name", DOUBLES)


def submit(name: str, key: str = KEY, model: str = LLAMA, **config: Any) -> str:
    """Submit the rows by a program's own provider."""
    cloud = CloudFineTuneConfig(model=model, training_file=str(settings().working_folder / "train.jsonl"), **config)
    return FineTuneProviderFactory.create(name, key).submit(cloud)


def read_home() -> str:
    """Return the text of every file of the home."""
    paths = (path for path in settings().home.rglob("*") if path.is_file() and path.stat().st_size < 1_000_000)
    return "".join(path.read_bytes().decode(errors="replace") for path in paths)


@every_provider
@pytest.mark.parametrize("key", [WRONG_KEY, EXPIRED_KEY])
def test_a_key_that_is_not_accepted_is_an_error_without_it(name: str, key: str, provider: Open) -> None:
    server = provider(name, key=key)
    with pytest.raises(ProviderError) as raised:
        submit(name, key)
    assert raised.value.status in (400, 401, 403)
    assert PROVIDERS[name].title in str(raised.value)
    assert ("has not expired" in raised.value.do) == (key == EXPIRED_KEY)
    text = "".join(traceback.format_exception(raised.value)) + read_home()
    assert key not in text
    is_repeated = name != "hf_jobs" and (name, key) != ("bedrock", EXPIRED_KEY)
    assert (HIDDEN in text) == is_repeated, "most doubles repeat the key in their answer"
    assert not server.jobs


@every_provider
def test_a_key_that_is_not_accepted_is_in_no_file_of_a_job(name: str, provider: Open) -> None:
    provider(name, key=WRONG_KEY)
    manager = TrainingManager(options=Options(poll_s=0.05))
    manager.submit_cloud(name, CloudFineTuneConfig(model=LLAMA, training_file="train.jsonl"), name="wrong")
    status = manager.wait("wrong", 120)
    assert status.state is JobState.FAILED
    assert f"{PROVIDERS[name].title} answered 40" in status.reason
    assert WRONG_KEY not in read_home() + status.reason


@every_provider
def test_a_model_that_the_provider_lacks_is_named(name: str, provider: Open) -> None:
    server = provider(name)
    with pytest.raises(ProviderError, match="no-such-org/no-such-model") as raised:
        submit(name, model="no-such-org/no-such-model")
    assert raised.value.status in (400, 404)
    assert "Correct" in raised.value.do
    assert not server.jobs


@pytest.mark.parametrize(("name", "place"), [("bedrock", "eu-central-1"), ("vertex", "europe-west4")])
def test_a_model_that_a_region_lacks_is_named_with_it(
    name: str, place: str, provider: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = provider(name)
    monkeypatch.setenv("AWS_REGION" if name == "bedrock" else "GOOGLE_CLOUD_LOCATION", place)
    with pytest.raises(ProviderError, match=f"the submission of {LLAMA} in {place}"):
        submit(name)
    assert not server.jobs
    assert LLAMA not in {**REGIONS, **LOCATIONS}[place]
    if name == "vertex":
        submit(name, model=GEMINI)
        assert len(server.jobs) == 1


@pytest.mark.parametrize(
    ("name", "variable", "near"),
    [("bedrock", "AWS_REGION", "us-east-1"), ("vertex", "GOOGLE_CLOUD_LOCATION", "us-east1")],
)
def test_a_region_that_there_is_not_is_refused_before_anything_starts(
    name: str, variable: str, near: str, provider: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider(name)
    monkeypatch.delenv(PROVIDERS[name].address)
    monkeypatch.setenv(variable, f"{near}9")
    with pytest.raises(Refused, match=f"R-PROVIDER.*'{near}9' \\({variable}\\)") as raised:
        TrainingManager().submit_cloud(name, CloudFineTuneConfig(model=LLAMA, training_file="train.jsonl"))
    assert near in str(raised.value)
    monkeypatch.setenv(variable, "us east!")
    with pytest.raises(Refused, match="R-PROVIDER"):
        TrainingManager().submit_cloud(name, CloudFineTuneConfig(model=LLAMA, training_file="train.jsonl"))


@every_provider
def test_a_host_without_an_address_is_not_waited_for(
    name: str, provider: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider(name)
    monkeypatch.setenv(PROVIDERS[name].address, "http://no-such-host.invalid" + ADDRESSES.get(name, ""))
    with pytest.raises(ProviderError, match="did not answer") as raised:
        submit(name)
    assert raised.value.is_unresolved
    assert "region or the address" in raised.value.do


@every_provider
def test_a_file_over_the_limit_is_not_sent(name: str, provider: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    server = provider(name)
    monkeypatch.setitem(PROVIDERS, name, replace(PROVIDERS[name], file_bytes=100))  # type: ignore[arg-type]
    with pytest.raises(LimitExceeded, match=r"E-LIMIT.*that .* takes"):
        submit(name)
    assert not server.calls
    assert not server.jobs


@pytest.mark.parametrize("name", ["openai", "fireworks", "bedrock", "vertex", "together"])
def test_a_file_over_a_limit_that_only_the_provider_has_is_its_error(name: str, provider: Open) -> None:
    server = provider(name)
    server.file_limit = 100
    with pytest.raises(ProviderError, match="the upload of rows") as raised:
        submit(name)
    assert raised.value.is_refusal
    assert not server.jobs


@every_provider
def test_storage_that_is_used_up_in_the_middle_is_said_and_the_rest_is_sent_later(
    name: str, provider: Open, rows: Path
) -> None:
    server = provider(name)
    held_out = rows.with_name("eval.jsonl")
    held_out.write_text((json.dumps({"messages": TURNS}) + "\n") * 40)
    server.storage_limit = 2000
    with pytest.raises(ProviderError, match="the upload of rows") as raised:
        submit(name, validation_file=str(held_out))
    assert raised.value.is_refusal
    assert "storage" in str(raised.value).lower()
    sent = len(server.calls)
    assert not server.jobs
    server.storage_limit = 1 << 30
    submit(name, validation_file=str(held_out))
    assert len(server.jobs) == 1
    uploads = [call for call in server.calls[sent:] if len(call.content) > 300 and b"What is it?" in call.content]
    assert all(len(call.content) > 2000 for call in uploads), "the first file is not sent again"


def test_credit_that_is_used_up_is_not_waited_for(provider: Open) -> None:
    server = provider("openai")
    assert isinstance(server, OpenAiDouble)
    server.is_spent = True
    with pytest.raises(ProviderError, match="exceeded your current quota") as raised:
        submit("openai")
    assert raised.value.is_quota
    assert "raise the limit" in raised.value.do
    server.is_spent = False
    submit("openai")
    assert len(server.jobs) == 1


def test_a_limit_that_stays_is_said_after_the_last_attempt(provider: Open) -> None:
    server = provider("vertex", faults=Faults(creates=[CreateFault.REFUSED_429] * 9))
    with pytest.raises(ProviderError, match=r"did not confirm the job in 5 attempts.*answered 429.*slow down"):
        submit("vertex")
    assert not server.jobs


def write_account(path: Path, url: str) -> Path:
    """Write the file of a service account whose tokens come from the double."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {"type": "service_account", "client_email": "yard@acme.iam.gserviceaccount.com", "private_key_id": "1",
               "private_key": private.decode(), "token_uri": f"{url}/token", "project_id": "acme"}  # fmt: skip
    path.write_text(json.dumps(account))
    return path


def test_a_service_account_of_google_opens_vertex_and_an_expired_one_is_named(provider: Open, tmp_path: Path) -> None:
    pytest.importorskip("google.auth")
    server = provider("vertex")
    assert isinstance(server, VertexDouble)
    account = write_account(tmp_path / "account.json", server.url)
    server.refused_accounts = True
    with pytest.raises(ProviderError, match=r"answered 401.*invalid_grant") as raised:
        submit("vertex", str(account))
    assert "has not expired" in raised.value.do
    assert "PRIVATE KEY" not in "".join(traceback.format_exception(raised.value)) + read_home()
    server.refused_accounts = False
    submit("vertex", str(account))
    assert len(server.jobs) == 1
    account.write_text("{}")
    with pytest.raises(ProviderError, match="answered 401"):
        submit("vertex", str(account), model=GEMINI)


def test_a_flavour_without_a_price_has_no_cost() -> None:
    """Zero dollars would be a statement, which replaces the price of the settings."""
    provider = hf_jobs.open_provider(ProviderAddress("http://127.0.0.1:9", "hf_0123456789"))
    provider.prices = {"a10g-small": 0.02}
    costs = [
        provider.read_info(SimpleNamespace(
            id="a", status=SimpleNamespace(stage="COMPLETED", message=None), environment={}, flavor=flavor,
            durations=SimpleNamespace(running_secs=120),
        )).cost_usd
        for flavor in ("a10g-small", "a10g-retired")
    ]  # fmt: skip
    assert costs == [0.04, None]
