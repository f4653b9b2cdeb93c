"""The one settings object: environment first (`TRAINYARD_…`), then `TRAINYARD_HOME/trainyard.toml`, then defaults.

Example file:

    data_roots = ["/data"]
    child_variables = ["HF_TOKEN"]
    [endpoints."llama3.2"]                     # a chain names it; its key goes to this address and no other
    base_url = "http://127.0.0.1:8000/v1"
    api_key_env = "LLAMA_KEY"
"""

from __future__ import annotations

import datetime
import json
import os
import tomllib
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from trainyard.anchor_settings import AnchorSetting
from trainyard.errors import InvalidInput
from trainyard.locations import home_from_environment


def settings_file() -> Path:
    """The operator's file, which need not exist."""
    return home_from_environment() / "trainyard.toml"


PREFECT_KEYS = ("PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_KEY")
"""Variables that open the Prefect server; they are sent to no model server and passed to no child."""


def not_prefects(name: str) -> str:
    if name in PREFECT_KEYS:
        raise ValueError(f"{name} opens the Prefect server of this home and is passed to no other program")
    return name


Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(not_prefects)]
"""The name of an environment variable."""
QUEUE = r"^[a-z0-9][a-z0-9-]{0,62}$"
"""Names of work queues."""
FunctionReference = Annotated[str, Field(pattern=r"^.+:[A-Za-z_][A-Za-z0-9_]*$")]
"""A function of the operator's."""


class Endpoint(BaseModel):
    """Endpoint of a model named in a chain: any OpenAI-compatible base URL."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str
    api_key_env: Variable | None = Field(
        None, description="Environment variable with the key, which is sent to base_url alone."
    )
    model: str | None = Field(None, description="The server's own name for the model, when it differs.")


Usd = Annotated[Decimal, Field(ge=0, le=10**9, allow_inf_nan=False)]
"""An amount of US dollars."""


class PriceSetting(BaseModel):
    """Price of a backend, from its provider's list."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    usd: Usd
    per: Literal["hour", "million_tokens", "step"] = "hour"
    source: str = Field(min_length=1, max_length=200, description="Where the price was read.")
    date: datetime.date = Field(description="When it was read.")


class MoneySettings(BaseSettings):
    """Settings of prices and spending limits, in US dollars."""

    gpu_provider: str = Field(
        "local", min_length=1, max_length=63, description="Who provides this machine's devices, for the ledger."
    )
    price_per_hour: Usd | None = Field(None, description="Price of an hour of one device of this machine, in USD.")
    price_per_kwh: Usd | None = Field(
        None, description="Price of a kWh in USD, for the energy of the GPUs whose driver measures their power."
    )
    price_date: datetime.date | None = Field(None, description="Date of this machine's prices; default: today.")
    prices: dict[str, PriceSetting] = Field(
        default_factory=dict, description="Backend -> its price; it wins over price_per_hour."
    )
    max_spend_per_run: Usd | None = Field(None, description="USD that one run may spend; max_spend of a chain: less.")
    max_spend_per_month: Usd | None = Field(None, description="USD that all runs of a calendar month (UTC) may spend.")
    max_spend_of_tenants: dict[str, Usd] = Field(
        default_factory=dict, description="Tenant -> USD that its runs of a calendar month (UTC) may spend."
    )


