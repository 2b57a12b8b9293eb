"""The first start: somebody must be able to sign in.

A service that only this machine reaches makes an administrator's token, prints it once, and
leaves it in a file that only its owner can read. One that others can reach refuses to start
instead, and says what to do.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path

from core.clock import Clock
from core.errors import Invalid, StoreError
from core.identity import admin_file
from core.identity.authority import Authority, AuthRules
from core.identity.credentials import digest
from core.identity.identities import Identities
from core.identity.oidc import OidcRules, Provider, check_address
from core.identity.peers import is_loopback
from core.identity.principal import AccessRole
from core.oidc_settings import OidcSettings
from core.ports import IdentityStore
from core.settings import AuthSettings, ServerAddress

TOKEN_NAME = "first-start"
log = logging.getLogger("conductor.identity")


def auth_rules(s: AuthSettings, server: ServerAddress) -> AuthRules:
    """The settings as rules; without a word of theirs, open on this machine and shut elsewhere."""
    loopback = is_loopback(server.host)
    role = None if s.anonymous_role == "none" else AccessRole(s.anonymous_role)
    return AuthRules(
        anonymous_role=role if loopback else None,
        loopback=loopback,
        require_api_key=(not loopback) if s.require_api_key is None else s.require_api_key,
        open_metrics=s.open_metrics,
        trusted_proxies=tuple(ip_network(text) for text in s.trusted_proxies),
    )


def make_authority(
    s: AuthSettings, server: ServerAddress, *, store: IdentityStore, clock: Clock
) -> Authority:
    """Who may do what, by these settings and the users and tokens in `store`."""
    given = s.admin_token
    return Authority(
        auth_rules(s, server),
        admin_digest="" if given is None else digest(given.get_secret_value()),
        store=store,
        clock=clock,
        provider=make_provider(s.oidc, clock),
    )


def make_provider(s: OidcSettings, clock: Clock) -> Provider | None:
    """The identity provider of the settings, if there is one; Invalid where it cannot be."""
    if not s.issuer:
        return None
    check_address(s.issuer)
    rules = OidcRules(
        issuer=s.issuer,
        client_id=s.client_id,
        name_claim=s.name_claim,
        role_claim=s.role_claim,
        roles={value: AccessRole(role) for value, role in s.roles.items()},
        default_role=None if s.default_role == "none" else AccessRole(s.default_role),
        session_life=timedelta(hours=s.session_hours),
    )
    return Provider(rules, clock)


class FirstStart:
    """Makes the first administrator's token, as soon as the store can be asked."""

    def __init__(
        self,
        settings: AuthSettings,
        server: ServerAddress,
        state_dir: Path,
        *,
        store: IdentityStore,
        clock: Clock,
        tell: Callable[[str, Path], None] | None = None,
    ) -> None:
        self._settings, self._server, self._state_dir = settings, server, state_dir
        self._store, self._clock, self._tell = store, clock, tell or print_once
        self.done = False

    def run(self) -> None:
        """See whether anybody can sign in, and help. Blocks.

        Invalid where others can reach the service and nobody could sign in. A store that is away
        is asked again later: until then nobody can sign in, and nothing is open to others.
        """
        if self.done or self._settings.admin_token is not None:
            self.done = True
            return
        try:
            if not self._store.has_identities():
                self._nobody_yet()
        except StoreError as error:
            log.warning("who may sign in is not known yet: %s", error.message)
            return
        self.done = True

    def _nobody_yet(self) -> None:
        if not is_loopback(self._server.host):
            raise Invalid(
                f"server.host: {self._server.host} can be reached from elsewhere, and nobody could "
                "sign in; make an administrator first (`conductor users add NAME --role admin`, "
                "with the same --config), or set auth.admin_token, or bind to 127.0.0.1",
                field="server.host",
            )
        try:
            admin_file.check(self._state_dir)
        except OSError as error:  # a token that nobody was told would shut everybody out
            text = f"state_dir: no token can be left in {self._state_dir}: {error.strerror}"
            raise StoreError(text, field="state_dir") from None
        identities = Identities(self._store, self._clock)
        made, _ = identities.create_token(TOKEN_NAME, AccessRole.ADMIN, reason="first start")
        path = admin_file.write(self._state_dir, made.text)
        self._tell(made.text, path)


def print_once(token: str, path: Path) -> None:
    """Show the token to whoever started the service at a terminal; where standard output goes to
    a log, only its place."""
    print(f"first start: an administrator's token is in {path}", flush=True)
    if sys.stdout.isatty():
        print(f"  {token}", flush=True)
