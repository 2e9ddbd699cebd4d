from __future__ import annotations

import time
from dataclasses import replace

import pytest
from pamqp import base, commands

from oxproxy.addressing.table import AddressRule, AddressTable
from oxproxy.addressing.targets import AddressBook, Publication
from oxproxy.amqp.tables import MAX_NESTING, encode_table
from oxproxy.relay.original_address import CC_ASIDE, can_produce, entry, restored_content
from oxproxy.relay.tokens import NOWHERE
from oxproxy.relay.vhost import Delivery, VhostState
from oxproxy.routing.decision import QueueNames
from oxproxy.values import Value
from tests.client import content_header, method, split
from tests.relay.wire import Wire, address_of, chosen, owned, publish, routed, ruled, several, state, table, table_of
from tests.routing.building import VOID, exchange, many, to_exchange, to_queue, value

QUEUE = routed("q", delivery=Delivery.QUEUE)
CARRIER = routed("q")
ELSEWHERE = routed("q", carrier="carrier.xo")
NAMED = chosen("q", delivery=Delivery.QUEUE)
FROM, TO = Publication(b"xo", b"key"), Publication(b"", b"q")


def alternated(delivery: Delivery) -> VhostState:
    return ruled(alternate="ae", delivery=delivery)


@pytest.mark.parametrize(
    ("of", "first", "new", "restores"),
    [
        pytest.param(of, first, new, restores, id=name)
        for restores, name, of, first, new in [
            (True, "queue", QUEUE, FROM, TO),
            (True, "queue to no destination", QUEUE, FROM, Publication(b"", NOWHERE)),
            (True, "queue that a message names", NAMED, FROM, Publication(b"", b"anything")),
            (True, "queue to an exchange", several("other"), FROM, Publication(b"other", b"key")),
            (True, "queue to the alternate", alternated(Delivery.QUEUE), FROM, Publication(b"ae", b"key")),
            (True, "carrier of another name", ELSEWHERE, FROM, Publication(b"carrier.xo", b"key")),
            (True, "none, with an alternate", alternated(Delivery.CARRIER), FROM, Publication(b"", NOWHERE)),
            (False, "exchange that is not ours", QUEUE, Publication(b"other", b"key"), TO),
            (False, "carrier does not move", CARRIER, FROM, TO),
            (False, "carrier does not rename", CARRIER, FROM, Publication(b"carrier.xo", b"key")),
            (False, "carrier keeps the key", ELSEWHERE, FROM, Publication(b"carrier.xo", b"other")),
            (False, "another carrier", ELSEWHERE, FROM, Publication(b"carrier.other", b"key")),
            (False, "exchanges get the key", several("other"), FROM, Publication(b"other", b"changed")),
            (False, "a queue that no rule names", QUEUE, FROM, Publication(b"", b"anything")),
            (False, "an exchange that no rule names", QUEUE, FROM, Publication(b"other", b"key")),
            (False, "a queue of a carrier with an alternate", alternated(Delivery.CARRIER), FROM, TO),
        ]
    ],
)
def test_only_addresses_written_by_deliveries_are_restored(
    of: VhostState, first: Publication, new: Publication, restores: bool
) -> None:
    assert can_produce(of, first, new) is restores


def translating(queues: int, exchanges: int = 0) -> VhostState:
    """A virtual host with one exchange that has this many destinations; the address table redirects some of them."""
    vhost = ruled(
        *(to_queue(f"q.{number}") for number in range(queues)),
        *(to_exchange(f"e.{number}") for number in range(exchanges)),
    )
    rules = [AddressRule(b"q.*", b"/exchange/of.$1/key"), AddressRule(b"/exchange/e.7/*", b"/exchange/seven/$1")]
    vhost.set_addresses(AddressBook(AddressTable(rules)))
    return vhost


def test_an_address_of_a_redirected_destination_is_restored() -> None:
    of = translating(3, exchanges=9)
    assert can_produce(of, FROM, Publication(b"of.2", b"key"))
    assert can_produce(of, FROM, Publication(b"seven", b"key"))
    assert not can_produce(of, FROM, Publication(b"of.3", b"key"))
    assert not can_produce(of, FROM, Publication(b"of.2", b"other"))
    assert not can_produce(of, FROM, Publication(b"seven", b"other"))


