from __future__ import annotations

import pytest

from tests.rules.loading import by_line, faults, load

RULES = """
queues: [spare]
exchanges:
  - name: e
    arguments: {max-payload-size: 10, min-payload-size-silent: 1}
    bindings:
      - {queue: a, arguments: {"x-?rk=": a}}
      - {exchange: outside, arguments: {"x-?rk=": x}}
      - {queue: r, arguments: {"x-?rk=": regex, "x-addqre-ontrue": ^s}}
  - {name: silent, arguments: {alternate-exchange: rest}}
  - {name: passing, delivery: queue, unmatched: pass, arguments: {min-payload-size-silent: 1, alternate-exchange: rest}}
  - {name: clock, bindings: [{queue: day, arguments: {x-?dture: " 08"}}]}
  - {name: pick, bindings: [{queue: p, arguments: {x-add1qre-ontrue: "^(spare|a)$"}}]}
tests:
"""


def failures(test: str) -> list[str]:
    return [str(failure) for failure in load(RULES + f"  - {test}\n").failures()]


@pytest.mark.parametrize(
    "test",
    [
        "{name: t, publish: {exchange: e, routing_key: a, body_size: 1}, expect: {queues: [a]}}",
        "{name: t, publish: {exchange: e, routing_key: a, body_size: 1}, expect: {queues: [a], outcome: routed}}",
        "{name: t, publish: {exchange: e, routing_key: x, body_size: 1}, expect: {exchanges: [outside]}}",
        "{name: t, publish: {exchange: e, routing_key: z, body_size: 1}, expect: {}}",
        "{name: t, publish: {exchange: e, routing_key: z, body_size: 1}, expect: {outcome: unrouted}}",
        "{name: t, publish: {exchange: e, routing_key: a}, expect: {outcome: filtered}}",
        "{name: t, publish: {exchange: e, body_size: 11}, expect: {outcome: rejected}}",
        "{name: t, publish: {exchange: e, body_size: 11}, expect: {error: Max size payload hit.}}",
        "{name: t, publish: {exchange: silent}, expect: {exchanges: [rest], outcome: unrouted}}",
        "{name: t, publish: {exchange: passing, body_size: 1}, expect: {outcome: passed}}",
        "{name: t, publish: {exchange: passing}, expect: {outcome: filtered, exchanges: [rest]}}",
        "{name: t, publish: {exchange: e, routing_key: regex, body_size: 1}, expect: {queues: [r, spare]}}",
        "{name: t, queues: [s2, t], publish: {exchange: e, routing_key: regex, body_size: 1}, "
        "expect: {queues: [r, spare, s2]}}",
        "{name: t, publish: {exchange: clock}, at: 2026-11-21T08:00:00Z, expect: {queues: [day]}}",
        "{name: t, publish: {exchange: clock}, at: 2026-11-21T08:00:00+02:00, expect: {}}",
        "{name: t, publish: {exchange: pick}, expect: {queues: [a, p]}}",
    ],
)
def test_a_test_with_the_actual_result_passes(test: str) -> None:
    assert failures(test) == []


@pytest.mark.parametrize(
    ("test", "difference"),
    [
        ("publish: {exchange: e, routing_key: a, body_size: 1}, expect: {}", "queues: got a, which was not expected"),
        (
            "publish: {exchange: e, routing_key: x, body_size: 1}, expect: {queues: [b, a]}",
            "queues: expected a, b as well; exchanges: got outside, which was not expected",
        ),
        (
            "publish: {exchange: e, routing_key: a, body_size: 1}, "
            "expect: {queues: [a], remotes: [r], outcome: passed}",
            "remotes: expected r as well; outcome: expected passed, got routed",
        ),
        (
            "publish: {exchange: e, body_size: 11}, expect: {}",
            'error: the message is rejected with "Max size payload hit."',
        ),
        (
            "publish: {exchange: e, body_size: 11}, expect: {error: Min size payload hit.}",
            'error: expected "Min size payload hit.", got "Max size payload hit."',
        ),
        (
            "publish: {exchange: e, body_size: 1}, expect: {error: Max size payload hit.}",
            'error: expected "Max size payload hit.", got no error',
        ),
        ("publish: {exchange: elsewhere}, expect: {}", "publishes to elsewhere, which no rules file names"),
        ("publish: {exchange: clock}, expect: {}", "the rules depend on the clock, so the test needs the key `at`"),
    ],
)
def test_a_test_with_another_result_fails_with_every_difference(test: str, difference: str) -> None:
    assert failures(f"{{name: the name, {test}}}") == [f"a.yaml:15:5: tests[0]: the name: {difference}"]


def test_every_failed_test_of_every_file_is_reported() -> None:
    test = "{name: t, publish: {exchange: e}, expect: {queues: [b]}}"
    rules = "exchanges: [{name: e, bindings: [{queue: a}]}]\n"
    failures = load(rules + f"tests: [{test}]\n", f"tests: [{test}, {test}]\n").failures()
    assert [str(failure).split(": t:")[0] for failure in failures] == [
        "a.yaml:2:9: tests[0]",
        "b.yaml:1:9: tests[0]",
        "b.yaml:1:67: tests[1]",
    ]


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("publish: {}, expect: {}", "publish.exchange: missing, expected the name of the exchange"),
        ("publish: 5, expect: {}", "publish: got a number, expected a mapping"),
        (
            "publish: {exchange: e, body: x}, expect: {}",
            "publish.body: unknown key; did you mean body_size?",
        ),
        (
            "publish: {exchange: e}, at: noon, expect: {}",
            'at: got the string "noon", expected a time with its zone such as 2026-11-21T08:00:00Z',
        ),
        (
            "publish: {exchange: e}, at: 1.5, expect: {}",
            "at: got the number 1.5, expected a time with its zone such as 2026-11-21T08:00:00Z: put it in quotes",
        ),
        ("publish: {exchange: e}, expect: {queues: a}", 'expect.queues: got the string "a", expected a list'),
        (
            "publish: {exchange: e}, expect: {queues: [5]}",
            "expect.queues[0]: got the number 5, expected a name: put it in quotes",
        ),
        (
            "publish: {exchange: e}, expect: {outcome: lost}",
            'expect.outcome: got the string "lost", expected one of routed, unrouted, filtered, rejected, translated, '
            "passed",
        ),
        ("publish: {exchange: e}, expect: {queue: [a]}", "expect.queue: unknown key; did you mean queues?"),
    ],
)
def test_an_invalid_test_is_an_error(test: str, message: str) -> None:
    assert by_line(faults(f"tests: [{{name: t, {test}}}]")) == [f"a.yaml:1: tests[0].{message}"]


def test_a_test_needs_a_name_a_message_and_an_expectation() -> None:
    assert faults("tests: [{}]") == [
        "a.yaml:1:9: tests[0].name: missing, expected a sentence that states what must hold",
        "a.yaml:1:9: tests[0].publish: missing, expected the message to publish",
        "a.yaml:1:9: tests[0].expect: missing, expected queues, exchanges, remotes, outcome or error",
    ]
