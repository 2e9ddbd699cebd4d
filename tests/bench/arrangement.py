"""Declares the exchanges and queues of the cases, and writes the sidecar's files.

Except in the cases with eight queues per message, each message reaches exactly one of ten short queues, in turn, so
that the broker's work after routing is the same in all cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from pamqp import commands
from pamqp.common import FieldTable

from tests.bench.cases import (
    ADDRESS_RULES,
    AMOUNT_EXCHANGE,
    CONSUMED,
    HEADERS_EXCHANGE,
    HEADERS_THOUSAND_EXCHANGE,
    KEYS_IN_TURN,
    MANY,
    MIXED,
    MIXED_EXCHANGE,
    MIXED_REGEXES,
    QUEUES,
    QUEUES_AT_ONCE,
    RULES_EXCHANGE,
    THOUSAND,
    THOUSAND_EXCHANGE,
    TOPIC_EXCHANGE,
    kind,
    routing_key,
)
from tests.producer import Producer
from tests.rabbitmq import Broker

MAX_LENGTH = 1_000
"""Length limit of a queue. Older messages are dropped, so that the broker's memory does not affect the results."""
NOWHERE = "bench.nowhere"
"""An ordinary exchange without bindings, which drops messages. Also used as a kind that no rule names."""

Arguments = Callable[[int], str]


def queue(number: int) -> str:
    return f"bench.queue-{number % QUEUES}"


def declare(broker: Broker) -> None:
    """Declare the queues, and the ordinary exchanges used by the direct and the pass-through cases."""
    with Producer(broker.port).open() as producer:
        for name in ("bench.direct", "bench.direct-eight", "bench.remote", NOWHERE):
            producer.ask(commands.Exchange.Declare(exchange=name, durable=True))
        for number in range(QUEUES):
            arguments: FieldTable = {"x-max-length": MAX_LENGTH}
            producer.ask(commands.Queue.Declare(queue=queue(number), durable=True, arguments=arguments))
        producer.ask(commands.Queue.Declare(queue=CONSUMED, durable=True))
        producer.ask(commands.Queue.Bind(queue=CONSUMED, exchange="bench.direct", routing_key=CONSUMED))
        for number in range(QUEUES):
            key = routing_key(number)
            for exchange in ("bench.direct", "bench.remote"):
                producer.ask(commands.Queue.Bind(queue=queue(number), exchange=exchange, routing_key=key))
            for name in eight_queues(number):
                producer.ask(commands.Queue.Bind(queue=name, exchange="bench.direct-eight", routing_key=key))


def eight_queues(number: int) -> list[str]:
    return [queue(number + further) for further in range(QUEUES_AT_ONCE)]


def declare_headers_exchanges(broker: Broker) -> None:
    """Declare headers exchanges on the broker, with the bindings of the open exchanges with which they are compared."""
    with Producer(broker.port).open() as producer:
        for exchange, count in ((HEADERS_EXCHANGE, QUEUES), (HEADERS_THOUSAND_EXCHANGE, THOUSAND)):
            producer.ask(commands.Exchange.Declare(exchange=exchange, exchange_type="headers", durable=True))
            for number in range(count):
                arguments: FieldTable = {"x-match": "all", "kind": kind(number)}
                producer.ask(commands.Queue.Bind(queue=queue(number), exchange=exchange, arguments=arguments))


def declare_as_client(port: int) -> None:
    """Declare the open exchange that is not in any rules file, through the sidecar at a port.

    Its carrier has the type of the carriers with which it is compared, since the type determines the broker's cost.
    """
    with Producer(port).open() as producer:
        declare = commands.Exchange.Declare(
            exchange="bench.declared", exchange_type="x-open", durable=True, arguments={"x-carrier-type": "direct"}
        )
        producer.ask(declare)
        for number in range(QUEUES):
            arguments: FieldTable = {"x-?hkv= kind": kind(number)}
            producer.ask(commands.Queue.Bind(queue=queue(number), exchange="bench.declared", arguments=arguments))


def by_kind(number: int) -> str:
    return f'"x-?hkv= kind": {kind(number)}'


def by_kind_to_eight(number: int) -> str:
    return f"{by_kind(number)}, x-addq-ontrue: [{', '.join(eight_queues(number)[1:])}]"


def by_key(number: int) -> str:
    return f'"x-?rk=": {routing_key(number)}'