def test_redirected_addresses_follow_the_bindings() -> None:
    of = translating(3)
    assert not can_produce(of, FROM, Publication(b"of.5", b"key"))
    fifth = to_queue("q.5")
    of.router.exchanges[b"xo"].bind(fifth)
    assert can_produce(of, FROM, Publication(b"of.5", b"key"))
    assert can_produce(of, FROM, Publication(b"of.2", b"key"))
    of.router.exchanges[b"xo"].unbind(fifth)
    assert not can_produce(of, FROM, Publication(b"of.5", b"key"))


@pytest.mark.parametrize("delivery", Delivery)
@pytest.mark.parametrize("route", ["x-addqre-ontrue", "x-msg-addq-ontrue", "x-msg-adde-ontrue"])
def test_a_dynamic_destination_redirected_to_an_exchange_is_restored(delivery: Delivery, route: str) -> None:
    made = exchange(to_queue("q", {route: "^team" if route == "x-addqre-ontrue" else ""}))
    of = state((made, owned(made, delivery)))
    rules = [AddressRule(b"team.%", b"/exchange/teams/$1"), AddressRule(b"/exchange/other/*", b"/exchange/teams/x.$1")]
    of.set_addresses(AddressBook(AddressTable(rules)))
    assert can_produce(of, FROM, Publication(b"teams", b"red"))
    assert not can_produce(of, FROM, Publication(b"elsewhere", b"red"))
    assert not can_produce(of, FROM, Publication(b"xo", b"red"))
    of.router.add(exchange(to_queue("q")))
    assert not can_produce(of, FROM, Publication(b"teams", b"red"))


def test_the_address_is_restored_if_a_regex_selected_the_redirected_queue() -> None:
    made = exchange(to_queue("q", {"x-addqre-ontrue": "^team"}))
    of = state((made, owned(made, Delivery.CARRIER, bound=[("queue", b"q")])))
    of.queues = QueueNames((b"q", b"team.red"), 1)
    of.set_addresses(AddressBook(AddressTable([AddressRule(b"team.%", b"/exchange/teams/$1")])))
    frames = split(Wire(of).open().produce(publish("key", to="xo")))
    publishes = [place for place, frame in enumerate(frames) if frame.name == "Basic.Publish"]
    [place] = [place for place in publishes if address_of(frames[place]) == ("teams", "red")]
    deliver = method(1, commands.Basic.Deliver("me", 1, False, "teams", "red"))
    delivered, header = restored_content(of, deliver, frames[place + 1].raw)
    assert address_of(split(delivered)[0]) == ("xo", "key")
    assert table_of(split(header)[0]) == table(type="report")


def cpu_seconds(of: VhostState) -> float:
    """Return the CPU time of deliveries whose header names an unknown address, each with a different key."""
    frames = [
        (
            split(method(1, commands.Basic.Deliver("me", 1, False, "of.none", "key")))[0].raw,
            content_header(1, 4, entry(Publication(b"xo", b"key.%d" % number), Publication(b"of.none", b"key"))),
        )
        for number in range(100)
    ]
    restored_content(of, *frames[0])
    begun = time.process_time()
    for pair in frames:
        assert restored_content(of, *pair) == pair
    return time.process_time() - begun


def test_the_cost_of_a_delivery_does_not_depend_on_the_number_of_destinations() -> None:
    few, many_destinations = translating(4, exchanges=8), translating(2000, exchanges=2000)
    # searching all destinations would take 200 times as long
    assert cpu_seconds(many_destinations) < 10 * min(cpu_seconds(few) for _ in range(3))


METHODS = [
    commands.Basic.Deliver("consumer", 7, True, "", "q"),
    commands.Basic.GetOk(7, True, "", "q", 3),
    commands.Basic.Return(312, "NO_ROUTE", "", "q"),
]


@pytest.mark.parametrize("command", METHODS, ids=lambda frame: frame.name)
def test_the_address_is_restored_and_the_rest_is_unchanged(command: base.Frame) -> None:
    own = encode_table(table(type="report"))
    frames = (method(9, command), content_header(9, 4, own + entry(FROM, TO), {"message_id": b"m1", "priority": 2}))
    before, after = (split(b"".join(pair))[0] for pair in (frames, restored_content(QUEUE, *frames)))
    assert address_of(after) == ("xo", "key")
    assert {**before.arguments, "exchange": "xo", "routing_key": "key"} == after.arguments
    assert restored_content(QUEUE, *frames)[1] == content_header(9, 4, own, {"message_id": b"m1", "priority": 2})
    assert after.channel == 9


