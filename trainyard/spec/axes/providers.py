"""Cloud providers that train on uploaded rows: what each takes, what comes out, and which key opens it.

They are backends (`axes/backends`), and the facts of a provider alone are here. Adding one: a row here and in
`BackendName`, a file in `backends/cloud/`, a double in `testing/providers/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from trainyard.errors import LimitExceeded

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ProviderFacts:
    """Facts of one cloud provider."""

    title: str
    key: str
    """Environment variable with its key, for a trainer that names no endpoint."""
    address: str
    """Environment variable with its address; the SDK's own where it is empty."""
    package: str
    """Package of its client."""
    extra: str
    """Extra of Trainyard that installs the client; empty where every installation has it."""
    weights: bool
    """Whether the trained weights can be downloaded; else the result is the name of a model that is served there."""
    file_bytes: int
    """Largest file of rows."""
    variables: tuple[str, ...] = ()
    """Variables that it needs besides its key: account, project, bucket, role."""
    optional: tuple[str, ...] = ()
    """Variables that its client reads where they are set."""
    opens_without_key: bool = False
    """Whether an address that a chain names is called without a key."""
    last_day: date | None = None
    """Day after which it takes no more jobs."""

    def require_file_size(self, size: int) -> None:
        """Raise `LimitExceeded` (`E-LIMIT`) for a file that the provider does not take."""
        if size > self.file_bytes:
            raise LimitExceeded(
                f"The rows are larger than the {self.file_bytes >> 20:,} MiB that {self.title} takes.",
                do="Use fewer rows, or another backend.", code="E-LIMIT",
            )  # fmt: skip


PROVIDERS: Mapping[str, ProviderFacts] = {
    "together": ProviderFacts(
        title="Together AI", key="TOGETHER_API_KEY", address="TOGETHER_BASE_URL", package="together",
        extra="together", weights=True, file_bytes=50_100 * MIB,
    ),
    "fireworks": ProviderFacts(
        title="Fireworks AI", key="FIREWORKS_API_KEY", address="FIREWORKS_BASE_URL", package="fireworks",
        extra="fireworks", weights=True, file_bytes=1024 * MIB, variables=("FIREWORKS_ACCOUNT_ID",),
    ),
    "openai": ProviderFacts(
        title="OpenAI, and services with its wire", key="OPENAI_API_KEY", address="OPENAI_BASE_URL",
        package="openai", extra="openai", weights=False, file_bytes=512 * MIB, opens_without_key=True,
        last_day=date(2027, 1, 6),
    ),
    "bedrock": ProviderFacts(
        title="Amazon Bedrock", key="AWS_SECRET_ACCESS_KEY", address="AWS_ENDPOINT_URL", package="boto3",
        extra="bedrock", weights=False, file_bytes=1024 * MIB,
        variables=("AWS_ACCESS_KEY_ID", "AWS_REGION", "BEDROCK_ROLE_ARN", "BEDROCK_BUCKET"),
        optional=("AWS_SESSION_TOKEN",),
    ),
    "vertex": ProviderFacts(
        title="Google Vertex AI", key="GOOGLE_APPLICATION_CREDENTIALS", address="VERTEX_BASE_URL",
        package="google.auth", extra="gcs", weights=False, file_bytes=1024 * MIB,
        variables=("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION", "VERTEX_BUCKET"),
    ),
    "hf_jobs": ProviderFacts(
        title="Hugging Face Jobs", key="HF_TOKEN", address="HF_ENDPOINT", package="huggingface_hub",
        extra="", weights=True, file_bytes=50_000 * MIB, optional=("HF_JOBS_NAMESPACE",),
    ),
}  # fmt: skip
"""Backend -> its facts."""
RETIRED: Mapping[str, tuple[str, str]] = {
    "anyscale": ("its fine-tuning API ended on 2024-08-01", "together, fireworks or hf_jobs"),
    "mistral": ("its fine-tuning API is deprecated, and mistralai 3 has no calls for it", "together or fireworks"),
    "cohere": ("its fine-tuning was removed on 2025-09-15", "together, fireworks or hf_jobs"),
}
"""Provider that trains no more -> why, and the backends that replace it."""


def provider_variables() -> frozenset[str]:
    """Return the variables with keys, addresses, accounts and buckets of providers: the worker gets them.

    Those of AWS open more than Bedrock: the operator lists them in `worker_variables`.
    """
    names = {
        name for facts in PROVIDERS.values() for name in (facts.key, facts.address, *facts.variables, *facts.optional)
    }
    return frozenset(name for name in names if not name.startswith("AWS_"))
