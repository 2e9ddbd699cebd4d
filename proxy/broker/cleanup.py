"""Finds and removes objects that sidecars have left on a broker (`oxproxy cleanup`).

These objects are exchanges with our mark or with a reserved prefix in their name, and the bindings of these exchanges.
On an exchange without the prefix, a binding whose routing key has no reserved prefix is foreign. Exchanges with foreign
bindings are kept.
Source: architecture, "The broker is the store".
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from proxy.broker.management_api import BindingInfo, ManagementApi, NotListed
from proxy.values import RESERVED_PREFIXES, counted, text


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


async def remove_leftover(management: ManagementApi, leftover: Leftover) -> bool:
    """Remove an exchange and return True; if it has foreign bindings, remove only our bindings and return False."""
    if leftover.foreign:
        for binding in leftover.bindings:
            await management.remove_binding(leftover.vhost, leftover.exchange, binding)
        return False
    with suppress(NotListed):  # removed concurrently
        await management.remove_exchange(leftover.vhost, leftover.exchange)
    return True