def test_the_encoded_address_is_a_table_with_both_pairs() -> None:
    assert MARKED == marked(Value("F", PAIR))


def test_the_first_of_duplicate_headers_counts() -> None:
    header = content_header(1, 4, entry(FROM, TO) + entry(TO, FROM))
    deliver, _ = restored_content(QUEUE, method(1, METHODS[0]), header)
    assert address_of(split(deliver)[0]) == ("xo", "key")


def test_a_renamed_cc_is_restored() -> None:
    entries = encode_table(((CC_ASIDE, many("one", "two")),)) + entry(FROM, TO)
    _, header = restored_content(QUEUE, method(1, METHODS[0]), content_header(1, 0, entries))
    assert table_of(split(header)[0]) == ((b"CC", many("one", "two")),)


MARKED = content_header(1, 4, entry(FROM, TO))
PAIR = (
    (b"exchange", value("xo")),
    (b"routing-key", value("key")),
    (b"new-exchange", value("")),
    (b"new-routing-key", value("q")),
)


def nested(depth: int) -> Value:
    return Value("F", ((b"in", nested(depth - 1)),)) if depth else Value("F", ())


def marked(address: Value) -> bytes:
    """A content header in which `x-original-address` has this value."""
    return content_header(1, 4, encode_table(((b"x-original-address", address),)))


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(header, id=name)
        for name, header in {
            "no table": content_header(1, 4),
            "no header of ours": content_header(1, 4, encode_table(table(type="report"))),
            "our name as a value": content_header(1, 4, encode_table(table(type="x-original-address"))),
            "a similar header": content_header(1, 4, encode_table(((b"x-original-addres", Value("F", PAIR)),))),
            "dead-lettered since": content_header(1, 4, entry(FROM, Publication(b"", b"another"))),
            "not of this configuration": content_header(1, 4, entry(Publication(b"other", b"key"), TO)),
            "table behind the frame": MARKED[:21] + b"\0\0\x7f\0" + MARKED[25:],
            "malformed inside": content_header(1, 4, entry(FROM, TO)[:-1]),
            "deeper than we read": marked(nested(MAX_NESTING + 5)),
            "a string before the table": content_header(1, 4, marked(value("x"))[25:-1] + entry(FROM, TO)),
            "a string": marked(value("xo")),
            "an array": marked(many("xo", "key", "", "q")),
            "void": marked(VOID),
            "an empty table": marked(Value("F", ())),
            "a missing field": marked(Value("F", PAIR[:3])),
            "an additional field": marked(Value("F", (*PAIR, (b"host", value("elsewhere"))))),
            "a duplicate field": marked(Value("F", (*PAIR[:3], PAIR[0]))),
            "a number as key": marked(Value("F", (*PAIR[:3], (b"new-routing-key", value(1))))),
            "bytes as key": marked(Value("F", (*PAIR[:3], (b"new-routing-key", Value("x", b"q"))))),
        }.items()
    ],
)
def test_other_contents_are_unchanged(header: bytes) -> None:
    deliver = method(1, METHODS[0])
    assert restored_content(QUEUE, deliver, header) == (deliver, header)


def test_a_removed_rule_restores_nothing() -> None:
    deliver, header = method(1, METHODS[0]), content_header(1, 4, entry(FROM, TO))
    assert restored_content(replace(QUEUE, exchanges={}), deliver, header) == (deliver, header)


@pytest.mark.parametrize("original", [Publication(b"xo", b"k" * 256), Publication(b"e" * 256, b"key")])
def test_a_forged_name_that_is_too_long_for_a_delivery_is_not_restored(original: Publication) -> None:
    state = routed("q", delivery=Delivery.QUEUE)
    state.set_addresses(AddressBook(AddressTable([AddressRule(b"/exchange/%/*", b"/queue/q")])))
    deliver, header = method(1, METHODS[0]), content_header(1, 4, entry(original, TO))
    assert restored_content(state, deliver, header) == (deliver, header)
