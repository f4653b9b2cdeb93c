"""Names that a caller over a network may use: templates, stored chains, inline chains, models, addresses of servers.

A path of a data source is resolved inside the data roots wherever a chain runs. A model may be in any folder for the
user of this machine; a caller over a network names one of the Hub, of this home, of a folder in the data roots, or the
default base model.

A server that a generator, a judge or a deployment asks may be anywhere for the user of this machine. A caller over a
network names one on the public internet, a host of `allow_private_urls`, or a model server of the operator's: the
embedded one, or that of an endpoint. Addresses of data are checked where they are fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from trainyard.compute.services import EMBEDDED, find_service, record_path
from trainyard.data.paths import data_roots, is_inside, refuse_path, resolve_inside
from trainyard.data.remote.addresses import require_public
from trainyard.errors import Denied, InvalidInput, NotFound
from trainyard.json_types import JsonMapping
from trainyard.settings import Settings
from trainyard.stores.models import model_folder

MODEL_FIELDS = frozenset({"base_model", "model", "teacher", "tokenizer", "judge"})
"""Last names of fields that may name a model's folder."""
PATH_FIELDS = frozenset({"path", "repository", "documents", "evaluation_sets", "template"})
"""Last names of fields that may name a file or a folder of data."""


def require_reachable(texts: Iterable[tuple[str, str]], settings: Settings, tenant: str) -> None:
    """Refuse hidden files, paths outside of a tenant's roots, a model's folder outside of what chains may read, and a
    server inside this network.

    Raises `Refused` (`R-PATH-ROOT`, `R-URL`).
    """
    for field, text in texts:
        if field.rpartition(".")[2] in MODEL_FIELDS:
            require_model(field, text, settings, tenant)
        elif is_server_field(field):
            require_server(field, text, settings)
        elif is_path_field(field):
            require_path(field, text, settings, tenant)


def is_path_field(field: str) -> bool:
    """Return whether a field names a file or a folder of this machine from which rows, documents or a template are
    read.
    """
    parts = field.split(".")
    return parts[-1] in PATH_FIELDS or (len(parts) > 1 and parts[-2] == "files")


def require_path(field: str, text: str, settings: Settings, tenant: str) -> None:
    """Refuse a hidden file, and for a tenant what its own roots do not contain. Raises `Refused` (`R-PATH-ROOT`)."""
    if ":" in text.partition("/")[0] or (field.endswith("template") and not text.endswith(".jinja")):
        return  # an address, a set of the Hub, or the name of a renderer
    roots = tenant_roots(settings, tenant) if tenant else data_roots(settings)
    if any(part.startswith(".") and part not in (".", "..") for part in Path(text).parts):
        raise refuse_path(text, roots, field, "has a hidden file or folder in it (its name begins with a dot)")
    if not tenant:
        return
    try:
        resolve_inside(text, roots, field=field)
    except NotFound:
        if tenant == settings.tenant:  # whose runs find relative paths in the operator's working folder, too
            raise


def tenant_roots(settings: Settings, tenant: str) -> tuple[Path, ...]:
    """Return the readable folders of a tenant's token: its own, and those that the operator opened to every tenant."""
    return (settings.tenant_folder(tenant), *settings.data_roots)


def is_server_field(field: str) -> bool:
    """Return whether a field is the address of a server to which a run sends requests."""
    parts = field.split(".")
    return parts[-1] == "base_url" or (parts[-1] == "url" and "targets" in parts)


def require_server(field: str, text: str, settings: Settings) -> None:
    """Refuse an address that is neither public nor of a model server of the operator's. Raises `Refused` (`R-URL`)."""
    embedded = find_service(record_path(settings, EMBEDDED))
    urls = [endpoint.base_url for endpoint in settings.endpoints.values()] + (
        [embedded.url] if embedded is not None else []
    )
    if parse_origin(text) not in {parse_origin(url) for url in urls} - {None}:
        require_public(text, field, allowed=settings.allow_private_urls)


def parse_origin(address: str) -> tuple[str, str, int | None] | None:
    """Scheme, host and port of an address that has nothing odd before its path."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return None
    plain = address.isascii() and address.isprintable() and not set(address) & set(" \\@")
    return (parts.scheme, parts.hostname or "", port) if plain else None


def require_model(field: str, text: str, settings: Settings, tenant: str) -> None:
    roots = (*(tenant_roots(settings, tenant) if tenant else data_roots(settings)), settings.models)
    looks_like_path = text.startswith(("/", "~", ".")) or ".." in Path(text).parts or "\\" in text
    folder = model_folder(text, settings.for_tenant(tenant)) if len(text) <= 4096 else None
    if folder is None and not looks_like_path:
        return
    if folder is not None and folder == model_folder(settings.default_base_model, settings):
        return  # what a chain without a base model takes
    if folder is None or not is_inside(folder, roots):
        raise refuse_path(text, roots, field, "is not a model's folder in the data roots")


def require_template(target: str | JsonMapping, templates: tuple[str, ...]) -> None:
    """Refuse the file of a chain, which only the user of this machine may name; it is not looked for.

    Raises `Denied` (`E-LOCAL`), and `NotFound` (`E-PARAMETER`) for a name that is neither.
    """
    if not isinstance(target, str) or target in templates:
        return
    do = "Give the chain itself, or store it by `chains create` and run it by its id."
    why = f"Templates are {', '.join(templates)}." if templates else ""
    if set(target) & set("./\\~"):
        problem = f"{target[:100]!r} is a file, which can only be named on the machine itself."
        raise Denied(problem, why=why, do=do, code="E-LOCAL")
    raise NotFound(f"There is no template {target[:100]!r}.", why=why, do=do, code="E-PARAMETER")


def refuse_whole_chain(target: str | Mapping[str, object]) -> None:
    """Refuse to run a chain that is not stored. Raises `InvalidInput` (`E-PARAMETER`)."""
    if not isinstance(target, str):
        raise InvalidInput(
            "A run takes a template's name or an ended run, not a whole chain.",
            why="What runs over a network is stored first, so that everybody can see later what it was.",
            do="Store the chain by `chains create`, then run it by `chains run`.", code="E-PARAMETER",
        )  # fmt: skip
