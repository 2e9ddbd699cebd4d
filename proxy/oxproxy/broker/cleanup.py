"""Finds and removes objects that sidecars have left on a broker (`oxproxy cleanup`).

These objects are exchanges with our mark or with a reserved prefix in their name, and the bindings of these exchanges.
On an exchange without the prefix, a binding whose routing key has no reserved prefix is foreign. Exchanges with foreign
bindings are kept.

Sidecars never remove bindings that others may need, so two kinds of rows accumulate, and are removed on request: stale
rows, which were made with a secret that is no longer listed, and unused tokens, whose destination no rule and no client
binding names. No sidecar publishes with a stale token, so stale rows can be removed at any time. A sidecar that regards
an unused token as bound may publish with it until its next pass, so unused tokens are removed in quiet hours.
Source: docs/explanation/declarations.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from oxproxy.broker.declared.store import binding_from_listing, exchange_from_listing, signing_secret
from oxproxy.broker.management_api import BindingInfo, ManagementApi, NotListed
from oxproxy.broker.reconcile.checks import carrier_rows
from oxproxy.errors import ProtocolError, UpstreamError, UpstreamFailure
from oxproxy.relay.declare.storage import unpack
from oxproxy.relay.tokens import Secrets, Tokens
from oxproxy.relay.vhost import VhostState
from oxproxy.routing.router import Router
from oxproxy.values import RESERVED_PREFIXES, counted, describe, text


@dataclass(frozen=True, slots=True)
class Leftover:
    """An exchange that sidecars created, with its bindings."""

    vhost: str
    exchange: bytes
    bindings: tuple[BindingInfo, ...]
    foreign: tuple[BindingInfo, ...]

    @property
    def stored_bindings(self) -> int:
        return sum(binding.stores for binding in self.bindings)

    @property
    def tokens(self) -> int:
        return len(self.bindings) - self.stored_bindings

    def as_json(self) -> dict[str, object]:
        return {
            "vhost": self.vhost,
            "exchange": text(self.exchange),
            "tokens": self.tokens,
            "stored_bindings": self.stored_bindings,
            "foreign_bindings": list(map(str, self.foreign)),
        }

    def __str__(self) -> str:
        counts = f"{counted(self.tokens, 'token')}, {counted(self.stored_bindings, 'stored binding')}"
        others = "".join(f"; kept because of a foreign binding to {binding}" for binding in self.foreign)
        return f"vhost {self.vhost}: exchange {text(self.exchange)}: {counts}{others}"


async def find_leftovers(management: ManagementApi, vhosts: Collection[str] = ()) -> list[Leftover]:
    """Find leftover exchanges in the given virtual hosts, or in all virtual hosts if none are given."""
    leftovers = []
    for vhost, info in await management.exchanges_everywhere():
        if (vhosts and vhost not in vhosts) or not (info.marked or info.name.startswith(RESERVED_PREFIXES)):
            continue
        ours: list[BindingInfo] = []
        foreign: list[BindingInfo] = []
        for binding in await management.bindings(vhost, info.name):
            is_ours = binding.routing_key.startswith(RESERVED_PREFIXES) or info.name.startswith(RESERVED_PREFIXES)
            (ours if is_ours else foreign).append(binding)
        leftovers.append(Leftover(vhost, info.name, tuple(ours), tuple(foreign)))
    return sorted(leftovers, key=lambda leftover: (leftover.vhost, leftover.exchange))


async def remove_leftover(management: ManagementApi, leftover: Leftover) -> list[str]:
    """Remove an exchange, or only our bindings if it has foreign ones; return the reasons for what is refused."""
    if leftover.foreign:
        return await remove_rows(management, Rows(leftover.vhost, leftover.exchange, leftover.bindings))
    try:
        with suppress(NotListed):  # removed concurrently
            await management.remove_exchange(leftover.vhost, leftover.exchange)
    except UpstreamError as error:
        if error.failure is not UpstreamFailure.REFUSED:
            raise
        return [f"exchange {text(leftover.exchange)}: {error}"]
    return []


@dataclass(frozen=True, slots=True)
class Rows:
    """Bindings of one carrier that are no longer needed.

    Args:
        tokens: bindings with tokens.
        stored: stored bindings of clients.
        last: those of the stored bindings without a further copy, so that the client's binding ends with them.
    """

    vhost: str
    exchange: bytes
    tokens: tuple[BindingInfo, ...] = ()
    stored: tuple[BindingInfo, ...] = ()
    last: tuple[BindingInfo, ...] = ()

    def as_json(self) -> dict[str, object]:
        return {
            "vhost": self.vhost,
            "exchange": text(self.exchange),
            "tokens": len(self.tokens),
            "stored_bindings": len(self.stored),
            "last_copies": list(map(_last_copy, self.last)),
        }

    def __str__(self) -> str:
        counts = f"{counted(len(self.tokens), 'token')}, {counted(len(self.stored), 'stored binding')}"
        ends = "".join(f"; no other copy: {_last_copy(binding)}" for binding in self.last)
        return f"vhost {self.vhost}: exchange {text(self.exchange)}: {counts}{ends}"


def _last_copy(binding: BindingInfo) -> str:
    """Describe a client's binding without a valid signature, so that an operator can ask the client to bind again."""
    with suppress(ValueError):
        return f"{describe(binding.destination)} (claimed user {unpack(binding.kept.encode()).client!r})"
    return f"{describe(binding.destination)} (damaged)"


