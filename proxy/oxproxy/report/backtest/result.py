"""The result of a back-test, for the terminal, pull requests, programs and the page."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from oxproxy.relay.records.facts_record import read_bytes, read_table
from oxproxy.report.backtest.judge import EXAMPLES, Difference, Example, Judged, Result
from oxproxy.report.wording import several, whole
from oxproxy.rules.loader import LoadedRules
from oxproxy.values import Table, Value

#: Maximum number of destinations and differences shown in a terminal and in Markdown; JSON contains all.
_SHOWN = 30
#: Tags of YAML for AMQP types.
_TAGS = {"b": "!int8", "B": "!uint8", "s": "!int16", "u": "!uint16", "I": "!int32", "i": "!uint32", "l": "!int64",
         "f": "!float32", "T": "!timestamp"}  # fmt: skip

Row = dict[str, Any]  # as in JSON


@dataclass(slots=True)
class BacktestResult:
    """The result of a back-test.

    Args:
        candidate: version of the candidate rules.
        exchanges: numbers of publishes by virtual host and exchange: judged, equal, different, unroutable, not_judged,
            and the reasons for the last.
        destinations: gains and losses by destination, with examples. Newly unroutable publishes are first, with the
            kind `unroutable`.
        differences: recorded and candidate result, with examples.
        page: the HTML page; empty if none was written.
    """

    candidate: str
    segments: int
    judged: int
    equal: int
    different: int
    unroutable: int
    not_judged: int
    evaluations: int
    exchanges: list[Row]
    destinations: list[Row]
    differences: list[Row]
    page: str = ""


@dataclass(slots=True)
class _Change:
    gains: int = 0
    losses: int = 0
    gained: list[Row] = field(default_factory=list)
    lost: list[Row] = field(default_factory=list)


def result_of(judged: Judged, loaded: LoadedRules, names: Sequence[str], segments: int) -> BacktestResult:
    """Combine the numbers of all tasks.

    Args:
        names: the candidate's files, for commands.
    """
    reasons: dict[tuple[str, str], dict[str, int]] = {}
    for (vhost, exchange, reason), count in judged.not_judged.items():
        reasons.setdefault((vhost, exchange), {})[reason] = count
    different: Counter[tuple[str, str]] = Counter()
    unroutable: Counter[tuple[str, str]] = Counter()
    changes: dict[tuple[str, str, str], _Change] = {}
    differences: list[Row] = []
    for difference, count in sorted(judged.differences.items(), key=lambda item: (-item[1], item[0][:2])):
        place = difference.vhost, difference.exchange
        different[place] += count
        is_new = _newly_unroutable(difference)
        examples = [_shown(difference, example, names) for example in judged.examples.get(difference, ())]
        if is_new:
            unroutable[place] += count
            _add(changes, (difference.vhost, "unroutable", difference.exchange), count, examples, gain=True)
        before, after = difference.recorded.destinations, difference.candidate.destinations
        for kind, name in after - before:
            _add(changes, (difference.vhost, kind, name), count, examples, gain=True)
        for kind, name in before - after:
            _add(changes, (difference.vhost, kind, name), count, examples, gain=False)
        row: Row = {
            "vhost": difference.vhost,
            "exchange": difference.exchange,
            "publishes": count,
            "unroutable": is_new,
        }
        results = {"recorded": difference.recorded._asdict(), "candidate": difference.candidate._asdict()}
        differences.append(row | results | {"examples": examples})
    exchanges: list[Row] = []
    for vhost, exchange in sorted({*judged.equal, *different, *reasons}):
        place = vhost, exchange
        why = dict(sorted(reasons.get(place, {}).items(), key=lambda item: -item[1]))
        numbers = {"judged": judged.equal[place] + different[place], "equal": judged.equal[place]}
        numbers |= {"different": different[place], "unroutable": unroutable[place], "not_judged": sum(why.values())}
        exchanges.append({"vhost": vhost, "exchange": exchange, **numbers, "reasons": why})
    exchanges.sort(key=lambda row: (-row["unroutable"], -row["different"], row["vhost"], row["exchange"]))
    rows: list[Row] = [
        {"vhost": vhost, "kind": kind, "name": name, "gains": change.gains, "losses": change.losses,
         "gained": change.gained, "lost": change.lost}
        for (vhost, kind, name), change in changes.items()
    ]  # fmt: skip
    rows.sort(key=lambda row: (row["kind"] != "unroutable", -row["gains"] - row["losses"], row["vhost"], row["name"]))
    totals = {name: sum(row[name] for row in exchanges) for name in _NUMBERS}
    return BacktestResult(
        loaded.rules.version,
        segments,
        totals["judged"],
        totals["equal"],
        totals["different"],
        totals["unroutable"],
        totals["not_judged"],
        evaluations=judged.evaluations,
        exchanges=exchanges,
        destinations=rows,
        differences=differences,
    )


_NUMBERS = ("judged", "equal", "different", "unroutable", "not_judged")


def _newly_unroutable(difference: Difference) -> bool:
    return difference.candidate.is_unroutable and not difference.recorded.is_unroutable


def _add(
    changes: dict[tuple[str, str, str], _Change],
    key: tuple[str, str, str],
    count: int,
    examples: Sequence[Row],
    *,
    gain: bool,
) -> None:
    change = changes.setdefault(key, _Change())
    if gain:
        change.gains += count
        change.gained += examples[: EXAMPLES - len(change.gained)]
    else:
        change.losses += count
        change.lost += examples[: EXAMPLES - len(change.lost)]


def _shown(difference: Difference, example: Example, names: Sequence[str]) -> Row:
    at = datetime.fromtimestamp(example.second, UTC).isoformat().replace("+00:00", "Z")
    return {
        "message_id": example.message_id,
        "exchange": difference.exchange,
        "routing_key": example.routing_key,
        "size": example.size,
        "at": at,
        "explain": explain_command(difference, example, at, names),
    }


def explain_command(difference: Difference, example: Example, at: str, names: Sequence[str]) -> str | None:
    """Return the command that explains the candidate's result; None if the message can't be written as YAML."""
    message = {
        "vhost": json.dumps(difference.vhost),
        "exchange": json.dumps(difference.exchange),
        "routing_key": json.dumps(example.routing_key),
        "body_size": str(example.size),
        "at": json.dumps(at),
    }
    if example.facts is not None:
        _, headers, _, properties, *_ = json.loads(example.facts)
        try:
            table = read_table(headers)
            if len({name for name, _ in table}) < len(table):
                return None
            shown = {name: value if isinstance(value, int) else read_bytes(value) for name, value in properties.items()}
            message["headers"] = _mapping(table)
            if example.message_id is not None:
                shown["message_id"] = example.message_id.encode()
            parts = (f"{name}: {value if isinstance(value, int) else _text(value)}" for name, value in shown.items())
            message["properties"] = f"{{{', '.join(parts)}}}"
        except ValueError:
            return None
    flow = ", ".join(f"{name}: {value}" for name, value in message.items() if value != "{}")
    files = " ".join(f"--rules {shlex.quote(name)}" for name in names)
    return f"printf %s {shlex.quote(f'{{{flow}}}')} | oxproxy explain {files} --message -"


def _mapping(table: Table) -> str:
    return f"{{{', '.join(f'{_text(name)}: {_yaml(value)}' for name, value in table)}}}"


def _text(content: bytes) -> str:
    """Return a string as YAML.

    Raises:
        UnicodeDecodeError: it is not UTF-8.
    """
    return json.dumps(content.decode())


def _yaml(value: Value) -> str:
    """Return a header's value as YAML with its type.

    Raises:
        ValueError: YAML has no form for it.
    """
    letter, content = value
    if letter in _TAGS:
        return f"{_TAGS[letter]} {content}"
    if letter == "S" and isinstance(content, bytes):
        return _text(content)
    if letter == "x" and isinstance(content, bytes):
        return f'!bytes "{content.hex()}"'
    if letter == "A" and isinstance(content, tuple):
        return f"[{', '.join(map(_yaml, content))}]"
    if letter == "F" and isinstance(content, tuple):
        return _mapping(content)
    if letter in ("t", "V", "d"):
        return json.dumps(content, allow_nan=False)
    raise ValueError(letter)


# -- formats -------------------------------------------------------------------------------------------------------


def summary(result: BacktestResult) -> str:
    """Return the numbers in one sentence."""
    unroutable = f", {whole(result.unroutable)} newly unroutable" if result.unroutable else ""
    return (
        f"candidate {result.candidate} on {several(result.segments, 'segment')}: "
        f"{several(result.judged, 'publish', 'publishes')} judged, {whole(result.equal)} equal, "
        f"{whole(result.different)} different{unroutable}, {whole(result.not_judged)} not judged"
    )


def result_text(result: Mapping[str, Any] | Result) -> str:
    """Describe a result, such as ``routed: queue a, queue b``."""
    row = result if isinstance(result, Mapping) else result._asdict()
    parts = [f"{kind[:-1]} {name}" for kind in ("queues", "exchanges", "remotes") for name in row[kind]]
    parts += [f"alternate exchange {row['alternate']}"] if row["alternate"] is not None else []
    parts += [f"violates {name}" for name in row["violates"]] + ["translation failed"] * bool(row["failed"])
    return f"{row['outcome']}: {', '.join(parts)}" if parts else str(row["outcome"])


def destination_text(row: Row) -> str:
    """Describe a destination, or the newly unroutable publishes to an exchange."""
    if row["kind"] == "unroutable":
        return f"newly unroutable, from exchange {row['name'] or '(default)'} in vhost {row['vhost']}"
    return f"{row['kind']} {row['name']} in vhost {row['vhost']}"


def examples_of(row: Row) -> Iterator[Row]:
    """Yield the examples of a row, each once."""
    seen: list[Row] = []
    for example in (*row.get("gained", ()), *row.get("lost", ()), *row.get("examples", ())):
        if example not in seen:
            seen.append(example)
            yield example


def lines(result: BacktestResult) -> Iterator[str]:
    """Yield the result as lines of text."""
    yield summary(result)
    for row in result.destinations[:_SHOWN]:
        numbers = several(row["gains"], "publish", "publishes") if row["kind"] == "unroutable" else _signed(row)
        yield f"{destination_text(row)}: {numbers}"
        for example in list(examples_of(row))[:EXAMPLES]:
            named = example["message_id"] or "no message id"
            yield f"    for example {named}, key {example['routing_key']!r}, at {example['at']}"
            if example["explain"]:
                yield f"        {example['explain']}"
    if len(result.destinations) > _SHOWN:
        yield f"and {len(result.destinations) - _SHOWN} more destinations"
    for exchange in result.exchanges:
        for reason, count in exchange["reasons"].items():
            name = f"exchange {exchange['exchange'] or '(default)'} in vhost {exchange['vhost']}"
            yield f"not judged: {name}: {several(count, 'publish', 'publishes')}: {reason}"


def _signed(row: Row) -> str:
    return f"+{whole(row['gains'])} -{whole(row['losses'])}"


def markdown(result: BacktestResult) -> str:
    """Return a summary for a pull request."""
    made = ["### Back-test of the rules", "", f"{_cell(summary(result))}.", ""]
    if result.exchanges:
        made += ["| vhost | exchange | judged | equal | different | newly unroutable | not judged |"]
        made += ["|---|---|---:|---:|---:|---:|---:|"]
        for row in result.exchanges:
            cells = [_code(row["vhost"]), _code(row["exchange"] or "(default)")]
            made.append(f"| {' | '.join([*cells, *(whole(row[name]) for name in _NUMBERS)])} |")
        made.append("")
    if result.destinations:
        made += ["| destination | gains | losses | for example |", "|---|---:|---:|---|"]
        for row in result.destinations[:_SHOWN]:
            found = [_code(example["message_id"] or example["routing_key"]) for example in examples_of(row)]
            numbers = whole(row["gains"]), whole(row["losses"])
            made.append(f"| {_cell(destination_text(row))} | {' | '.join(numbers)} | {', '.join(found[:EXAMPLES])} |")
        made.append("")
        if len(result.destinations) > _SHOWN:
            made += [f"{len(result.destinations) - _SHOWN} more destinations.", ""]
    commands = [example["explain"] for row in result.destinations for example in examples_of(row) if example["explain"]]
    if commands:
        made += ["Why:", "", "```sh", *dict.fromkeys(commands[:EXAMPLES]), "```", ""]
    reasons: Counter[str] = Counter()
    for row in result.exchanges:
        reasons.update(row["reasons"])
    made += [f"- not judged: {_cell(reason)}: {whole(count)}" for reason, count in reasons.most_common()]
    return "\n".join(made).rstrip()


def _cell(text: str) -> str:
    """Escape text for a cell of a Markdown table."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    for special in "\\`*_[]<>|#":
        shown = shown.replace(special, f"\\{special}")
    return shown


def _code(text: str) -> str:
    shown = "".join(char if char.isprintable() else " " for char in text).replace("`", "'").replace("|", "\\|")
    return f"`{shown}`" if shown.strip() else ""