def by_last_digit(number: int) -> str:
    return f"x-?rkre: '^key\\.\\d+{number}$'"


def by_pattern(number: int) -> str:
    return f"x-?rkre: '^key\\.{number:04}(\\.|$)'"


def by_topic(number: int) -> str:
    return f"x-?rkta: order.*, {by_kind(number)}"


def by_amount(number: int) -> str:
    return f'"x-?hkv>= amount": 0, {by_kind(number)}'


def mixed(number: int) -> str:
    """Return the arguments of a binding. Only the first ten bindings match messages of the cases."""
    if number in MIXED_REGEXES:
        return by_pattern(number)
    ways = (by_kind, by_key, by_amount, lambda at: f'"x-?hkv= region": region.{at}', lambda at: f"x-?rkta: bill.{at}.*")
    return by_kind(number) if number < QUEUES else ways[number % len(ways)](number)


def exchange_rules(name: str, count: int, arguments: Arguments) -> str:
    """Return an open exchange for a rules file, with its bindings distributed over the queues."""
    bindings = (
        f"      - queue: {queue(number)}\n        arguments: {{{arguments(number)}}}\n" for number in range(count)
    )
    return f"  - name: {name}\n    type: x-open\n    bindings:\n" + "".join(bindings)


def rules_file(path: Path, exchanges: Iterable[str], addresses: Iterable[str] = ()) -> Path:
    path.write_text("vhost: /\nexchanges:\n" + "".join(exchanges) + "".join(addresses))
    return path


def address_rules(broker: Broker, count: int) -> Iterable[str]:
    """Yield an address table with ``count`` rules, of which three match publishes, and with a link to the broker."""
    yield f"brokers:\n  other: {{address: '{broker.address}', username: {broker.username}, "
    yield f"password: {broker.password}, vhost: /}}\naddresses:\n"
    yield "  - {pattern: /exchange/bench.local/*, translation: /exchange/bench.direct/$1}\n"
    yield "  - {pattern: /exchange/bench.remote/*, translation: other/exchange/bench.remote/$1}\n"
    for number in range(count - 3):
        yield f"  - {{pattern: /exchange/%/part.{number}/*, translation: /queue/$2}}\n"
    yield "  - {pattern: /exchange/bench.table/*, translation: /exchange/bench.direct/$1}\n"


def small_rules(folder: Path, broker: Broker) -> Path:
    return rules_file(
        folder / "small.yaml",
        (
            exchange_rules("bench.hkv-10", 10, by_kind),
            exchange_rules("bench.eight", 10, by_kind_to_eight),
            exchange_rules("bench.rk-10", 10, by_key),
            exchange_rules("bench.rkre-10", 10, by_last_digit),
        ),
        address_rules(broker, 10),
    )


def large_rules(folder: Path, broker: Broker) -> Path:
    return rules_file(
        folder / "large.yaml",
        (
            exchange_rules("bench.hkv-many", MANY, by_kind),
            exchange_rules("bench.rk-many", MANY, by_key),
            exchange_rules("bench.rkre-many", KEYS_IN_TURN, by_pattern),
        ),
        address_rules(broker, ADDRESS_RULES),
    )


def real_rules(folder: Path) -> Path:
    """Write the exchanges used by the cases with real traffic, without an address table."""
    return rules_file(
        folder / "real.yaml",
        (
            exchange_rules(RULES_EXCHANGE, QUEUES, by_kind),
            exchange_rules(MIXED_EXCHANGE, MIXED, mixed),
            exchange_rules(TOPIC_EXCHANGE, QUEUES, by_topic),
            exchange_rules(AMOUNT_EXCHANGE, QUEUES, by_amount),
            exchange_rules(THOUSAND_EXCHANGE, THOUSAND, by_kind),
        ),
    )


def many_rules(folder: Path) -> Path:
    """Write one exchange with 10,000 bindings, the file whose loading is timed."""
    return rules_file(folder / "many.yaml", (exchange_rules("bench.load", MANY, by_kind),))


HAPROXY_CONFIG = """\
global
    nbthread 1
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
listen amqp
    bind 127.0.0.1:{port}
    server broker {address}
"""


def haproxy_config(path: Path, broker: Broker, port: int) -> Path:
    """Write a configuration for HAProxy in TCP mode with one thread, like the sidecar.

    The limit on open files determines the maximum number of connections.
    """
    path.write_text(HAPROXY_CONFIG.format(port=port, address=broker.address))
    return path
