"""Environment of child processes: environment variables by one table, and the mode of its files.

A shell has cloud keys, tokens and the Prefect server's auth string in its environment. A child runs models, data and
scripts of other people and needs none of them: it gets the variables of `PASSED`, never one whose name looks like a
secret, and those that the operator lists in `child_variables` of trainyard.toml. The worker calls the endpoints, so
only the worker gets the variables with their keys.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from trainyard.proxies import exempt_loopback
from trainyard.settings import PREFECT_KEYS, Settings, settings

UMASK = 0o077
"""Of every process that writes below TRAINYARD_HOME: folders 0700, files 0600."""
SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|API_?KEY|ACCESS_?KEY|AUTH|CREDENTIAL|PRIVATE|(^|_)KEY($|_)|JWT|COOKIE|NETRC"
)
"""A name of this kind is not passed on by a pattern, only by its own name."""


@dataclass(frozen=True)
class Passed:
    """Variables that children inherit: names, or patterns with `*`."""

    names: str
    why: str

    def passes(self, name: str) -> bool:
        """Return whether this row passes a variable on; a name that the row lists may look like a secret."""
        patterns, plain = self.names.split(), name.removesuffix("__API_KEY_ENV")  # its value is a name, not a key
        return name in patterns or (SECRET.search(plain) is None and any(fnmatchcase(name, word) for word in patterns))


PASSED = (
    Passed(
        "PATH HOME USER LOGNAME SHELL PWD TERM COLUMNS LINES NO_COLOR FORCE_COLOR", "programs and the user's folder"
    ),
    Passed("LANG LANGUAGE LC_* TZ TMPDIR TMP TEMP XDG_*", "language, time zone, temporary files"),
    Passed("LD_LIBRARY_PATH LD_PRELOAD DYLD_* PYTHON* VIRTUAL_ENV CONDA_PREFIX", "libraries and the interpreter"),
    Passed("CC CXX CFLAGS CXXFLAGS LDFLAGS MAX_JOBS CMAKE_* TRITON_* SOURCE_DATE_EPOCH", "compilers of kernels"),
    Passed("CUDA_* CUDNN_* CUBLAS_* NVIDIA_* HIP_* HSA_* ROCR_* ROCM_* GPU_* ONEAPI_* ZE_* SYCL_* METAL_*", "devices"),
    Passed(
        "OMP_* GOMP_* KMP_* MKL_* OPENBLAS_* NUMEXPR_* VECLIB_* BLIS_* RAYON_* ARROW_* MALLOC_* ATEN_* ONEDNN_* DNNL_* "
        "TOKENIZERS_PARALLELISM",
        "threads and CPU kernels",
    ),
    Passed(
        "TORCH_* PYTORCH_* TORCHINDUCTOR_* TORCHELASTIC_* NCCL_* GLOO_* UCX_* FI_* TP_* MASTER_ADDR MASTER_PORT RANK "
        "WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK ROLE_RANK ROLE_WORLD_SIZE",
        "PyTorch and its processes",
    ),
    Passed(
        "HF_* TRANSFORMERS_* ACCELERATE_* DS_* DEEPSPEED_* BITSANDBYTES_* BNB_* VLLM_* GGML_* LLAMA_* MLX_* UNSLOTH_* "
        "AXOLOTL_* WANDB_* MLFLOW_* TRACKIO_* TQDM_*",
        "libraries; their caches and offline switches, not HF_TOKEN or WANDB_API_KEY",
    ),
    Passed(
        "TINKER_BASE_URL TINKER_PROJECT_ID TOGETHER_BASE_URL FIREWORKS_BASE_URL",
        "where a step service is, without its key",
    ),
    Passed("STORAGE_EMULATOR_HOST GRPC_*", "where an object store is, without what opens it"),
    Passed("http_proxy https_proxy no_proxy all_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY", "the way out"),
    Passed(
        "TRACEPARENT OTEL_EXPORTER_OTLP_ENDPOINT OTEL_EXPORTER_OTLP_TRACES_ENDPOINT OTEL_RESOURCE_ATTRIBUTES "
        "OTEL_SERVICE_NAME OTEL_SDK_DISABLED OTEL_TRACES_SAMPLER OTEL_TRACES_SAMPLER_ARG",
        "where spans go, without the headers, which may contain a key",
    ),
    Passed("SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE", "certificates"),
    Passed(
        "DO_NOT_TRACK TRAINYARD_* TRAINYARD_ALLOW_PRIVATE_URLS TRAINYARD_CHECKPOINT_KEY TRAINYARD_RENT_SSH_KEY "
        "TRAINYARD_DATA_WORKER_KEY_ENV TRAINYARD_LIMITS_KEY",
        "this product's own, but for TRAINYARD_TOKEN; of the last four, three name a file or a variable, and one is a "
        "public key",
    ),
)
"""The table: what every child may see."""
INSTALLED = Passed("PIP_* UV_* GIT_* SSH_AUTH_SOCK PIP_INDEX_URL PIP_EXTRA_INDEX_URL", "the installation of a backend")
SERVICES = Passed("PREFECT_* PREFECT_API_AUTH_STRING PREFECT_SERVER_API_AUTH_STRING PREFECT_API_KEY", "Prefect's own")
SERVER = Passed("TRAINYARD_TOKEN", "what the clients of a server send")
TERMINALS_OWN = frozenset(
    {"PYTHONIOENCODING", "PYTHONUTF8", "PYTHONWARNINGS", "PYTHONINSPECT", "PYTHONSTARTUP", "PYTHONSAFEPATH"}
)
"""Settings of the interpreter that a user types at: a child writes UTF-8 to its log, and no warning ends it. A script
of the user's imports the modules next to it; Trainyard's programs are started with `-P`."""
KEY_HOLDERS = ("worker", "watchdog")
"""Services that get the keys of endpoints: the worker calls them, the watchdog starts a worker that died."""
STEP_KEYS = frozenset({"TINKER_API_KEY", "TOGETHER_API_KEY", "FIREWORKS_API_KEY"})
"""The keys of the SDKs of step services, for trainers that name no endpoint."""
RENT_KEYS = frozenset({"PRIME_API_KEY", "SKYPILOT_SERVICE_ACCOUNT_TOKEN", "DSTACK_TOKEN"})
RENTERS = ("api", "watchdog")
"""The keys that rent machines, and the services that get them: the API rents, the watchdog releases."""
KEYS_ELSEWHERE = "TRAINYARD_KEYS_ELSEWHERE"
"""Set in a service that does not get the keys: whether one is set is then known to the worker alone."""
WORKER = Passed("TRAINYARD_TOKEN", "the graph server's token")
CLOUD = Passed("GOOGLE_APPLICATION_CREDENTIALS GOOGLE_CLOUD_PROJECT CLOUDSDK_*", "what opens an object store")

BUCKETS = Passed(
    "AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_REGION AWS_DEFAULT_REGION AWS_ENDPOINT "
    "AWS_ALLOW_HTTP AZURE_STORAGE_ACCOUNT_NAME AZURE_STORAGE_ACCOUNT_KEY AZURE_STORAGE_SAS_KEY AZURE_STORAGE_ENDPOINT "
    "AZURE_STORAGE_CLIENT_ID AZURE_STORAGE_CLIENT_SECRET AZURE_STORAGE_TENANT_ID AZURE_STORAGE_USE_EMULATOR "
    "AZURITE_BLOB_STORAGE_URL GOOGLE_SERVICE_ACCOUNT",
    "what opens the bucket of the data worker",
)


def child_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The whole environment of a child that trains, generates, evaluates, reads or serves; `more` is set on top."""
    return {**select_variables(os.environ, PASSED, frozenset(settings().child_variables)), **(more or {})}


