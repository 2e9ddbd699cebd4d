"""Explains how one message is routed, as text and as JSON.

An explanation contains the trace from the package `routing`, and each lookup in the address table with its rule,
captures, result and target, but without passwords. No broker is queried. Explanations therefore do not show whether a
chosen queue exists, and regex routes choose among the queues named by the rules and the request. With the state of a
running sidecar, they choose among the existing queues and those named by the request.

Source: the messenger-addressing specification, section 3.4, which requires a dry run that prints this data.
"""

from __future__ import annotations

import base64
import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, TypeAlias

from oxproxy.addressing.address import password_span, without_password
from oxproxy.addressing.targets import AddressBook, FailedTranslation, Publication, address_of, publication_at
from oxproxy.errors import ConfigError, ConfigErrors, ProtocolError
from oxproxy.relay.vhost import VhostState
from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.bindings.patterns import DEFAULT_BUDGET
from oxproxy.routing.decision import BindingStep, Decision, ExchangeStep, FilterStep, OperatorStep, Outcome, Trace
from oxproxy.rules import wire
from oxproxy.rules.evaluation import RoutingResult, decide, evaluate, mentioned_queues
from oxproxy.rules.file_tests import RulesTest, Time
from oxproxy.rules.loader import LoadedRules
from oxproxy.rules.message import (
    DescribedMessage,
    MessageModel,
    described_message,
    destination_text,
    framed_message,
    json_value,
    quoted,
)
from oxproxy.rules.ruleset import VhostRules
from oxproxy.rules.spelling.lines import shown_line
from oxproxy.values import Value, counted, text
from oxproxy.yamlfile.document import Faults, Node, Place, escaped, read_document
from oxproxy.yamlfile.models import LISTED, NOTHING, Expected, FileModel, Keys, read_model

_HIDDEN = "***"
_REJECTED = Outcome.REJECTED.value


@dataclass(frozen=True, slots=True)
class Lookup:
    """One lookup in the address table, without passwords.

    Args:
        rule: number of the rule that applied, counted from 0; None if no rule applied.
        captures: the strings matched by the wildcards in the rule's pattern.
        target: target of the resulting address, or the reason why there is none.
    """

    address: str
    rule: int | None = None
    name: str | None = None
    pattern: str | None = None
    captures: tuple[str, ...] = ()
    result: str | None = None
    target: str | None = None


def look_up(book: AddressBook, address: bytes) -> Lookup:
    """Look up an address in the same way as for a publish."""
    shown = text(without_password(address))
    translation = book.table.translate(address)
    if translation is None:
        return Lookup(shown)
    rule = book.table.rules[translation.rule]
    original = publication_at(address) or Publication(b"", address)
    span = password_span(address)
    secret = address[slice(*span)] if span else b""

    def hidden(shown: bytes) -> str:
        return text(shown.replace(secret, _HIDDEN.encode()) if secret else shown)

    return Lookup(
        shown,
        translation.rule,
        rule.name or None,
        text(rule.shown_pattern),
        tuple(map(hidden, translation.captures)),
        hidden(translation.shown),
        hidden(_target(book, translation.rule, translation.address, original).encode()),
    )


def matching_lookups(book: AddressBook, publications: Iterable[Publication]) -> Iterator[Lookup]:
    """Look up the addresses of publishes, and yield the lookups in which a rule applies."""
    for publication in publications:
        lookup = look_up(book, address_of(publication))
        if lookup.rule is not None:
            yield lookup


def _target(book: AddressBook, rule: int, result: bytes | None, original: Publication) -> str:
    target = book.resolve(rule, result, original)
    if isinstance(target, FailedTranslation):
        return f"none: {target.reason}"
    exchange, key = target.publication
    publication = f"exchange {text(exchange)}, key {text(key)}" if exchange else f"queue {text(key)}"
    if target.remote is None:
        return f"{publication} here"
    remote = target.remote
    link = "" if remote.tls is None else ", TLS" if remote.tls else ", plain"
    user = "" if remote.user is None else f", user {text(remote.user)}"
    return f"{publication} at {remote.label}{link}{user}"


