"""What the control plane and the relays share about one virtual host.

The control plane writes `queues`, `bound` and `missing`; the relays read them. Everything runs in one thread, so a
plain attribute is the whole interface. Whoever changes something that a cached answer depends on calls `changed`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from proxy.routing.decision import QueueNames
from proxy.routing.router import Router
from proxy.routing.values import Table

#: ("queue" | "exchange", name)
Destination: TypeAlias = tuple[str, bytes]


class Delivery(Enum):
    """How a decision reaches the broker (architecture: one in, one out)."""

    CARRIER = "carrier"
    QUEUE = "queue"


@dataclass(slots=True, eq=False)
class OwnedExchange:
    """An exchange that is evaluated here.

    Args:
        name: what producers publish to.
        type: ``x-open`` or the standard type that is evaluated here.
        delivery: how its messages leave.
        carrier: the exchange on the broker that carries them (CARRIER only).
        unmatched_pass: what no binding routes goes to the broker's own exchange of that name.
        alternate: alternate exchange of the exchange.
        arguments: its arguments as declared (filters included).
        bound: destinations whose token binding on the carrier stands, as far as is known.
    """

    name: bytes
    type: str
    delivery: Delivery
    carrier: bytes
    unmatched_pass: bool = False
    alternate: bytes | None = None
    arguments: Table = ()
    bound: set[Destination] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class VhostState:
    """One virtual host as the relays see it.

    Args:
        name: the virtual host.
        router: the compiled rules.
        exchanges: exchanges evaluated here, by the name producers use.
        queues: queues that exist, for regex routes.
        missing: destinations that rules name and that can't be reached, with the reason. Bounded by its writer.
        epoch: grows with every change that makes cached answers stale.
    """

    name: str
    router: Router
    exchanges: dict[bytes, OwnedExchange] = field(default_factory=dict)
    queues: QueueNames = field(default_factory=QueueNames)
    missing: dict[Destination, str] = field(default_factory=dict)
    epoch: int = 0

    @property
    def carriers(self) -> frozenset[bytes]:
        """Names of the broker's exchanges that carry the exchanges evaluated here."""
        return frozenset(owned.carrier for owned in self.carried())

    @property
    def restores(self) -> bool:
        """Whether publishes may leave under another exchange or key, so that originals have to be put back."""
        return any(
            owned.delivery is Delivery.QUEUE or owned.carrier != owned.name or owned.alternate is not None
            for owned in self.exchanges.values()
        )

    def carried(self) -> list[OwnedExchange]:
        """Give the exchanges that have a carrier on the broker."""
        return [owned for owned in self.exchanges.values() if owned.delivery is Delivery.CARRIER]

    def changed(self) -> None:
        """Make every relay forget what it derived from this state."""
        self.epoch += 1
