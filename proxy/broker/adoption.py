"""Finds client bindings that are not signed with the current secret, and signs them (`oxproxy adopt`).

Version 0.1 did not sign bindings, and later versions may have used a secret that has since been replaced. The signed
binding has the same routing key and sequence number as the old binding, so the order of bindings does not change. The
signed binding is created before the old binding is removed, so that no message is lost.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from proxy.broker.connection import ControlConnection, ControlSettings
from proxy.broker.declared.store import binding_from_listing, why_unsigned
from proxy.broker.management_api import BindingInfo, ManagementApi
from proxy.broker.methods import Bind
from proxy.broker.reconcile.checks import carrier_tokens
from proxy.relay.declare.storage import kept_rows, signed_copy
from proxy.relay.tokens import TokenForm, Tokens
from proxy.relay.vhost import StoredBinding, VhostState
from proxy.routing.router import Router
from proxy.values import Destination, shown


@dataclass(frozen=True, slots=True)
class UnsignedBinding:
    """A client's binding that is not signed with the current secret."""

    vhost: str
    carrier: bytes
    info: BindingInfo
    stored: StoredBinding

    @property
    def secret(self) -> int | None:
        """Index of the secret with which the binding was signed: 1 or more for a previous secret, None if unknown."""
        return self.stored.copies[0].secret

    @property
    def foreign_signature(self) -> bool:
        """True if the binding has a signature that matches none of our secrets.

        No sidecar with one of these secrets created this signature.
        """
        return self.secret is None and bool(self.info.signature)

    def as_json(self) -> dict[str, Any]:  # Any: JSON
        """Return the data to show to operators, without argument values."""
        (copy,) = self.stored.copies
        return {
            "exchange": shown(self.carrier),
            "binding": str(self.info),
            "user": copy.client,
            "arguments": [shown(name) for name, _ in self.stored.binding.arguments],
            "reason": why_unsigned(self.info) if self.secret is None else "signed with a previous secret",
        }

    def __str__(self) -> str:
        exchange, binding, user, arguments, reason = self.as_json().values()
        names = ", ".join(arguments) or "none"
        return f"vhost {self.vhost}: exchange {exchange}: {binding}, user {user!r}, arguments {names}: {reason}"


class Adoption:
    """Finds and signs client bindings in one virtual host. If a request fails, methods raise `UpstreamError`."""

    def __init__(self, settings: ControlSettings, management: ManagementApi, vhost: str) -> None:
        self.vhost = vhost
        self._state = VhostState(vhost, Router(()), secrets=settings.declared.secrets)
        self._tokens = Tokens(vhost, settings.declared.secrets.token_keys)
        self._management = management
        self._connection = ControlConnection(settings, vhost)

    async def carriers(self) -> list[bytes]:
        return sorted(name for name, info in (await self._management.exchanges(self.vhost)).items() if info.marked)

    async def find(self, exchanges: Collection[bytes] = ()) -> list[UnsignedBinding]:
        """Find bindings that are not signed with the current secret, except damaged bindings, which sidecars ignore.

        Args:
            exchanges: the exchanges to search; empty for all.
        """
        bindings: list[UnsignedBinding] = []
        for carrier in await self.carriers():
            if exchanges and carrier not in exchanges:
                continue
            for info in await self._management.bindings(self.vhost, carrier):
                if not info.stores:
                    continue
                try:
                    stored = binding_from_listing(self._state, carrier, carrier, info)
                except ValueError:
                    continue
                if stored.copies[0].secret != 0:
                    bindings.append(UnsignedBinding(self.vhost, carrier, info, stored))
        return bindings

    async def sign(self, unsigned: UnsignedBinding) -> str | None:
        """Replace a binding with a signed binding; if the broker refuses the signed binding, return the reason.

        Raises:
            UpstreamError: the broker is unreachable; the old binding remains.
        """
        (copy,), destination = unsigned.stored.copies, unsigned.stored.destination
        signed = signed_copy(
            self._state,
            unsigned.carrier,
            unsigned.stored.binding,
            unsigned.stored.entries,
            copy.key,
            copy.client,
        )
        ((key, entries),) = kept_rows(unsigned.stored._replace(copies=(signed,)))
        if not self._connection.connected:
            await self._connection.connect()
        refusal = await self._connection.call(Bind(unsigned.carrier, destination, key, entries))
        if refusal is not None:
            return refusal.reason(destination[0])
        await self._management.remove_binding(self.vhost, unsigned.carrier, unsigned.info)
        return None

    async def lacking_tokens(self) -> list[tuple[bytes, Destination]]:
        """Find destinations that carriers reach only with old tokens. Retiring these tokens would lose messages."""
        lacking: list[tuple[bytes, Destination]] = []
        for carrier, tokens, bindings in await self._bindings():
            current = {
                info.destination
                for info in bindings
                if info.routing_key in tokens.of(*info.destination)[:: len(tokens.keys)]
            }
            bound = carrier_tokens(bindings, tokens).bound
            lacking += [(carrier, destination) for destination in sorted(bound - current)]
        return lacking

    async def retire_tokens(self) -> int:
        """Record on the broker that, from now on, only the current tokens are used in the virtual host.

        In their next pass, sidecars detect this, publish only with the current tokens, and remove the other tokens.
        Before this call, all sidecars must have the current secret, none may run version 0.1, and `lacking_tokens` must
        be empty.

        Returns:
            Number of remaining bindings with other tokens.
        """
        current, *others = self._tokens.keys
        for key in others:
            await self._management.declare_marker(self.vhost, self._tokens.marker(current, key))
        counted = [carrier_tokens(bindings, tokens) for _, tokens, bindings in await self._bindings()]
        return sum(bound.unkeyed + bound.previous for bound in counted)

    async def _bindings(self) -> list[tuple[bytes, Tokens, list[BindingInfo]]]:
        """List the bindings of each carrier, with the tokens that the carrier may have."""
        return [
            (
                name,
                self._tokens.in_form(TokenForm.CHANGING if info.type == "topic" else TokenForm.DIRECT),
                await self._management.bindings(self.vhost, name),
            )
            for name, info in sorted((await self._management.exchanges(self.vhost)).items())
            if info.marked
        ]

    async def close(self) -> None:
        await self._connection.close()
