"""What the plugin routes where it differs from the specification by row 1 of its section 12 alone.

A *plain* binding is evaluated by the plugin even behind a stop or a jump, and cancels the jump for those behind it.
Vectors of single exchanges carry both results. Vectors of exchange chains carry only what was observed, so for them
this view tells a fault of ours from that row.
"""

from __future__ import annotations

from proxy.routing.decision import ExchangeStep
from proxy.routing.engine import apply_result
from proxy.routing.exchange import Exchange
from proxy.routing.message import Message
from proxy.values import Destination


class PluginExchange(Exchange):
    """An exchange with the plugin's goto and stop."""

    __slots__ = ()

    def route(
        self, message: Message, matched: list[tuple[bytes, str]], step: ExchangeStep | None = None
    ) -> set[Destination] | bytes:
        routed: set[Destination] = set()
        floor = 0
        for compiled in self.entries:
            plain = compiled.on_true is None and compiled.on_false is None
            if floor > compiled.order and not plain:
                continue
            jump = apply_result(compiled, compiled.truth(message), routed, message)
            if jump is None:
                return message.producer.error
            floor = jump
        return routed
