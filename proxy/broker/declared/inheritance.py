"""What new rules take over of what clients declared under the old ones.

Exchanges that clients declared stay as they are, unless a rules file owns the name now: then the file's declaration
holds and the clients' bindings go on. Pure. Source: architecture, "The broker is the store".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from proxy.errors import ProtocolError
from proxy.relay.vhost import OwnedExchange, StoredBinding, VhostState
from proxy.routing.exchange import Exchange
from proxy.routing.router import Router

#: A binding that new rules don't take, and why.
Refused: TypeAlias = tuple[StoredBinding, str]


def inherit(state: VhostState, exchanges: dict[bytes, OwnedExchange], router: Router) -> list[Refused]:
    """Put clients' exchanges and bindings beside new rules; called again, it brings them up to date.

    Args:
        state: the old rules, with what clients declared.
        exchanges: of the new rules; written.
        router: the new rules; written.

    Returns:
        Bindings that the new rules make invalid, with the reason.
    """
    return [refused for refused in inheriting(state, exchanges, router) if refused is not None]


def inheriting(state: VhostState, exchanges: dict[bytes, OwnedExchange], router: Router) -> Iterator[Refused | None]:
    """Do what `inherit` does in small steps, between which the old rules may change.

    Yields:
        For each step None, or a binding that the new rules make invalid.
    """
    for name, owned in list(exchanges.items()):
        if owned.declared is not None and state.exchanges.get(name) is not owned:
            del exchanges[name]
            router.remove(name)
    for name, owned in list(state.exchanges.items()):
        new = exchanges.get(name)
        if new is None and owned.declared is not None:
            exchanges[name] = owned
            router.add(state.router.exchanges[name])
        elif new is not None and new is not owned:
            yield from _bindings(owned, new, router.exchanges[name])
        yield None


def _bindings(old: OwnedExchange, new: OwnedExchange, exchange: Exchange) -> Iterator[Refused | None]:
    new.reaches, new.grants = old.reaches, old.grants
    for identity, stored in list(new.clients.items()):
        if old.clients.get(identity) is not stored:
            exchange.unbind(stored.binding)
            new.drop(stored.binding)
    for identity, stored in list(old.clients.items()):
        if identity in new.clients or exchange.has(stored.binding):
            continue  # in the file as well: that one counts
        try:
            exchange.bind(stored.binding)
        except ProtocolError as error:
            yield stored, str(error)
        else:
            new.keep(stored)
            yield None
