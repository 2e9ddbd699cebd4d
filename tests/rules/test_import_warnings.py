from __future__ import annotations

import json

import pytest

from proxy.rules.import_definitions import import_definitions


def exchange(name: str, **more: object) -> dict[str, object]:
    return {"name": name, "vhost": "/", "type": "topic", "arguments": {}, **more}


def warnings(*exchanges: dict[str, object], policies: list[dict[str, object]] | None = None) -> list[str]:
    definitions = {"exchanges": exchanges, "bindings": [], "policies": policies or []}
    return [str(warning) for warning in import_definitions(json.dumps(definitions).encode(), "d.json", "/")[1]]


POLICY = {"vhost": "/", "name": "ae", "pattern": "^orders", "apply-to": "exchanges", "priority": 0}
POLICY |= {"definition": {"alternate-exchange": "unrouted"}}


def test_an_alternate_exchange_of_a_policy_is_not_lost_silently() -> None:
    (warning,) = warnings(exchange("orders.new"), exchange("mail"), policies=[POLICY])
    assert warning == (
        "d.json: exchange orders.new: warning: the policy ae sets an alternate exchange, which is not imported: "
        "add alternate-exchange to the arguments"
    )


@pytest.mark.parametrize(
    ("name", "more", "policy"),
    [
        ("orders", {"arguments": {"alternate-exchange": "own"}}, {}),
        ("orders", {}, {"vhost": "other"}),
        ("orders", {}, {"apply-to": "queues"}),
        ("orders", {}, {"definition": {"max-length": 5}}),
        ("orders", {}, {"pattern": "("}),
    ],
)
def test_other_policies_have_no_warning(name: str, more: dict[str, object], policy: dict[str, object]) -> None:
    assert warnings(exchange(name, **more), policies=[{**POLICY, **policy}]) == []


def test_an_internal_exchange_has_a_warning() -> None:
    (warning,) = warnings(exchange("inner", internal=True), exchange("outer", internal=False))
    assert "exchange inner: warning: producers can publish to it through the sidecar" in warning