class RentSettings(MoneySettings):
    """Settings of rented GPUs."""

    rent_engine: Literal["native", "skypilot", "dstack"] = Field(
        "native", description="What rents GPUs: Prime Intellect called from here, or the server of another engine."
    )
    prime_url: str = Field("https://api.primeintellect.ai", description="Address of Prime Intellect's API.")
    gpu_catalog: str = Field("", description="Folder or address of a copy of gpuhunt's catalog; empty: its own.")
    rent_max_price: Usd | None = Field(None, description="Default max_price of a rental: USD per hour.")
    rent_max_spend: Usd | None = Field(None, description="Default max_spend of a rental: USD.")
    rent_max_duration_s: int = Field(14_400, ge=60, le=2_592_000, description="Default max_duration of a rental.")
    rent_idle_duration_s: int = Field(900, ge=60, le=604_800, description="Default idle_duration of a rental.")
    rent_ssh_key: Path | None = Field(None, description="Private key that opens rented machines.")
    rent_setup: str = Field(
        "python3 -m pip install --quiet trainyard", description="Command that installs Trainyard on a rented machine."
    )
    rent_shutdown: str = Field(
        "sudo -n shutdown -h now || shutdown -h now || kill -TERM 1",
        min_length=1,
        description="Command by which a rented machine ends itself at max_duration.",
    )
    rent_prefect_url: str = Field(
        "",
        pattern=r"^(https?://\S+/api)?$",
        description="Address of the Prefect server for machines that skypilot or dstack rent; empty: this home's own.",
    )
    skypilot_url: str = Field("http://127.0.0.1:46580", description="Address of SkyPilot's API server.")
    dstack_url: str = Field("http://127.0.0.1:3000", description="Address of dstack's server.")
    dstack_project: str = Field("main", pattern=r"^[A-Za-z0-9_-]{1,50}$", description="Project of dstack that rents.")


class ApiSettings(RentSettings):
    """Settings of the service that answers the REST API."""

    api_hosts: tuple[Annotated[str, Field(pattern=r"^[a-z0-9.-]+$|^\[[0-9a-f:]+\]$")], ...] = Field(
        (), description="Names besides loopback by which clients call the API, such as that of a proxy."
    )
    api_origins: tuple[Annotated[str, Field(pattern=r"^https?://[a-z0-9.:\[\]-]+$")], ...] = Field(
        (), description="Origins of other servers whose pages may use the API, such as https://lab.example.com."
    )
    api_port: int | None = Field(
        None, ge=1, le=65_535, description="Port of the API; default: the one it had, at first the next free from 8898."
    )
    api_requests_per_s: float = Field(500.0, gt=0, description="Requests of one caller per second, over two seconds.")
    api_failed_logins: int = Field(10, ge=1, description="Wrong credentials of an address in a minute; then it waits.")
    api_heavy_calls: int = Field(4, ge=1, description="Operations that take long or much memory, at a time.")
    upload_mb: int = Field(512, ge=1, le=1_048_576, description="MiB that one uploaded file may have.")
    uploads_mb: int = Field(10_240, ge=1, description="MiB that the uploaded files of one tenant may take together.")


class ScriptSettings(ApiSettings):
    """Settings of the training scripts of this home."""

    allow_scripts: bool = Field(False, description="Whether chains may run the training scripts of this home.")
    api_edit_scripts: bool = Field(
        False,
        description="Whether admins may write this home's training scripts over the API; allow_scripts runs them.",
    )
    allow_open_network: bool = Field(
        False,
        description="Whether trainings on several hosts, and torchft's islands, may listen on the network without a "
        "token.",
    )
    script_wrapper: tuple[str, ...] = Field(
        (),
        description="Program and arguments that run a training script with limits or as another user, such as "
        '["prlimit", "--as=64000000000"]; the script\'s command follows them.',
    )

    allow_unconfined_code: bool = Field(
        False, description="Whether code that a model has written runs where the operating system cannot confine it."
    )


class LedgerSettings(ScriptSettings):
    """Settings of the ledger's anchors."""

    ledger_anchors: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")], AnchorSetting] = Field(
        default_factory=dict, description="Name -> where checkpoints of the ledger are kept besides this machine."
    )
    ledger_anchor_every: Literal["", "night", "hour", "day"] = Field(
        "", description="How often `trainyard up` anchors new entries in all ledger_anchors; empty: by command alone."
    )


