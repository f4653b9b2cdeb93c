"""Whose a run is: a caller of one tenant starts runs of that tenant, whose adapters become that tenant's."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.app.context import Caller
from trainyard.app.plan.parse import JOB, ChainRequest, parse_template_call
from trainyard.errors import Denied, InvalidInput
from trainyard.json_types import JsonObject
from trainyard.spec.nodes import DeployerConfig
from trainyard.stores.live.job_ids import is_reserved

WHOLE_CHAIN = "chain"
"""First word of the deployment that takes a whole chain."""


def keep_to_tenant(request: ChainRequest, caller: Caller) -> ChainRequest:
    """Return the request, as the caller's tenant's. Raises `Denied` (`E-SCOPE`) where it names another
    tenant.
    """
    if not caller.tenant:
        return request
    for named in list_named_tenants(request):
        if named != caller.tenant:
            raise Denied(
                f"The token of {caller.name} is for the tenant {caller.tenant}, and this is for {named}.",
                do="Leave the tenant out, or use a token that is for it.",
                code="E-SCOPE",
            )
    return set_tenant(request, caller.tenant)


def list_named_tenants(request: ChainRequest) -> Iterator[str]:
    """Yield the tenants that the request names; a default is not named."""
    name = request.deployment.partition("/")[0]
    if name == JOB:
        yield from list_written_tenants(request.parameters["job"])
    elif name == WHOLE_CHAIN:
        yield from [request.spec.tenant] if "tenant" in request.spec.model_fields_set else []
        configs = [node.config for node in request.spec.nodes if isinstance(node.config, DeployerConfig)]
        yield from (config.tenant for config in configs if config.tenant is not None)
    else:
        yield from list_written_tenants(request.parameters.get("publish") or {})


def list_written_tenants(parameters: JsonObject) -> Iterator[str]:
    if parameters.get("tenant") is not None:
        yield str(parameters["tenant"])


def set_tenant(request: ChainRequest, tenant: str) -> ChainRequest:
    """Return the same with that tenant, in the chain and in what its deployment is given."""
    name, parameters = request.deployment.partition("/")[0], request.parameters
    if name == WHOLE_CHAIN:
        spec = request.spec.model_copy(update={"tenant": tenant})
        return request.model_copy(update={"spec": spec, "parameters": {"spec": spec.model_dump(mode="json")}})
    if name == JOB:
        changed = parse_template_call(JOB, {**parameters["job"], "tenant": tenant})
    else:
        changed = parse_template_call(
            name, {**parameters, "publish": {**(parameters.get("publish") or {}), "tenant": tenant}}
        )
    return changed.model_copy(update={"notes": request.notes})


def require_free_tags(tags: tuple[str, ...]) -> None:
    """Raises `InvalidInput` (`E-PARAMETER`) for a tag by which Trainyard itself says what a run is."""
    for tag in tags:
        if is_reserved(tag):
            raise InvalidInput(
                f"The tag {tag!r} cannot be given.",
                why="Trainyard's own tags say that a run is a job, which one it is, and whose.",
                do="Choose another tag, such as project:NAME.",
                code="E-PARAMETER",
            )