async def find_stale(management: ManagementApi, secrets: Secrets, vhosts: Collection[str] = ()) -> list[Rows]:
    """Find rows that were made with none of the given secrets, in the given virtual hosts or in all of them."""
    found: list[Rows] = []
    for vhost, info in await management.exchanges_everywhere():
        if not info.marked or (vhosts and vhost not in vhosts):
            continue
        bindings = await management.bindings(vhost, info.name)
        tokens = carrier_rows(bindings, Tokens(vhost, secrets.token_keys)).stale
        signed = {row for row in bindings if row.stores and _is_signed(secrets, vhost, info.name, row)}
        stored = tuple(row for row in bindings if row.stores and row not in signed)
        kept = {(row.destination, row.routing_key) for row in signed}
        last = tuple(row for row in stored if (row.destination, row.routing_key) not in kept)
        if tokens or stored:
            found.append(Rows(vhost, info.name, tokens, stored, last))
    return _ordered(found)


def _is_signed(secrets: Secrets, vhost: str, carrier: bytes, info: BindingInfo) -> bool:
    try:
        return signing_secret(secrets, vhost, carrier, info, unpack(info.kept.encode())) is not None
    except ValueError:
        return False  # damaged, so that no sidecar can use it


async def find_unused(
    management: ManagementApi, states: Mapping[str, VhostState], secrets: Secrets, vhosts: Collection[str] = ()
) -> list[Rows]:
    """Find tokens whose destination no rule and no client binding names.

    Tokens are kept on carriers that neither the rules nor clients know, and if messages, patterns or the address table
    may choose their destination.

    Args:
        states: the virtual hosts that rules name; clients' declarations are added to them.
    """
    found: list[Rows] = []
    declared = {vhost for vhost, info in await management.exchanges_everywhere() if info.kept}
    for vhost in sorted(declared | states.keys()):
        if not vhosts or vhost in vhosts:
            state = states[vhost] if vhost in states else VhostState(vhost, Router(()))
            state.set_secrets(secrets)
            found += _unused(state, await _read_declarations(management, state))
    return _ordered(found)


async def _read_declarations(management: ManagementApi, state: VhostState) -> dict[bytes, list[BindingInfo]]:
    """Add clients' exchanges and bindings to a state; return the bindings of the carriers, by exchange.

    As in a sidecar, damaged and invalid declarations have no effect, and rules files take precedence.
    """
    for info in (await management.exchanges(state.name)).values():
        if info.kept and info.name not in state.exchanges and info.name not in state.carriers:
            with suppress(ValueError):
                state.add_exchange(*exchange_from_listing(info))
    listed = {owned.name: await management.bindings(state.name, owned.carrier) for owned in state.carried()}
    for name, rows in listed.items():
        for row in rows:
            if row.stores:
                with suppress(ValueError, ProtocolError):
                    stored = binding_from_listing(state, name, state.exchanges[name].carrier, row)
                    state.add_binding(stored)
    return listed


def _unused(state: VhostState, listed: Mapping[bytes, Iterable[BindingInfo]]) -> Iterator[Rows]:
    if state.addresses is not None and state.addresses.stays_here:
        return
    for name, rows in listed.items():
        bound = carrier_rows(rows, state.tokens).tokens
        unused = {destination for destination in bound if not state.router.may_choose(name, destination)}
        tokens = tuple(row for row in rows if row.destination in unused and row.routing_key in bound[row.destination])
        if tokens:
            yield Rows(state.name, state.exchanges[name].carrier, tokens)


def _ordered(found: Iterable[Rows]) -> list[Rows]:
    return sorted(found, key=lambda rows: (rows.vhost, rows.exchange))


async def remove_rows(management: ManagementApi, rows: Rows) -> list[str]:
    """Remove rows, each with its exact arguments; return the reasons why some could not be removed.

    RabbitMQ permits only the connection that owns an exclusive queue to unbind it.
    """
    refused: list[str] = []
    for binding in (*rows.tokens, *rows.stored):
        try:
            with suppress(NotListed):  # removed concurrently
                await management.remove_binding(rows.vhost, rows.exchange, binding)
        except UpstreamError as error:
            if error.failure is not UpstreamFailure.REFUSED:
                raise
            refused.append(f"{binding}: {error}")
    return refused