class RepositorySettings(LedgerSettings):
    """Settings of the data worker, which stores repositories, and of programs that use one."""

    data_port: int | None = Field(
        None, ge=1, le=65_535, description="Port of a data worker that `trainyard up` starts; default: it starts none."
    )
    data_storage: str = Field(
        "",
        description="Where the data worker stores repositories: a bucket such as s3://bucket/prefix, gs:// or az://; "
        "empty: TRAINYARD_HOME/repositories.",
    )
    data_quota_mb: int = Field(
        102_400, ge=0, description="MiB that the contents of one tenant may take on the data worker."
    )
    data_quotas_mb: dict[str, int] = Field(
        default_factory=dict, description="Tenant -> its quota in MiB, instead of data_quota_mb."
    )
    data_workers: tuple[Annotated[str, Field(pattern=r"^https?://[^/\s]+$")], ...] = Field(
        (), description="Addresses of data workers, of which the first that answers is used: http://127.0.0.1:8892."
    )
    data_worker_key_env: Variable = Field(
        "DATA_WORKER_TOKEN", description="Environment variable with the token for data_workers alone."
    )

    data_worker_uploads: tuple[Literal["adapters", "checkpoints"], ...] = Field(
        (),
        description="Automatic uploads to the data worker: adapter versions as they are deployed, "
        "checkpoints of the backend native.",
    )

    @property
    def listed_data_workers(self) -> frozenset[str]:
        return frozenset(self.data_workers)


class FanOutSettings(BaseModel):
    """Workers that do generators' and validators' work in pieces."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: Literal["threads", "processes", "dask", "ray"] = Field(
        description="Prefect's task runner; dask and ray are extras of the package."
    )
    address: str | None = Field(
        None,
        pattern=r"^(tcp|tls|ray)://[^\s/@]+:\d{1,5}$",
        description="A running cluster: tcp:// or tls://HOST:PORT of Dask, ray://HOST:PORT; unset: one on this "
        "machine, while a node works.",
    )
    workers: int | None = Field(
        None, ge=1, le=10_000, description="Workers, or with address pieces at a time; default: one for each core."
    )
    pieces: int | None = Field(
        None, ge=1, le=100_000, description="Pieces of a node's work; default: four for each worker."
    )

    @model_validator(mode="after")
    def fits_its_engine(self) -> FanOutSettings:
        schemes = {"dask": ("tcp", "tls"), "ray": ("ray",)}.get(self.engine, ())
        if self.address is not None and self.address.partition("://")[0] not in schemes:
            allowed = " or ".join(f"{scheme}://HOST:PORT" for scheme in schemes) or "none"
            raise ValueError(f"address {self.address!r} does not fit engine {self.engine}, which takes {allowed}")
        return self

    @property
    def num_workers(self) -> int:
        return self.workers or os.cpu_count() or 1

    @property
    def num_pieces(self) -> int:
        return self.pieces or 4 * self.num_workers

    @property
    def description(self) -> str:
        """Engine and place in words."""
        return f"{self.engine} at {self.address}" if self.address else f"{self.engine} with {self.num_workers} workers"


class PlanSettings(RepositorySettings):
    """Settings of checks and plans, of jobs at cloud providers, and of workers for pieces of a node's work."""

    plan_read_s: float = Field(
        5.0, ge=0.1, le=600, description="Seconds that a check or a plan reads local data before it extrapolates."
    )
    provider_poll_s: float = Field(30.0, gt=0, le=3600, description="Seconds between looks at a cloud provider's job.")
    provider_settle_s: float = Field(
        90.0, gt=0, le=3600,
        description="Seconds that a provider's list has to stay without a job before its lost submission is repeated.",
    )  # fmt: skip
    fan_out: FanOutSettings | None = Field(
        None, description="Workers that do generators' and validators' work in pieces; unset: the run's own process."
    )


def refuse_password(address: str) -> str:
    """Return an address of a database that contains no password: settings are shown, and the file may be shared."""
    if not address.startswith("env:") and urlsplit(address).password is not None:
        raise ValueError("contains a password: leave it out (PGPASSWORD, ~/.pgpass), or give env:VARIABLE")
    return address