def cloud_variables() -> dict[str, str]:
    """Return the credentials of the operator's object store; for a child that copies its checkpoints there."""
    return select_variables(os.environ, (CLOUD,), frozenset())


def bucket_variables(settings: Settings) -> dict[str, str]:
    """Return what opens the bucket in which the data worker of `trainyard up` stores; nothing for a folder."""
    rows = (CLOUD, BUCKETS) if "://" in settings.data_storage else ()
    return select_variables(os.environ, rows, frozenset())


def server_environment(*, speaks_with_prefect: bool = False) -> dict[str, str]:
    """Return the environment of a server that a user starts in a terminal: a child's, and the token of its clients.

    The REST API also gets what it needs to speak with Prefect.
    """
    rows = (*PASSED, SERVER, *([SERVICES] if speaks_with_prefect else []))
    return select_variables(os.environ, rows, frozenset(settings().child_variables))


def keep_files_private() -> None:
    """Let everything that this process and its children make be readable by its user alone."""
    os.umask(UMASK)


def installer_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of pip and compilers for a backend's installation: with pip's package indexes."""
    return {**select_variables(os.environ, (*PASSED, INSTALLED), frozenset(settings().child_variables)), **(more or {})}


def service_environment(name: str, settings: Settings, keys: Iterable[str] = ()) -> dict[str, str]:
    """Return the environment of a service of `trainyard up`: with Prefect's variables; for the worker also the keys."""
    listed = frozenset(settings.child_variables) | (RENT_KEYS if name in RENTERS else set())
    if name not in KEY_HOLDERS:
        return {**select_variables(os.environ, (*PASSED, SERVICES), listed), KEYS_ELSEWHERE: "1"}
    listed |= {*settings.worker_variables, *key_variables(settings), *keys}
    return select_variables(os.environ, (*PASSED, SERVICES, WORKER, CLOUD), listed)


