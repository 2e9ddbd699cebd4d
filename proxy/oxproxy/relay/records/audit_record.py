r"""Renders audit records: one JSON object per line, ASCII only.

A line never contains a message body, and contains only the values of headers listed in `audit.headers`. The parts that
are constant for a channel or a decision are rendered once (`PublishLog.origin`, `PublishLog.decided`). ``ts`` is first,
so that the writer thread finds a line's hour at a fixed offset. docs/reference/audit.md describes the fields.

Bytes are shown as UTF-8. Invalid bytes appear as ``\xNN`` and can't be distinguished from the same four characters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from json.encoder import encode_basestring_ascii
from typing import Final, TypeAlias

from oxproxy.relay.records.facts_record import VERSION, FactsRecord, FactsTable
from oxproxy.relay.records.privacy import Privacy
from oxproxy.values import text

#: Position of the hour in a line: ``{"ts":"2026-11-21T07``.
HOUR: Final = slice(7, 20)
#: Position of the beginning of a line, up to the end of its time.
TIME: Final = slice(0, 34)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def quoted(value: bytes) -> str:
    return encode_basestring_ascii(text(value))


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


class TimestampText:
    """Renders times as RFC 3339 in UTC with microseconds, and caches the text for the last second."""

    __slots__ = ("_second", "_text")

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def __call__(self, now: float) -> str:
        second, micros = divmod(int(now * 1_000_000), 1_000_000)
        if second != self._second:
            moment = _EPOCH + timedelta(seconds=second)
            self._second, self._text = second, moment.strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._text}.{micros:06d}Z"


#: What the line for a publish contains:
#: - the beginning of the line: opening and origin
#: - number of the publish on its channel
#: - routing key
#: - message id; None if there is none
#: - size of the body in bytes
#: - the decision's fields, from `PublishLog.decided`
#: - the allow-listed headers, from `PublishLog.headers`
#: - duration of the decision in microseconds; negative if the decision was cached
#: - the record of the message's facts; None if facts are not recorded
PublishRecord: TypeAlias = tuple[str, int, bytes, bytes | None, int, str, str, float, FactsRecord | None]


class PublishLog:
    """The audit log for the publishes through one sidecar.

    Args:
        instance: name of this sidecar, for the field ``proxy``.
        privacy: which data may appear in lines.
        rules: returns the version of the active rules.
        append: accepts lines, such as `AuditWriter.append`.
        wall: returns seconds since 1970.
        ruled_only: whether publishes to exchanges that are not evaluated are omitted.
        facts: the facts that have been recorded; None if facts are not recorded.
    """

    def __init__(
        self,
        instance: str,
        privacy: Privacy,
        rules: Callable[[], str],
        append: Callable[[bytes, int], None],
        wall: Callable[[], float],
        *,
        ruled_only: bool,
        facts: FactsTable | None = None,
    ) -> None:
        self.ruled_only = ruled_only
        self.facts: Final = facts
        #: headers whose values are permitted in records
        self.names = privacy.headers
        self._instance = instance
        self._privacy = privacy
        self._hashes_publishes = bool(privacy.hashed & {"rk", "message_id"})
        self._rules = rules
        self._append = append
        self._wall = wall
        self._text = TimestampText()

    def opening(self) -> str:
        """Return the beginning of every line for the publishes in the current read: the time and the rules version."""
        return f'{{"ts":"{self._text(self._wall())}","rules":{encode_basestring_ascii(self._rules())}'

    def origin(self, conn: str, user: str, vhost: str, ch: int) -> str:
        """Return a channel's fields, which follow the opening of a line and precede the number of the publish."""
        fields = {
            "v": VERSION,
            "kind": "publish",
            "proxy": self._instance,
            "conn": conn,
            "user": self._privacy.shown("user", user),
            "vhost": vhost,
            "ch": ch,
        }
        return f',{_json(fields)[1:-1]},"seq":'

    def decided(
        self,
        exchange: bytes,
        outcome: str,
        queues: Iterable[bytes] = (),
        exchanges: Iterable[bytes] = (),
        bindings: Iterable[str] = (),
        reason: str | None = None,
        remotes: Iterable[str] = (),
        rule: int | None = None,
        violates: Iterable[str] = (),
        alternate: bytes | None = None,
    ) -> str:
        """Return the fields that depend only on the decision.

        They are cached for as long as the decision is, so the rules version, which also changes with the rules of other
        virtual hosts, is not among them.

        Args:
            outcome: one of `oxproxy.relay.counters.OUTCOMES`.
            bindings: ids of the bindings that matched.
            remotes: names of the destinations on other brokers, without credentials.
            rule: index of the address table's rule that was applied.
            violates: conditions of contracts that the message violates; the field is omitted if there are none.
            alternate: the alternate exchange to which the broker sends the message; the field is omitted if there is
                none.
        """
        fields: dict[str, object] = {
            "exchange": text(exchange),
            "outcome": outcome,
            "queues": list(map(text, queues)),
            "exchanges": list(map(text, exchanges)),
            "remotes": list(remotes),
            "bindings": list(bindings),
            "rule": rule,
            "reason": reason,
        }
        if violates:
            fields["violates"] = list(violates)
        if alternate is not None:
            fields["alternate"] = text(alternate)
        return _json(fields)[1:-1]

    def headers(self, entries: Iterable[tuple[bytes, bytes]]) -> str:
        """Return the allow-listed headers as text for a line.

        Args:
            entries: (name, raw value), as returned by `oxproxy.amqp.tables.pick`.
        """
        return _json(self._privacy.header_values(entries))

    def append(self, publishes: list[PublishRecord]) -> None:
        """Append a line for each publish. All publishes have the same opening."""
        hashes = self._hashes_publishes
        lines = []
        table = self.facts
        for begin, seq, routing_key, message_id, size, decided, headers, decide_us, facts in publishes:
            if hashes:
                routing_key = self._privacy.shown("rk", routing_key).encode()
                if message_id is not None:
                    message_id = self._privacy.shown("message_id", message_id).encode()
            # Inlined, since a call would take a tenth of the total time.
            try:
                key = encode_basestring_ascii(routing_key.decode())
                identity = "null" if message_id is None else encode_basestring_ascii(message_id.decode())
            except UnicodeDecodeError:
                key = quoted(routing_key)
                identity = "null" if message_id is None else quoted(message_id)
            took = f',"decide_us":{decide_us:.1f}' if decide_us >= 0 else ""
            if facts is not None and table is not None:
                table.note(facts)
                took = f'{took},"facts":{facts.number}'
            lines.append(
                f'{begin}{seq},"rk":{key},"message_id":{identity},"size":{size},{decided},"headers":{headers}{took}}}\n'
            )
        self._append("".join(lines).encode(), len(lines))

    def returned(
        self,
        conn: str,
        ch: int,
        seq: int,
        vhost: str,
        routing_key: bytes,
        message_id: bytes | None,
        decided: str,
        reply_code: int,
    ) -> None:
        """Record the return of a publish, with what identifies its message, so that readers need no join.

        Args:
            decided: the decision's fields, from `decided`.
            reply_code: reply code of Basic.Return.
        """
        decision = json.loads(f"{{{decided}}}")
        fields: dict[str, object] = {
            "conn": conn,
            "ch": ch,
            "seq": seq,
            "result": "returned",
            "reply_code": reply_code,
            "vhost": vhost,
            "exchange": decision["exchange"],
            "rk": self._privacy.shown("rk", routing_key),
            "message_id": None if message_id is None else self._privacy.shown("message_id", message_id),
            "outcome": decision["outcome"],
        }
        self._append(_record(self._text(self._wall()), "settle", self._instance, fields), 1)

    def settle(
        self, conn: str, ch: int, seq: int, result: str, confirm_us: float | None = None, reason: str | None = None
    ) -> None:
        """Record the broker's response to a publish, except for a return.

        Args:
            result: acked, nacked or lost.
            confirm_us: microseconds from the publish to its confirm, if measured.
            reason: why the broker closed the channel or connection of a lost publish.
        """
        fields: dict[str, object] = {"conn": conn, "ch": ch, "seq": seq, "result": result}
        if confirm_us is not None:
            fields["confirm_us"] = round(confirm_us, 1)
        if reason is not None:
            fields["reason"] = reason
        self._append(_record(self._text(self._wall()), "settle", self._instance, fields), 1)

    def admin(self, change: Mapping[str, object]) -> None:
        """Record a change made through the admin address."""
        self._append(_record(self._text(self._wall()), "admin", self._instance, change), 1)


def gap_record(ts: str, instance: str, dropped: int, since: str, until: str) -> bytes:
    """Render a record that reports dropped lines; `since` and `until` are the times of the first and last such line."""
    return _record(ts, "gap", instance, {"dropped": dropped, "from": since, "to": until})


def _record(ts: str, kind: str, instance: str, fields: Mapping[str, object]) -> bytes:
    return f"{_json({'ts': ts, 'v': VERSION, 'kind': kind, 'proxy': instance, **fields})}\n".encode()