JobVariables = dict[str, JsonValue]
"""Variables of a job of a work pool, such as `memory_limit`."""


class PoolSettings(PlanSettings):
    """Settings of the Prefect server's database, and of the work pool in which runs are carried out."""

    prefect_database: Annotated[str, AfterValidator(refuse_password)] = Field(
        "",
        pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|postgres(ql)?(\+asyncpg)?://\S+)?$",
        description="Database of the Prefect server: postgresql://USER@HOST/NAME, whose password is in PGPASSWORD or "
        "~/.pgpass; or env:VARIABLE with the whole address; empty: SQLite in the home.",
    )
    work_pool: str = Field("trainyard", description="Name of the work pool.")
    work_pool_type: Literal["process", "kubernetes", "vertex-ai"] = Field(
        "process", description="Where runs are processes of a worker, jobs of a Kubernetes cluster, or Vertex AI jobs."
    )
    work_queues: tuple[Annotated[str, Field(pattern=QUEUE)], ...] = Field(
        (), description="Work queues from which this machine's worker takes runs; empty: every queue of the pool."
    )
    image: str = Field(
        "", description="Image of Trainyard for the pools kubernetes and vertex-ai (deployments/image/Containerfile)."
    )
    image_folder: Path = Field(Path("/opt/trainyard"), description="Folder of Trainyard in the image.")
    pool_api_url: str = Field(
        "",
        pattern=r"^(https?://\S+/api)?$",
        description="Address of the Prefect server for runs in containers; empty: that of `up --expose` or of an "
        "attached server.",
    )
    pool_variables: JobVariables = Field(
        default_factory=dict, description="Job variables of all runs of the pools kubernetes and vertex-ai."
    )
    host_classes: dict[Annotated[str, Field(pattern=QUEUE)], JobVariables] = Field(
        default_factory=dict, description="Work queue -> job variables of its runs, which `run --queue` chooses."
    )
    device_limits: bool = Field(
        True,
        description="Whether the Prefect server counts who uses this machine's devices; false in a container, which "
        "has devices of its own.",
    )


class MachineSettings(PoolSettings):
    """Settings of this machine's processes: ports, threads, disk space, environment variables."""

    embedded_port: int = Field(
        0, ge=0, le=65535, description="Port of the embedded model server; 0: the last one if it is free."
    )
    prefect_port: int = Field(4200, ge=0, le=65535, description="First port that `trainyard up` tries.")
    threads: int = Field(0, ge=0, description="Threads of a CPU training child; 0 means one per physical core.")
    serve_memory_mb: int = Field(
        0, ge=0, description="MiB that the base models of one model server may take together; 0: what is free."
    )
    mirror_stores: tuple[str, ...] = Field(
        (), description="Buckets to which chains may copy checkpoints, such as gs://bucket/prefix."
    )
    lease_duration_s: int = Field(60, ge=30, description="Length of the device slot's lease on the Prefect server.")
    vllm_options: tuple[str, ...] = Field((), description="More arguments for the `vllm serve` that a node starts.")
    child_variables: tuple[Variable, ...] = Field(
        (), description="More environment variables that training, evaluating and serving children get."
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="Of the logs of server, worker, watchdog and flows: lines for people, or JSON objects."
    )
    alerts: tuple[Annotated[str, Field(pattern=r"^[a-z0-9-]+/[a-z0-9-]+$")], ...] = Field(
        (), description="Prefect blocks that get alerts, as TYPE/NAME: webhook/ops, sendgrid-email/team; empty: none."
    )
    gpu_memory_alert_percent: int = Field(
        95, ge=0, le=100, description="Used share of a GPU's memory from which on an alert is sent; 0: none."
    )
    min_free_mb: int = Field(
        1024, ge=0, description="Free MiB on the disk of TRAINYARD_HOME below which nothing is started; 0: no floor."
    )
    worker_variables: tuple[Variable, ...] = Field(
        (), description="More environment variables that the worker, and so the flows, get."
    )
    checkpoint_key: str = Field(
        "",
        pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|/.+)?$",
        description="Key of the checkpoints of sessions: env:VARIABLE, or the path of a file; empty: not encrypted.",
    )


