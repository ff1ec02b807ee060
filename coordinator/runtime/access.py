"""Who may do what: bearer tokens with roles, and the checks of Host and Origin.

Roles are separate, not a ladder: a participant's token opens the control connection and sends messages to agents, nothing
else, a viewer reads, an operator reads and writes. A participant's token may be bound to one id; the role's own token
registers any id that is free. A token is only ever taken from the ``Authorization`` header: query strings end up in logs and
histories, so a token in one is refused, not used (RELIABILITY.md T15).

A web page in somebody's browser must not reach a coordinator on loopback (T18). A name in ``Host`` that is not one of
ours is refused, which ends DNS rebinding; addresses are let through, since rebinding needs a name. An ``Origin`` must be
the very host that was asked.
"""

from __future__ import annotations

import ipaddress
import logging
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from coordinator.runtime.answers import ApiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from protocol.keys import ClusterKeys, Role

log = logging.getLogger("cleancut.access")

READ: Final = frozenset({"viewer", "operator"})
WRITE: Final = frozenset({"operator"})
PARTICIPATE: Final = frozenset({"participant"})
INPUT: Final = frozenset({"participant", "operator"})
NOBODY_NEEDED: Final[frozenset[str]] = frozenset()
"""For answers that hold nothing of the cluster: readiness, and the page's own files."""

ROLE_KEY: Final = web.RequestKey("role", str)
PARTICIPANT_KEY: Final = web.RequestKey("participant", str)
"""Whom the token is bound to; "": whoever has the role."""
_TOKEN_PARAMETERS: Final = ("token", "access_token", "authorization", "auth")


class AccessCounts:
    """Refused requests by cause, for `/metrics`."""

    def __init__(self) -> None:
        self.refused: dict[str, int] = {
            "foreign-host": 0,
            "foreign-origin": 0,
            "token-in-url": 0,
            "no-token": 0,
            "wrong-token": 0,
            "wrong-role": 0,
        }


def allowed_roles(request: web.Request) -> frozenset[str]:
    """Who may use the requested endpoint."""
    path = request.path
    if path == "/healthz" or path == "/" or path.startswith("/web/"):
        return NOBODY_NEEDED
    if path == "/v1/participant":
        return PARTICIPATE
    if request.method == "POST" and path.startswith("/v1/agents/") and path.endswith("/messages"):
        return INPUT
    # Verifications and checks are asked for with POST because they are work, but they change nothing.
    if request.method in {"GET", "HEAD"} or (path.startswith("/v1/epochs/") and path.endswith(("/verify", "/check"))):
        return READ
    return WRITE


def access_middleware(keys: ClusterKeys, hosts: Iterable[str], counts: AccessCounts) -> Any:  # noqa: ANN401 (aiohttp's middleware type is a private alias)
    """Refuse before any handler runs.

    Args:
        keys: Prove tokens.
        hosts: Names under which the API may be addressed, besides ``localhost`` and plain addresses.
        counts: Where refusals are counted.
    """
    names = frozenset({"localhost", *(host.lower() for host in hosts)})

    def refuse(status: int, code: str, message: str, hint: str = "", **headers: str) -> ApiError:
        counts.refused[code] += 1
        return ApiError(status, code, message, hint, headers={k.replace("_", "-"): v for k, v in headers.items()})

    @web.middleware
    async def check_access(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        host = request.headers.get("Host", "")
        if not _is_ours(host, names):
            raise refuse(
                403, "foreign-host", f"this coordinator is not {host[:80]!a}", "add the name to `hosts` in its settings"
            )
        origin = request.headers.get("Origin")
        if origin is not None and origin.lower() not in {f"http://{host}".lower(), f"https://{host}".lower()}:
            raise refuse(403, "foreign-origin", f"requests from pages of {origin[:80]!a} are not taken")
        if any(name in request.query for name in _TOKEN_PARAMETERS):
            raise refuse(
                400, "token-in-url", "a token in a URL ends up in logs", "send it as `Authorization: Bearer TOKEN`"
            )
        roles = allowed_roles(request)
        if roles:
            role = _checked_role(request, keys, roles, refuse)
            request[ROLE_KEY] = role
            if role == "participant":
                request[PARTICIPANT_KEY] = keys.participant_of(_token_of(request))
            if request.method not in {"GET", "HEAD"}:
                # Who changed what, for the record: every coordinator that a write passes through says so.
                log.info(
                    "write %s %s by %s from %s", request.method, request.rel_url.raw_path[:200], role, request.remote
                )
        return await handler(request)

    return check_access


def _token_of(request: web.Request) -> str:
    """The bearer token; "" without one."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _checked_role(
    request: web.Request, keys: ClusterKeys, roles: frozenset[str], refuse: Callable[..., ApiError]
) -> Role:
    token = _token_of(request)
    if not token:
        raise refuse(
            401,
            "no-token",
            "this request needs a token",
            "send it as `Authorization: Bearer TOKEN`; `cleancut` derives it from --secret-file",
            WWW_Authenticate="Bearer",
        )
    role = keys.role_of(token)
    if role is None:
        raise refuse(
            401,
            "wrong-token",
            "the token is not one of this cluster",
            "is the secret file the cluster's?",
            WWW_Authenticate="Bearer",
        )
    if role not in roles:
        raise refuse(403, "wrong-role", f"role {role} may not do this", f"it takes {' or '.join(sorted(roles))}")
    return role


def _is_ours(host: str, names: frozenset[str]) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.removeprefix("[").removesuffix("]").lower()
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
