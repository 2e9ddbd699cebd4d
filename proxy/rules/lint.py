"""Do the rules files agree with each other, and with what a broker can do? Checks that need no broker.

Each looks at the drafts of all files of one virtual host. Sources: the interface ("one exchange in two files is an
error") and the delivery page (carriers, ``unmatched: pass``, the reserved prefix).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from proxy.routing.bindings import EXCHANGE, typed_arguments
from proxy.rules.faults import Faults
from proxy.rules.schema import ALTERNATE, CARRIER, ExchangeDraft, FileDraft, QueueDraft

#: Filters are arguments of open exchanges; other types take and ignore them, as the broker does.
_FILTERS = ("min-payload-size", "max-payload-size", "max-headers-size", "max-headers-depth")


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
        _filters(exchange, faults)
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
    first: dict[str, int] = {}
    for draft in exchange.bindings:
        if draft.name_place is None:
            continue
        line = first.setdefault(draft.binding.id, draft.name_place.line)
        if line != draft.name_place.line:
            faults.error(draft.name_place, f"{draft.path}.name", f"the same name as in line {line}")


def _alternate(exchange: ExchangeDraft, owned: dict[bytes, ExchangeDraft], faults: Faults) -> None:
    alternate = exchange.alternate
    if alternate is None:
        return
    place, path = exchange.argument_place(ALTERNATE), f"{exchange.fields.path}.arguments.{ALTERNATE.decode()}"
    if alternate == exchange.name:
        faults.error(place, path, "seen the exchange itself, expected another one")
    elif exchange.unmatched_pass and alternate in owned:
        message = "an exchange with unmatched: pass can't have an alternate that is evaluated here"
        faults.error(place, path, message)
    elif exchange.unmatched_pass:
        faults.warn(place, path, "unmatched: pass wins: only what a silent filter dropped goes there")


def _filters(exchange: ExchangeDraft, faults: Faults) -> None:
    if exchange.type == "x-open":
        return
    for name, _ in exchange.arguments:
        key = name.decode()
        if key.removesuffix("-silent") in _FILTERS:
            path = f"{exchange.fields.path}.arguments.{key}"
            faults.warn(exchange.argument_place(name), path, f"has no effect for type {exchange.type}")


def _destinations(exchange: ExchangeDraft, owned: dict[bytes, ExchangeDraft], faults: Faults) -> None:
    carriers = {each.carrier for each in owned.values() if each.delivery == CARRIER}
    for draft in exchange.bindings:
        if draft.binding.destination_type != EXCHANGE:
            continue
        name = draft.binding.destination
        target = owned.get(name)
        if target is None and name in carriers:
            faults.error(draft.place, f"{draft.path}.exchange", "this is a carrier: name the exchange it stands for")
        elif target is not None and target.unmatched_pass and target is not exchange:
            message = "an exchange with unmatched: pass can't be reached from another one evaluated here"
            faults.error(draft.place, f"{draft.path}.exchange", message)