class TrustSettings(MachineSettings):
    """Settings of what is accepted: signatures of adapters, and limits of tenants."""

    signatures: Literal["require", "verify-if-present", "off"] = Field(
        "verify-if-present",
        description="Signatures of adapter versions before they are loaded: require one of a trusted key; verify those "
        "that there are; or off.",
    )
    limits_file: Path | None = Field(
        None, description="Signed policy with the limits of tenants (`trainyard limits sign`); unset: unlimited."
    )
    openlineage: str = Field(
        "",
        max_length=500,
        pattern=r"^(https?://[^\s@]+|/[^\s]+)?$",
        description="Where OpenLineage events of the steps of runs go (extra openlineage): the absolute path of a "
        "file, or the address of a catalog; empty: nowhere.",
    )
    limits_key: str = Field("", max_length=500, description="Public key that has to have signed limits_file.")


class Settings(TrustSettings):
    """Settings that an operator makes once; nothing here is part of a chain."""

    model_config = SettingsConfigDict(env_prefix="TRAINYARD_", env_nested_delimiter="__", extra="forbid", frozen=True)

    home: Path = Field(default_factory=home_from_environment)
    default_base_model: str = Field("starter", description="Base model of a trainer that names none.")
    serve_models: tuple[str, ...] | None = Field(
        None, description="Base models that `trainyard up` serves; unset: default_base_model; []: none, and no server."
    )
    working_folder: Path = Field(default_factory=Path.cwd, description="Where relative data paths of a chain start.")
    data_roots: tuple[Path, ...] = Field(
        (), description="Folders besides the working folder that chains of every tenant may read."
    )
    data_buckets: tuple[str, ...] = Field(
        (), description="Buckets that chains may read with this machine's credentials, such as s3://bucket/prefix."
    )
    databases: dict[str, Variable] = Field(
        default_factory=dict, description="Name -> environment variable with the URL of a database."
    )
    converters: dict[str, FunctionReference] = Field(
        default_factory=dict, description="Name -> `FILE.py:function` or `module:function` that converts a row of data."
    )
    environments: dict[str, FunctionReference] = Field(
        default_factory=dict,
        description="Name -> `FILE.py:function` or `module:function` that answers a policy between its turns.",
    )
    endpoints: dict[str, Endpoint] = Field(default_factory=dict, description="Name -> where it answers.")
    tenant: str = Field("default", pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    allow_private_urls: tuple[str, ...] = Field(
        (),
        description="Hosts on private networks that data sources and addresses of model servers in a chain may name.",
    )
    backend_envs: dict[str, Path] = Field(
        default_factory=dict, description="Backend -> an environment that is there already, instead of envs/NAME."
    )
    weights_store: str = Field(
        "", description="Where nights publish adapters, such as gs://bucket/prefix; empty: nowhere."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        toml = TomlConfigSettingsSource(settings_cls, toml_file=settings_file())
        return init_settings, env_settings, toml

    def endpoint(self, name: str) -> Endpoint:
        """The endpoint of that name. Raises `InvalidInput` (`E-ENDPOINT`)."""
        if name not in self.endpoints:
            raise InvalidInput(
                f"trainyard.toml has no endpoint {name!r}.",
                why=f"It has {', '.join(sorted(self.endpoints)) or 'none'}.",
                do=f'Correct the name, or add [endpoints."{name}"] with base_url and api_key_env.',
                code="E-ENDPOINT",
            )
        return self.endpoints[name]

    @property
    def private_hosts(self) -> tuple[str, ...]:
        """Names of servers that may lead to an address inside this network, as the operator has named them here."""
        endpoints = (urlsplit(endpoint.base_url).hostname for endpoint in self.endpoints.values())
        return tuple(sorted({"localhost", *self.allow_private_urls, *filter(None, endpoints)}))

    @property
    def served_models(self) -> tuple[str, ...]:
        """The base models that `trainyard up` serves."""
        return (self.default_base_model,) if self.serve_models is None else self.serve_models

    def may_mirror(self, address: str) -> bool:
        """Whether `mirror_stores` has the bucket, or the part of one, at an address such as gs://bucket/prefix/run."""
        return is_below(address, self.mirror_stores)

    def may_read(self, address: str) -> bool:
        """Whether `data_buckets` has the bucket, or the part of one, at an address such as s3://bucket/rows.jsonl."""
        return is_below(address, self.data_buckets)

    def for_tenant(self, tenant: str) -> Settings:
        """Return the settings as they are for a tenant's work.

        Relative paths of another tenant than the machine's own start in that tenant's folder: the working folder is
        the operator's.
        """
        if tenant in ("", self.tenant):
            return self
        return self.model_copy(update={"tenant": tenant, "working_folder": self.tenant_folder(tenant)})

    def tenant_folder(self, tenant: str) -> Path:
        """The folder of a tenant's data, rules and nights."""
        return self.home / "tenants" / tenant

    def data_roots_line(self, folder: Path) -> str:
        """The line of `trainyard.toml` with which chains may read a folder, too; JSON lists of texts are TOML."""
        return f"data_roots = {json.dumps([*map(str, self.data_roots), str(folder)])}"

    @property
    def prefect_home(self) -> Path:
        return self.home / "prefect"

    @property
    def runs(self) -> Path:
        return self.home / "runs"

    @property
    def notes(self) -> Path:
        return self.home / "notes"

    @property
    def sweeps(self) -> Path:
        return self.home / "sweeps"

    @property
    def artifacts(self) -> Path:
        return self.home / "artifacts"

    @property
    def timings(self) -> Path:
        """How long trainings took on this machine."""
        return self.home / "timings"

    @property
    def rentals(self) -> Path:
        """Rented machines (`compute/rent`)."""
        return self.home / "rentals"

    @property
    def spending(self) -> Path:
        """What trainings have cost (`stores/spending.py`)."""
        return self.home / "spending"

    @property
    def choices(self) -> Path:
        """What this machine has decided for trainings that leave it open (`backends/choices.py`)."""
        return self.home / "choices"

    @property
    def models(self) -> Path:
        return self.home / "models"

    @property
    def adapters(self) -> Path:
        return self.home / "adapters"

    @property
    def chains(self) -> Path:
        return self.home / "chains"

    @property
    def repositories(self) -> Path:
        """Storage and uploads in progress of the data worker."""
        return self.home / "repositories"

    @property
    def services(self) -> Path:
        """Pid files, ports and logs of the processes that `trainyard up` starts."""
        return self.home / "services"


def is_below(address: str, listed: tuple[str, ...]) -> bool:
    """Whether an address is one of those that are listed, or below one, part for part."""
    return any(f"{address}/".startswith(f"{prefix.rstrip('/')}/") for prefix in listed)


@cache
def settings() -> Settings:
    """The settings of this process, read once. Tests that change the environment call `settings.cache_clear()`."""
    return load_settings()


def load_settings(**overrides: Any) -> Settings:
    """Read the settings again.

    Raises `InvalidInput` (`E-SETTINGS`) naming the variable or the key of the file that is wrong.
    """
    try:
        return Settings(**overrides)
    except ValidationError as error:
        lines = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise InvalidInput(
            f"The settings are not valid: {lines}.",
            do="Correct the TRAINYARD_… variable or the key in TRAINYARD_HOME/trainyard.toml.",
            code="E-SETTINGS",
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(
            f"TRAINYARD_HOME/trainyard.toml cannot be read: {error}.", do="Correct the TOML.", code="E-SETTINGS"
        ) from error
