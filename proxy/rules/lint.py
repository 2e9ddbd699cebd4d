"""Do the rules files agree with each other, and with what a broker can do? Checks that need no broker.

Each looks at the drafts of all files of one virtual host. Sources: the interface ("one exchange in two files is an
error") and the delivery page (carriers, ``unmatched: pass``, the reserved prefix).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from proxy.routing.bindings import EXCHANGE, typed_arguments
from proxy.rules.faults import Faults, Place
from proxy.rules.schema import ALTERNATE, CARRIER, OPEN, BindingDraft, ExchangeDraft, FileDraft, QueueDraft

#: Filters are arguments of open exchanges; other types take and ignore them, as the broker does.
_FILTERS = (b"min-payload-size", b"max-payload-size", b"max-headers-size", b"max-headers-depth")
#: What such an exchange does not match is the broker's, which gets it only as the producer published it.
_UNREACHABLE = "an exchange with unmatched: pass can't be reached from another one that is evaluated here"


def check_vhost(files: Sequence[FileDraft], faults: Faults) -> None:
    """Report what does not go together among the files of one virtual host."""
    _queues([queue for file in files for queue in file.queues], faults)
    exchanges = [exchange for file in files for exchange in file.exchanges]
    _names(exchanges, faults)
    _carriers(exchanges, faults)
    owned = {exchange.name: exchange for exchange in exchanges}
    for exchange in exchanges:
        _binding_names(exchange, faults)
        _alternate(exchange, owned, faults)
        _without_effect(exchange, faults)
        _destinations(exchange, owned, faults)


def _where(draft: ExchangeDraft | QueueDraft) -> str:
    place = draft.place if isinstance(draft, QueueDraft) else draft.fields.place_of("name")
    return f"{place.source}:{place.line}"


def _queues(queues: Iterable[QueueDraft], faults: Faults) -> None:
    first: dict[bytes, QueueDraft] = {}
    for queue in queues:
        other = first.setdefault(queue.rule.name, queue)
        if other is queue:
            continue
        if other.place.source == queue.place.source:
            faults.error(queue.place, queue.path, f"the same queue as in line {other.place.line}")
        elif typed_arguments(other.rule.arguments) != typed_arguments(queue.rule.arguments):
            faults.error(queue.place, queue.path, f"{_where(other)} asks for the same queue with other arguments")


def _names(exchanges: Iterable[ExchangeDraft], faults: Faults) -> None:
    first: dict[bytes, ExchangeDraft] = {}
    for exchange in exchanges:
        other = first.setdefault(exchange.name, exchange)
        if other is not exchange:
            exchange.fields.error("name", f"{_where(other)} has an exchange of this name already")


def _carriers(exchanges: Sequence[ExchangeDraft], faults: Faults) -> None:
    names = {exchange.name: exchange for exchange in exchanges}
    first: dict[bytes, ExchangeDraft] = {}
    for exchange in exchanges:
        if exchange.delivery != CARRIER:
            continue
        other = first.setdefault(exchange.carrier, exchange)
        if other is exchange and exchange.carrier != exchange.name:
            other = names.get(exchange.carrier, exchange)
        if other is not exchange and other.name != exchange.name:
            exchange.fields.error("carrier", f"this name is used by the exchange of {_where(other)}")


def _binding_names(exchange: ExchangeDraft, faults: Faults) -> None:
    first: dict[str, Place] = {}
    for draft in exchange.bindings:
        if draft.name_place is None:
            continue
        place = first.setdefault(draft.binding.id, draft.name_place)
        if place is not draft.name_place:
            faults.error(draft.name_place, f"{draft.path}.name", f"the same name as in line {place.line}")


def _alternate(exchange: ExchangeDraft, owned: dict[bytes, ExchangeDraft], faults: Faults) -> None:
    alternate = exchange.alternate
    if alternate is None:
        return
    place, path = exchange.argument_place(ALTERNATE), exchange.argument_path(ALTERNATE)
    if alternate == exchange.name:
        faults.error(place, path, "seen the exchange itself, expected another one")
    elif exchange.unmatched_pass and alternate in owned:
        message = "an exchange with unmatched: pass can't have an alternate that is evaluated here"
        faults.error(place, path, message)
    elif exchange.unmatched_pass:
        faults.warn(place, path, "unmatched: pass wins: only what a silent filter dropped goes there")
    elif alternate in owned and owned[alternate].unmatched_pass:
        faults.error(place, path, _UNREACHABLE)


def _without_effect(exchange: ExchangeDraft, faults: Faults) -> None:
    """Point at what is written for an open exchange and ignored by the type that was chosen."""
    if exchange.type == OPEN:
        return
    for name, _ in exchange.arguments:
        if name.removesuffix(b"-silent") in _FILTERS:
            message = f"has no effect for type {exchange.type}"
            faults.warn(exchange.argument_place(name), exchange.argument_path(name), message)
    for draft in exchange.bindings:
        if draft.binding.routing_key and exchange.type in ("headers", "fanout"):
            faults.warn(draft.key_place, f"{draft.path}.routing_key", f"has no effect for type {exchange.type}")
        for name, _ in draft.binding.arguments:
            key = name.decode()
            if exchange.type != "headers":
                message = f"arguments have no effect for type {exchange.type}"
            elif name.startswith(b"x-?") and not _tests_x_headers(draft):
                message = f"is an operator of type {OPEN} and has no effect for type headers"
            else:
                continue
            faults.warn(draft.argument_place(key), draft.argument_path(key), message)


def _tests_x_headers(draft: BindingDraft) -> bool:
    match = next((value.value for name, value in draft.binding.arguments if name == b"x-match"), b"")
    return isinstance(match, bytes) and match.endswith(b"-with-x")


def _destinations(exchange: ExchangeDraft, owned: dict[bytes, ExchangeDraft], faults: Faults) -> None:
    carriers = {each.carrier for each in owned.values() if each.delivery == CARRIER}
    for draft in exchange.bindings:
        for place, path, name in _named_exchanges(draft):
            target = owned.get(name)
            if target is None and name in carriers:
                faults.error(place, path, "this is a carrier: name the exchange it stands for")
            elif target is not None and target.unmatched_pass and target is not exchange:
                faults.error(place, path, _UNREACHABLE)


def _named_exchanges(draft: BindingDraft) -> Iterator[tuple[Place, str, bytes]]:
    if draft.binding.destination_type == EXCHANGE:
        yield draft.place, f"{draft.path}.exchange", draft.binding.destination
    for key, name in draft.named_routes():
        if key.startswith("x-adde-"):
            yield draft.argument_place(key), draft.argument_path(key), name