def key_variables(settings: Settings) -> frozenset[str]:
    """The variables with the keys of endpoints, of step services, of checkpoints, of the data worker and of anchors."""
    names = frozenset(endpoint.api_key_env for endpoint in settings.endpoints.values() if endpoint.api_key_env)
    names |= STEP_KEYS | {settings.data_worker_key_env} | anchor_variables(settings)
    return names | ({name} if (name := key_variable(settings.checkpoint_key)) else set())


def anchor_variables(settings: Settings) -> frozenset[str]:
    """The variables that anchors of the ledger name: the key of a sender, and an address with a key in it."""
    chains = [anchor for anchor in settings.ledger_anchors.values() if anchor.kind == "evm"]
    return frozenset(name for anchor in chains for text in (anchor.key, anchor.url) if (name := key_variable(text)))


def is_key_missing(variable: str | None) -> bool:
    """Return whether the key of a variable is not set; False in a service that does not get the keys."""
    return variable is not None and KEYS_ELSEWHERE not in os.environ and not os.environ.get(variable)


def key_variable(key: str) -> str:
    """The variable that the setting `checkpoint_key` names; empty if it names a file or nothing."""
    return key.removeprefix("env:") if key.startswith("env:") else ""


def operator_environment() -> dict[str, str]:
    """Return the environment of an operator's command, such as one that boots a machine: all but Prefect's login."""
    return {name: value for name, value in os.environ.items() if name not in PREFECT_KEYS}


def select_variables(variables: Mapping[str, str], rows: Iterable[Passed], listed: AbstractSet[str]) -> dict[str, str]:
    """The variables that a row passes on, or that are listed by name."""
    table = tuple(rows)
    passed = {
        name: value for name, value in variables.items() if name in listed or any(row.passes(name) for row in table)
    }
    for name in TERMINALS_OWN - listed:
        passed.pop(name, None)
    exempt_loopback(passed)
    return {"PYTHONUTF8": "1", **passed}


def close_to_others(home: Path) -> int:
    """Take the rights of group and others from a home that has them; returns how many files and folders changed.

    A home that is closed is not walked: nothing in it can be reached. Links are not followed.
    """
    if not home.is_dir() or not home.stat().st_mode & UMASK:
        return 0
    changed = 0
    for folder, folders, files in os.walk(home):
        changed += sum(close_one(Path(folder, name)) for name in (*folders, *files))
    return changed + close_one(home)


def close_one(path: Path) -> bool:
    """Take the rights of group and others from one file or folder; False for a link or one that has none."""
    try:
        mode = path.lstat().st_mode
        if path.is_symlink() or not mode & UMASK:
            return False
        path.chmod(mode & 0o7777 & ~UMASK)
    except FileNotFoundError:  # removed by its owner meanwhile
        return False
    return True
