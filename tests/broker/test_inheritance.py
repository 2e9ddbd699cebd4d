from __future__ import annotations

from proxy.broker.declared import store
from proxy.relay.vhost import Delivery, OwnedExchange, StoredBinding, VhostState
from proxy.routing.exchange import Exchange
from proxy.routing.router import Router
from tests.broker.clients import declare_here, stored, text
from tests.broker.observed import owned, queues, router, state


def targets(rules: Router, exchange: bytes) -> list[bytes]:
    return sorted(binding.destination for binding in rules.exchanges[exchange].bindings)


def fresh(*names: str) -> tuple[dict[bytes, OwnedExchange], Router]:
    return {name.encode(): owned(name) for name in names}, router({name: queues("file") for name in names})


def inherit(known: VhostState, exchanges: dict[bytes, OwnedExchange], rules: Router) -> list[tuple[StoredBinding, str]]:
    return list(filter(None, store.inherit(known, exchanges, rules)))


def test_exchanges_of_clients_are_the_same_under_new_rules() -> None:
    known = state("/", {"documents": queues("a")})
    mine = declare_here(known, "ox", stored("ox", "q"))
    exchanges, rules = fresh("documents")
    assert inherit(known, exchanges, rules) == []
    assert exchanges[b"ox"] is mine
    assert rules.exchanges[b"ox"] is known.router.exchanges[b"ox"]


def test_bindings_of_clients_are_kept_if_the_file_still_has_the_exchange() -> None:
    known = state("/", {"documents": queues("a"), "dropped": queues("a")})
    binding = stored("documents", "q")
    known.add_binding(binding)
    known.add_binding(stored("dropped", "q"))
    exchanges, rules = fresh("documents")
    inherit(known, exchanges, rules)
    assert targets(rules, b"documents") == [b"file", b"q"]
    assert list(exchanges[b"documents"].clients.values()) == [binding]
    assert set(exchanges) == {b"documents"}


def test_a_second_inheritance_applies_the_changes_since_the_first() -> None:
    known = state("/", {"documents": queues("a")})
    gone, moved, stays = (stored("documents", name, (), 1) for name in ("gone", "moved", "stays"))
    declare_here(known, "vanishing")
    for binding in (gone, moved, stays):
        known.add_binding(binding)
    exchanges, rules = fresh("documents")
    inherit(known, exchanges, rules)
    known.remove_exchange(b"vanishing")
    declare_here(known, "late")
    for binding in (gone, moved):
        known.remove_binding(binding)
    known.add_binding(stored("documents", "moved", (), 9))
    known.add_binding(stored("documents", "new", (), 10))
    inherit(known, exchanges, rules)
    assert set(exchanges) == set(rules.exchanges) == {b"documents", b"late"}
    assert targets(rules, b"documents") == [b"file", b"moved", b"new", b"stays"]
    assert exchanges[b"documents"].clients == known.exchanges[b"documents"].clients
    sequences = {binding.destination: binding.sequence for binding in rules.exchanges[b"documents"].bindings}
    assert sequences[b"moved"] == 9


def test_a_file_that_takes_over_an_exchange_keeps_its_clients_bindings() -> None:
    known = VhostState("/", Router(()))
    declare_here(known, "ox", stored("ox", "q"), delivery=Delivery.QUEUE)
    exchanges, rules = fresh("ox")
    inherit(known, exchanges, rules)
    assert exchanges[b"ox"].declared is None
    assert targets(rules, b"ox") == [b"file", b"q"]


def test_a_binding_that_the_file_also_has_belongs_to_the_file() -> None:
    known = state("/", {"documents": queues("a")})
    known.add_binding(stored("documents", "file"))
    exchanges, rules = fresh("documents")
    assert inherit(known, exchanges, rules) == []
    assert exchanges[b"documents"].clients == {}
    assert targets(rules, b"documents") == [b"file"]


def test_a_binding_that_new_rules_make_invalid_is_named() -> None:
    known = VhostState("/", Router([Exchange(b"x", "headers")]), {b"x": owned("x")})
    odd = stored("x", "q", ((b"x-nonsense", text("")),))
    known.add_binding(odd)
    exchanges, rules = {b"x": owned("x")}, Router([Exchange(b"x", "x-open")])
    [(refused, why)] = inherit(known, exchanges, rules)
    assert refused == known.exchanges[b"x"].clients[odd.binding.identity]
    assert "Unknown or invalid argument's key" in why
    assert exchanges[b"x"].clients == {}
    assert targets(rules, b"x") == []
