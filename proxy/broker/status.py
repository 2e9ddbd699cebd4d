"""What operators may know of one virtual host: plain data for a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proxy.broker.remote_survey import shown
from proxy.broker.vhost_topology import VhostTopology


@dataclass(frozen=True, slots=True)
class VhostStatus:
    """What operators may know of one virtual host.

    Args:
        vhost: its name.
        ready: whether everything was declared and looked over once.
        connected: whether the control connection stands now.
        fault: why the last attempt to connect failed, empty where it did not.
        missing: "queue NAME" or "exchange NAME", for other brokers with "at broker NAME" behind it, and the reason.
        foreign: by carrier, bindings on it that are not ours.
        conflicts: what contradicts the rules, and what to do.
        inventory_failures: listings that failed at the last look.
        queues: how many queues are known.
        old_tokens: bindings under unkeyed tokens, and under tokens of previous secrets.
        bypasses: alternate and dead-letter exchanges that lead to carriers.
        unsigned: by exchange, bindings that no sidecar signed: they reach their own destination alone.
        previous_secret: by exchange, how many bindings a previous secret signed.
        declared: by exchange that clients declared or bound to, how many bindings they made.
        refreshed_at: seconds since the epoch of the last look, None before the first.
    """

    vhost: str
    ready: bool
    connected: bool
    fault: str
    missing: Mapping[str, str]
    foreign: Mapping[str, Sequence[str]]
    conflicts: Sequence[str]
    inventory_failures: Sequence[str]
    queues: int
    unsigned: Mapping[str, Sequence[str]]
    old_tokens: Mapping[str, int]
    bypasses: Sequence[str]
    previous_secret: Mapping[str, int]
    declared: Mapping[str, int]
    refreshed_at: float | None


def status_of(vhost: VhostTopology) -> VhostStatus:
    """Read the status of a virtual host."""
    return VhostStatus(
        vhost=vhost.state.name,
        ready=vhost.ready,
        connected=vhost.connected,
        fault=vhost.fault,
        missing={
            **{f"{kind} {_text(name)}": why for (kind, name), why in sorted(vhost.missing.items())},
            **{shown(*each): why for each, why in sorted(vhost.state.missing_elsewhere.items())},
        },
        foreign={
            _text(carrier): [str(binding) for binding in bindings] for carrier, bindings in vhost.survey.foreign.items()
        },
        conflicts=vhost.conflicts,
        inventory_failures=vhost.survey.failures,
        queues=len(vhost.presence.queues),
        old_tokens=vhost.survey.tokens(),
        bypasses=vhost.survey.bypasses,
        unsigned={_text(name): texts for name, texts in sorted(vhost.store.listings.unsigned.items())},
        previous_secret={_text(name): count for name, count in sorted(vhost.store.listings.previous.items())},
        declared={
            _text(name): len(owned.clients)
            for name, owned in sorted(vhost.state.exchanges.items())
            if owned.declared is not None or owned.clients
        },
        refreshed_at=vhost.refreshed_at,
    )


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