def as_lines(lookup: Lookup) -> Iterator[str]:
    """Format a lookup for a terminal."""
    yield f'address   "{lookup.address}"'
    if lookup.rule is None:
        yield "          no rule of the address table matches"
        return
    name = f" ({lookup.name})" if lookup.name else ""
    yield f'rule      {lookup.rule}{name}: "{lookup.pattern}"'
    for number, capture in enumerate(lookup.captures, 1):
        yield f'          ${number} = "{capture}"'
    yield f'result    "{lookup.result}"'
    yield f"target    {lookup.target}"


#: State of the virtual hosts if no sidecar is running.
NOTHING_LIVE: Mapping[str, VhostState] = MappingProxyType({})
#: Any escape in a JSON string. A surrogate pair counts as one escape.
_ESCAPE = re.compile(rb"\\(?:u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})|.)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """One message to explain.

    Args:
        vhost: the virtual host; None to determine it from the exchange.
        queues: queues that exist in addition to those named by the rules or listed by the running sidecar.
        at: time of the publish in seconds since the epoch; None for now.
    """

    message: DescribedMessage
    vhost: str | None = None
    queues: frozenset[bytes] = frozenset()
    source: str = "message"
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The result for a message, and the reasons for it.

    Args:
        matched: exchange and id of the bindings that were true.
        lookups: lookups in the address table in which a rule applied.
        note: why nothing was evaluated; None if rules or the address table apply to the message.
    """

    vhost: str
    version: str
    at: float
    message: DescribedMessage
    result: RoutingResult
    matched: tuple[tuple[bytes, str], ...]
    walk: tuple[ExchangeStep, ...]
    lookups: tuple[Lookup, ...]
    wire: wire.Wire
    note: str | None = None


_FRAMES = "base64 of a Basic.Publish frame and its content header frame"
_Vhost: TypeAlias = Annotated[str, Expected("the name of a virtual host")]


class AddressRequest(FileModel):
    """An address to look up. If `vhost` is None, the only virtual host with an address table is used."""

    address: Annotated[str, Expected("an address")]
    vhost: _Vhost = NOTHING


class _FramesModel(FileModel):
    """A message to explain, as encoded frames.

    Rules files can't describe every message: decimals, unsigned 64-bit integers, repeated names, and names or strings
    that are not UTF-8 have no form in YAML.
    """

    frames: Annotated[str, Expected(_FRAMES)]
    vhost: _Vhost = NOTHING
    at: Time = NOTHING


class _RequestModel(MessageModel):
    """A message to explain, with its virtual host, the existing queues and the time of the publish."""

    vhost: _Vhost = NOTHING
    queues: Annotated[tuple[Annotated[str, Expected("the name of a queue")], ...], LISTED] = ()
    at: Time = NOTHING


def read_question(data: bytes, source: str) -> ExplainRequest | AddressRequest:
    """Read a message, its frames, or an address, as YAML or JSON.

    Raises:
        ConfigErrors: the text is invalid; all errors are reported.
    """
    faults = Faults()
    root = read_document(_json_as_yaml(data) if data.lstrip()[:1] == b"{" else data, source, faults)
    if root is None:
        if not faults.errors:
            expected = "expected a message: exchange, routing_key, headers, ..."
            faults.error(Place(source, 0), "", f"the file is empty, {expected}")
        raise ConfigErrors(faults.errors)
    keys = Keys(root, faults)
    if "address" in keys:
        asked = read_model(AddressRequest, keys)
        if asked is None or faults.errors:
            raise ConfigErrors(faults.errors)
        return asked
    if "frames" in keys:
        return _framed_question(keys, source, faults)
    return read_request(root, source, faults)


def read_request(root: Node, source: str, faults: Faults) -> ExplainRequest:
    """Read a message from the root of a document.

    Raises:
        ConfigErrors: the message is invalid; all errors are reported.
    """
    keys = Keys(root, faults)
    model = read_model(_RequestModel, keys)
    message = None if model is None else described_message(model, keys)
    if model is None or message is None or faults.errors:
        raise ConfigErrors(faults.errors)
    return ExplainRequest(message, model.vhost, frozenset(name.encode() for name in model.queues), source, model.at)


def _framed_question(keys: Keys, source: str, faults: Faults) -> ExplainRequest:
    model = read_model(_FramesModel, keys)
    if model is None or faults.errors:
        raise ConfigErrors(faults.errors)
    try:
        message = framed_message(base64.b64decode(model.frames, validate=True))
    except (ValueError, ProtocolError) as error:
        wrong = ConfigError(source, 0, "frames", f"can't be read: {error}; expected {_FRAMES}")
        raise ConfigErrors([wrong]) from error
    return ExplainRequest(message, model.vhost, source=source, at=model.at)


def _json_as_yaml(data: bytes) -> bytes:
    """Escape the characters in JSON that YAML forbids or treats as line breaks."""
    data = _ESCAPE.sub(_joined, data)
    try:
        text = data.decode()
        json.loads(text)
    except (ValueError, RecursionError):  # YAML
        return data
    return escaped(text, keep="\n\r\t").encode()


def _joined(escape: re.Match[bytes]) -> bytes:
    """Replace a surrogate pair, which JSON permits, with the single character that YAML requires."""
    high, low = escape.group(1), escape.group(2)
    if high is None:
        return escape.group()
    return b"\\U%08x" % (0x10000 + ((int(high, 16) & 0x3FF) << 10) + (int(low, 16) & 0x3FF))


def explain(
    loaded: LoadedRules, request: ExplainRequest, at: float, live: Mapping[str, VhostState] = NOTHING_LIVE
) -> Explanation:
    """Explain one message.

    Args:
        at: time of the publish, in seconds since the epoch.
        live: state of the virtual hosts of a running sidecar.

    Raises:
        ConfigErrors: several virtual hosts have the exchange, and the request does not name a virtual host.
    """
    name, message, trace = _vhost_of(loaded, request), request.message, Trace()
    vhost = loaded.rules.vhosts.get(name, VhostRules(name))
    # A copy with empty caches, since publishes use the original's caches.
    book = loaded.books[name].with_empty_cache() if name in loaded.books else None

    def decision_of(received: DescribedMessage) -> Decision:
        router = loaded.routers[name]
        if name in live:
            queues, budget = frozenset(live[name].queues.names), live[name].regex_budget
        else:
            queues, budget = mentioned_queues(vhost, router), DEFAULT_BUDGET
        return decide(router, received, at, queues | request.queues, trace, budget)

    evaluation = evaluate(message, vhost, book, decision_of)
    decision, redirected = evaluation.decision, evaluation.message is not message
    if evaluation.result.outcome == _REJECTED or (decision is None and evaluation.result.failed):
        leaves = wire.Wire()
    elif decision is None:
        leaves = wire.translated(message, None if evaluation.untouched else book)
    else:
        state = wire.publish_state(vhost, loaded.routers[name], book, live.get(name))
        leaves = wire.evaluated(state, evaluation.message, decision, message if redirected else None, name in live)
    key = message.facts.routing_key
    if decision is None or redirected:
        wanted = [Publication(message.exchange, key)]
    else:
        wanted = [Publication(b"", queue) for queue in decision.queues]
        wanted += [Publication(exchange, key) for exchange in decision.exchanges]
    lookups = () if book is None or evaluation.untouched else tuple(matching_lookups(book, wanted))
    return Explanation(
        name,
        loaded.rules.version,
        at,
        message,
        evaluation.result,
        () if decision is None else decision.matched,
        tuple(trace.exchanges),
        lookups,
        leaves,
        _note(loaded, vhost, message.exchange) if evaluation.untouched else None,
    )


def explain_test(loaded: LoadedRules, test: RulesTest) -> Explanation:
    """Explain the message of a test in the rules files. A test without a time is evaluated at the epoch."""
    return explain(loaded, ExplainRequest(test.message, test.vhost, test.queues), test.at or 0.0)


def _note(loaded: LoadedRules, vhost: VhostRules, exchange: bytes) -> str:
    """Explain why a message is not evaluated, and suggest the exchange or the virtual host that may be meant."""
    passed = "the message is passed to the broker unchanged"
    if not exchange:
        return f"messages to the default exchange are evaluated only by the address table: {passed}"
    homes = sorted(
        other.vhost for other in loaded.rules.vhosts.values() if any(rule.name == exchange for rule in other.exchanges)
    )
    near = difflib.get_close_matches(text(exchange), [text(rule.name) for rule in vhost.exchanges], 1)
    if homes:
        hint = f"; virtual host {homes[0]} has an exchange with this name"
    else:
        hint = f"; did you mean {near[0]}?" if near else ""
    return f"no rules file names {text(exchange)}: {passed}{hint}"


def _vhost_of(loaded: LoadedRules, request: ExplainRequest) -> str:
    """Return the virtual host that has the message's exchange.

    If there is none, return the first of these that exists: the requested virtual host, the virtual host of the only
    address table, the only virtual host in the rules, ``/``.
    """
    exchange = request.message.exchange
    homes = [
        vhost.vhost
        for vhost in loaded.rules.vhosts.values()
        if request.vhost in (None, vhost.vhost) and any(rule.name == exchange for rule in vhost.exchanges)
    ]
    if len(homes) > 1:
        names = ", ".join(sorted(homes))
        message = f"missing, expected one of {names}: each of these virtual hosts has an exchange {text(exchange)}"
        raise ConfigErrors([ConfigError(request.source, 0, "vhost", message)])
    if homes:
        return homes[0]
    if request.vhost is not None:
        return request.vhost
    return next((next(iter(names)) for names in (loaded.books, loaded.rules.vhosts) if len(names) == 1), "/")


def explain_address(loaded: LoadedRules, request: AddressRequest) -> Lookup:
    """Look up an address in the address table of one virtual host.

    Raises:
        ConfigErrors: no virtual host has a table, or several virtual hosts have tables.
    """
    vhost = request.vhost
    names = [name for name in sorted(loaded.books) if vhost in (None, name)]
    if len(names) != 1:
        if names:
            message = f"missing, expected one of {', '.join(names)}"
        else:
            where = "" if vhost is None else f" in virtual host {vhost}"
            message = f"no address table{where}; define `addresses` in a rules file"
        raise ConfigErrors([ConfigError("address", 0, "vhost", message)])
    return look_up(loaded.books[names[0]], request.address.encode())


def as_json(explanation: Explanation | Lookup) -> dict[str, object]:
    if isinstance(explanation, Lookup):
        return asdict(explanation)
    return {
        "vhost": explanation.vhost,
        "exchange": text(explanation.message.exchange),
        "rules": explanation.version,
        "at": _time(explanation.at),
        **explanation.result.as_json(),
        "matched": [{"exchange": text(exchange), "binding": ident} for exchange, ident in explanation.matched],
        "addresses": list(map(asdict, explanation.lookups)),
        "walk": [_exchange_json(step) for step in explanation.walk],
        "wire": wire.as_data(explanation.wire),
        "missing": {destination_text(destination): reason for destination, reason in explanation.wire.missing},
        "note": explanation.note,
    }


def _exchange_json(step: ExchangeStep) -> dict[str, object]:
    return {
        "exchange": text(step.name),
        "type": step.type,
        "filters": [
            {"filter": text(check.name), "breach": check.breach, "silent": check.silent, "observed": check.observed}
            for check in step.filters
        ],
        "contract": [
            {
                "condition": check.written,
                "expected": check.expected,
                "verdict": check.operator.verdict.name.lower(),
                "seen": json_value(check.operator.seen),
                "violated": check.violated,
                "observed": check.observed,
            }
            for check in step.contract
        ],
        "bindings": [_binding_json(visit) for visit in step.visits],
        "alternate": None if step.alternate is None else text(step.alternate),
    }


def _binding_json(step: BindingStep) -> dict[str, object]:
    return {
        "binding": step.id,
        "destination": _destination(step.binding),
        "order": step.order,
        "match": step.match_type,
        "result": step.true,
        "operators": [_operator_json(operator, *_written(step, operator)) for operator in step.operators],
        "added": [destination_text(destination) for destination in step.added],
        "removed": [destination_text(destination) for destination in step.removed],
        "goto": step.jump,
        "stop": step.stopped,
        "error": text(step.error) if step.error else None,
        "regex_budget_spent": list(step.spent_budgets),
    }


def _operator_json(step: OperatorStep, key: str, expected: Value) -> dict[str, object]:
    return {
        "operator": key,
        "header": None if step.header is None else text(step.header),
        "expected": json_value(expected),
        "verdict": step.verdict.name.lower(),
        "seen": json_value(step.seen),
    }


def _written(step: BindingStep, operator: OperatorStep) -> tuple[str, Value]:
    """Return the key and the value of an operator in the spelling in which the binding is written."""
    if step.binding.readable:
        key, expected = shown_line(step.binding.arguments, operator.key, operator.expected)
        if key:
            return key, expected
    return text(operator.key), operator.expected


def as_text(explanation: Explanation | Lookup) -> str:
    """Format an explanation as lines of text. Line breaks in names and values are escaped."""
    lines = as_lines(explanation) if isinstance(explanation, Lookup) else _lines(explanation)
    return "\n".join(line.replace("\n", "\\n") for line in lines)


def _lines(explanation: Explanation) -> Iterator[str]:
    message, facts = explanation.message, explanation.message.facts
    yield (
        f"message   to {_exchange_name(message.exchange)} in vhost {explanation.vhost}, "
        f"key {quoted(facts.routing_key)}, headers {len(facts.headers)}, body {counted(facts.body_size_bytes, 'byte')}"
    )
    yield f"rules     {explanation.version}, at {_time(explanation.at)}"
    for name, value in facts.headers:
        yield f"header    {text(name)}: {quoted(value)}"
    for step in explanation.walk:
        yield from _exchange_lines(step)
    for lookup in explanation.lookups:
        yield ""
        yield from as_lines(lookup)
    yield ""
    yield from _result_lines(explanation)
    yield from wire.as_lines(explanation.wire)


def _exchange_name(exchange: bytes) -> str:
    return f"exchange {text(exchange)}" if exchange else "the default exchange"


def _result_lines(explanation: Explanation) -> Iterator[str]:
    result = explanation.result
    closed = f': the channel is closed with {result.code} "{result.error}"' if result.error else ""
    yield f"outcome   {result.outcome}{closed}"
    if explanation.note is not None:
        yield f"          {explanation.note}"
        return
    for key in ("queues", "exchanges", "remotes", "violates"):
        names: Sequence[str] = getattr(result, key)
        if names:
            yield f"{key:10}" + ", ".join(names)
    for reason in result.failed:
        yield f"failed    a translation failed: {reason}"


def _exchange_lines(step: ExchangeStep) -> Iterator[str]:
    yield ""
    yield f"exchange {text(step.name)} ({step.type})"
    for check in step.filters:
        yield f"  filter {text(check.name)}: {_filter_words(check, step.alternate)}"
    for condition in step.contract:
        seen = "" if condition.operator.seen is None else f", got {quoted(condition.operator.seen)}"
        result = "" if not condition.violated else ", observed" if condition.observed else ". The channel is closed"
        verdict = condition.operator.verdict.name.lower()
        yield f"  require {verdict:9} {condition.written}: {condition.expected}{seen}{result}"
    for visit in step.visits:
        yield from _binding_lines(visit)
    checks = (*(check.breach is not None for check in step.filters), *(check.violated for check in step.contract))
    if any(checks) and not step.visits:
        return
    if not step.visits:
        yield "  no binding"
    if step.alternate is not None:
        yield f"  no destination: continues at the alternate exchange {text(step.alternate)}"


def _filter_words(step: FilterStep, alternate: bytes | None) -> str:
    if step.breach is None:
        return "passed"
    if step.observed:
        return f"{step.breach} Only observed"
    if not step.silent:
        return f"{step.breach} The channel is closed"
    if alternate is None:
        return f"{step.breach} The message is dropped"
    return f"{step.breach} The message continues at the alternate exchange {text(alternate)}"


def _binding_lines(step: BindingStep) -> Iterator[str]:
    verdict = "true" if step.true else "false"
    yield f"  {step.order} {step.id} -> {_destination(step.binding)}: {verdict} ({step.match_type})"
    for operator in step.operators:
        yield f"      {_operator_words(operator, *_written(step, operator))}"
    for owner in step.spent_budgets:
        whose = {"rules": "rules files", "client": "its client", "message": "the message's headers"}[owner]
        skipped = "conditions are not evaluated, and regex routes are ignored"
        yield f"      the regex budget for {whose} is exhausted; {skipped}"
    if step.added:
        yield "      adds " + ", ".join(map(destination_text, step.added))
    if step.removed:
        yield "      removes " + ", ".join(map(destination_text, step.removed))
    if step.jump is not None:
        yield f"      continues at order {step.jump}"
    if step.stopped:
        yield "      stops here"
    if step.error:
        yield f"      {text(step.error)}"


def _operator_words(step: OperatorStep, key: str, expected: Value) -> str:
    seen = "" if step.seen is None else f", got {quoted(step.seen)}"
    return f"{step.verdict.name.lower():9} {key}: {quoted(expected)}{seen}"


def _destination(binding: Binding) -> str:
    return destination_text((binding.destination_type, binding.destination))


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
