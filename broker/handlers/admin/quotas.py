"""DescribeClientQuotas and AlterClientQuotas (KIP-546).

The description shows the quotas of the image, so a visible quota is already in effect. Source: Kafka's
ClientQuotasImage.describe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

from broker.context import Call, Context
from broker.controller.decisions.quotas import CLIENT_ID, IP, USER, Alteration, sorted_entity
from broker.error_codes import ErrorCode
from broker.errors import ApiError, code_of
from broker.handlers.request_limits import refuse_flood, together
from broker.metadata.records import ClientQuotas, QuotaEntity
from broker.security.audit import AuditEvent
from broker.wire import messages as wire
from logformat.errors import ThermoclineError
from seams.loop.turns import Turns, next_turn

_NAMES_MAX: Final = 10  # host names of one request
_RESOLVE_S: Final = 5.0  # longest resolution of one name


async def handle_describe_client_quotas(
    context: Context, request: wire.DescribeClientQuotasRequest, call: Call
) -> wire.DescribeClientQuotasResponse:
    try:
        exact, specified = _filter(request.components)
    except ApiError as refused:
        return wire.DescribeClientQuotasResponse(error_code=refused.code, error_message=str(refused), entries=None)
    response, turns = wire.DescribeClientQuotasResponse(), Turns()
    entries: list[wire.DescribeClientQuotasResponseEntry] = []
    for quotas in context.metadata.image.quotas:
        if _matches(quotas, exact, specified, strict=request.strict):
            entries.append(_described(quotas))
        if turns.over():
            await next_turn()
    response.entries = entries
    return response


def _filter(
    components: Sequence[wire.DescribeClientQuotasRequestComponent],
) -> tuple[dict[str, str | None], set[str]]:
    """The names that must match (None: the default) and the types that must be present. Raises ApiError in Kafka's
    words."""
    exact: dict[str, str | None] = {}
    specified: set[str] = set()
    for component in components:
        kind, name = component.entity_type, component.match
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in exact or kind in specified:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in (IP, USER, CLIENT_ID):
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        match component.match_type:
            case 0 if name is None:
                raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            case 1 if name is not None:
                raise _invalid("Request specified MATCH_TYPE_DEFAULT, but also specified a match string.")
            case 2 if name is not None:
                raise _invalid("Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.")
            case 0 | 1:
                exact[kind] = name
            case 2:
                specified.add(kind)
            case unknown:
                raise _invalid(f"Unknown match type {unknown}")
    kinds = exact.keys() | specified
    if IP in kinds and len(kinds) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component."
        )
    return exact, specified


def _matches(quotas: ClientQuotas, exact: dict[str, str | None], specified: set[str], *, strict: bool) -> bool:
    entity = dict(quotas.entity)
    if strict and len(entity) != len(exact) + len(specified):
        return False
    return specified <= entity.keys() and all(kind in entity and entity[kind] == name for kind, name in exact.items())


def _described(quotas: ClientQuotas) -> wire.DescribeClientQuotasResponseEntry:
    return wire.DescribeClientQuotasResponseEntry(
        entity=[wire.DescribeClientQuotasResponseEntity(kind, name) for kind, name in quotas.entity],
        values=[wire.DescribeClientQuotasResponseValue(key, value) for key, value in sorted(quotas.quotas.items())],
    )


async def handle_alter_client_quotas(
    context: Context, request: wire.AlterClientQuotasRequest, call: Call
) -> wire.AlterClientQuotasResponse:
    """Every entity has its own outcome."""
    alterations = [
        Alteration(
            tuple((part.entity_type, part.entity_name) for part in entry.entity),
            tuple((op.key, None if op.remove else op.value) for op in entry.ops),
        )
        for entry in request.entries
    ]
    entities = dict.fromkeys(sorted_entity(alteration.entity) for alteration in alterations)
    refusals: dict[QuotaEntity, ThermoclineError] = {}
    try:
        refuse_flood(alterations)
        hosts = {name for entity in entities for kind, name in entity if kind == IP and name}
        addresses = await _addresses(context, hosts)
        refusals |= await context.controller.alter_client_quotas(
            alterations, addresses.__contains__, validate_only=request.validate_only
        )
        if not request.validate_only:
            _audit(context, call, alterations, refusals)
    except ThermoclineError as refused:
        refusals = dict.fromkeys(entities, refused)
    response = wire.AlterClientQuotasResponse()
    for entity in entities:
        why = refusals.get(entity)
        response.entries.append(
            wire.AlterClientQuotasResponseEntry(
                error_code=ErrorCode.NONE if why is None else code_of(why),
                error_message=None if why is None else str(why),
                entity=[wire.AlterClientQuotasResponseEntity(kind, name) for kind, name in entity],
            )
        )
    return response


def _audit(
    context: Context, call: Call, alterations: Sequence[Alteration], refusals: Mapping[QuotaEntity, ThermoclineError]
) -> None:
    entities = [sorted_entity(alteration.entity) for alteration in alterations]
    times = Counter(entities)  # a repeated entity is refused, although its first alteration was made
    made = [
        alteration
        for entity, alteration in zip(entities, alterations, strict=True)
        if entity not in refusals or times[entity] > 1
    ]
    context.clients.audit.note_changes(AuditEvent.QUOTAS, call.peer.principal, call.peer.address, made, _shown)


def _shown(alteration: Alteration) -> str:
    entity = " and ".join(f"{kind} {'<default>' if name is None else name}" for kind, name in alteration.entity)
    ops = ", ".join(f"delete {key}" if value is None else f"set {key}={value:.15g}" for key, value in alteration.ops)
    return f"quotas of {entity}: {ops}"


async def _addresses(context: Context, hosts: set[str]) -> set[str]:
    """The names that are addresses or host names. A name that is not resolved within 5 s is not a host name. Raises
    ApiError."""
    names = [host for host in hosts if not _is_address(host)]
    if len(names) > _NAMES_MAX:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"the request names {len(names)} hosts, but at most {_NAMES_MAX} are allowed: write addresses",
        )
    found = {host for host in hosts if _is_address(host)}

    async def resolve(name: str) -> None:
        with suppress(OSError):
            await context.world.net.resolve(name, _RESOLVE_S)
            found.add(name)

    await together(resolve(name) for name in names)
    return found


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _invalid(why: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, why)
