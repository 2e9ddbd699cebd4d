"""How far may the routes of a client's bindings reach?

What a client declares must lead nowhere that it could not have bound itself. A `Reach` knows what its client may
bind to one exchange, as far as that was asked; the rest does not count among the destinations of a message, and the
message says that it should be asked for. The declared destination of a binding needs no such leave: the broker gave it
when the binding was made. Who asks whom is not known here.

Source: the open-exchange specification, section 7, for what routes choose.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from proxy.routing.bindings.binding import QUEUE, Destination

if TYPE_CHECKING:
    from proxy.routing.message import Message

#: In the place of what is out of reach: a name that nobody has, so that the message counts as routed all the same.
NOBODY: Destination = (QUEUE, b"")


class Reach:
    """What one client may bind to one exchange.

    Args:
        client: its name.
        closed: whether nothing is allowed and no client is to be asked.
    """

    __slots__ = ("allowed", "client", "closed", "refused")

    def __init__(self, client: str, closed: bool = False) -> None:
        """Know nothing yet."""
        self.client = client
        self.closed = closed
        #: destinations that the client could bind
        self.allowed: set[Destination] = set()
        #: those that it could not, with the reason
        self.refused: dict[Destination, str] = {}

    def limit(self, chosen: Collection[Destination], message: Message) -> Collection[Destination]:
        """Give those of the destinations that are within reach, and `NOBODY` for the others.

        Args:
            chosen: destinations.
            message: gets what has to be asked for.
        """
        if self.allowed.issuperset(chosen):
            return chosen
        kept = {NOBODY}
        for one in chosen:
            if one in self.allowed:
                kept.add(one)
            elif not self.closed and one not in self.refused:
                message.asked.add((self, one))
        return kept


#: Of a binding that no client is known to have made: its routes lead nowhere, and no client is asked.
NO_REACH = Reach("", closed=True)
