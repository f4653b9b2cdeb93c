"""The real dependencies of a night, from the settings: this machine's disk, clock, device and servers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from trainyard.callbacks import ignore
from trainyard.compute.child import faultpoint
from trainyard.compute.gpus import device_numbers
from trainyard.compute.lease import Patience, claim_devices
from trainyard.data.corpora import Corpora
from trainyard.data.paths import data_roots, resolve_inside
from trainyard.errors import InvalidInput
from trainyard.locations import project_folder
from trainyard.night.deps import NightDeps, Stores
from trainyard.night.extracting import choose_thinking
from trainyard.night.training import LocalTrainer, tenant_root
from trainyard.serve.extraction.extraction import MAX_DOCUMENT_CHARS, window_chars
from trainyard.serve.inference_server.commands import read_profile
from trainyard.serve.inference_server.life import InferenceServer
from trainyard.serve.inference_server.profiles import ServerProfile, VllmEngine
from trainyard.serve.signatures import check_pulled
from trainyard.serve.worker_uploads import upload_version
from trainyard.settings import Settings
from trainyard.spec.night import NightConfig, Serving
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.clock import RealClock
from trainyard.stores.documents import DocumentLedger
from trainyard.stores.files import RealFiles, lacking_space
from trainyard.stores.graph.remote import open_graph
from trainyard.stores.markers.local import LocalMarkers
from trainyard.stores.markers.records import MarkerStore, find_owner
from trainyard.stores.markers.remote import ObjectMarkers
from trainyard.stores.objects.addresses import open_store
from trainyard.stores.objects.store import ObjectStore
from trainyard.stores.processes import boot_id

PROFILES = project_folder() / "deployments" / "profiles"
LEDGER_FILE = "documents.jsonl"


def make_night_deps(
    config: NightConfig,
    settings: Settings,
    *,
    say: Callable[[str], None] = ignore,
    locked: bool = False,
    unfit: Callable[[], str] = str,
) -> NightDeps:
    """Return the dependencies of a night of this config on this machine.

    `locked`: the caller already has the device's lease. `unfit`: which trainings this machine cannot run.

    Raises `Refused` (`R-PATH-ROOT`) for documents outside of the data roots, `NotFound` for a missing profile or base,
    `LimitExceeded` (`E-DISK-FULL`) where the home has less free space than a run needs.
    """
    lacking = lacking_space(settings.home, settings.min_free_mb << 20)
    if lacking is not None:
        raise lacking
    root, files, clock = tenant_root(settings, config.tenant), RealFiles(), RealClock()
    versions = AdapterRegistry(settings.adapters)
    objects = open_store(settings.weights_store) if settings.weights_store else None

    def alone(run: str) -> AbstractContextManager[object]:
        """Return the first device. Raises `Conflict` (`E-DEVICE-BUSY`, `E-DEVICE-OCCUPIED`)."""
        first = device_numbers()[:1]
        return nullcontext() if locked else claim_devices(settings, run=run, among=first, patience=Patience(wait_s=0))

    return NightDeps(
        root=root,
        documents=resolve_inside(config.documents, data_roots(settings, config.tenant), field="documents"),
        files=files,
        clock=clock,
        stores=Stores(
            ledger=DocumentLedger(root / LEDGER_FILE, files, clock, at=faultpoint),
            graph=lambda: open_graph(config.graph, settings),
            markers=open_markers(config, settings, objects),
            corpora=Corpora(root / "corpora", files),
            versions=versions,
            check_pulled=partial(check_pulled, settings=settings),
            objects=objects,
            share=partial(upload_version, registry=versions, settings=settings),
        ),
        server=make_server(config, settings),
        trainer=LocalTrainer(config, settings, unfit=unfit),
        owner=find_owner(),
        boot_id=boot_id(),
        base_model=config.phase2.training.base_model or settings.default_base_model,
        alone=alone,
        at=faultpoint,
        say=say,
    )


def to_worker_config(config: NightConfig, settings: Settings) -> NightConfig:
    """The same night as a worker sees it: with an object store its markers are there, whatever the night's own mode.

    The machine of the night serves what the worker publishes, so that the targets are not the worker's.
    """
    if not settings.weights_store:
        return config
    return config.model_copy(update={"phase2": config.phase2.model_copy(update={"mode": "remote", "targets": ()})})


def open_markers(config: NightConfig, settings: Settings, objects: ObjectStore | None) -> MarkerStore:
    """In the object store when workers elsewhere have to see them, else in the tenant's folder."""
    lease_s = float(config.phase2.lease_s)
    if config.phase2.mode == "remote" and objects is not None:
        return ObjectMarkers(objects, f"markers/{config.tenant}", lease_s=lease_s, at=faultpoint)
    return LocalMarkers(tenant_root(settings, config.tenant) / "markers", lease_s=lease_s, at=faultpoint)


def make_server(config: NightConfig, settings: Settings) -> InferenceServer:
    """The model server of the config's profile on the first device. Raises `NotFound`, `InvalidInput` (`E-PROFILE`)."""
    profile, serving = require_schema(server_profile(config, settings), config.serving), config.serving
    folder, index = settings.services / "night-server", device_numbers()[0]
    server = InferenceServer(profile, folder, settings, index=index, thinking=serving.thinking)
    server.window_chars = choose_window(profile, serving)
    return server


def require_schema(profile: ServerProfile, serving: Serving) -> ServerProfile:
    """Return the profile, if its server enforces the schema of an answer. Raises `InvalidInput` (`E-PROFILE`).

    vLLM applies a schema only after its reasoning parser has seen the end of the reasoning: in the prompt, where the
    chat template closes it, or in the answer, which a model that still thinks may never reach.
    """
    engine = profile.engine
    open_ended = isinstance(engine, VllmEngine) and engine.reasoning_parser and not profile.thinking_switch
    if open_ended and not serving.thinking:
        raise InvalidInput(
            f"The profile {serving.profile!r} has a reasoning_parser and no thinking_switch.",
            why="vLLM enforces the schema only after the reasoning, which nothing switches off.",
            do="Remove reasoning_parser, or name the variable of the chat template that ends the reasoning.",
            code="E-PROFILE",
        )
    return profile


def choose_window(profile: ServerProfile, serving: Serving) -> int:
    """Longest part of a document that fits the context of a profile's server. Raises `InvalidInput` (`E-PROFILE`)."""
    context = profile.engine.context_tokens
    return MAX_DOCUMENT_CHARS if context is None else window_chars(context, choose_thinking(serving))


def server_profile(config: NightConfig, settings: Settings) -> ServerProfile:
    """Return the operator's profile of that name, else the shipped one."""
    path = settings.home / "profiles" / f"{config.serving.profile}.yaml"
    return read_profile(path if path.is_file() else PROFILES / path.name)
