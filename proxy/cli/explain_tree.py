"""Formats an explanation as a coloured tree for terminals. Other outputs get plain text with the same content."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from proxy.cli.console import printable, rich_console
from proxy.routing.decision import BindingStep, ExchangeStep, FilterStep, OperatorStep, Verdict
from proxy.rules import wire
from proxy.rules.explain import Explanation, as_lines, as_text
from proxy.rules.message import json_value
from proxy.values import Destination, counted

_VERDICTS = {Verdict.MATCH: ("✓", "green"), Verdict.MISMATCH: ("✗", "red"), Verdict.ABSENT: ("∅", "yellow")}
_DIM = "dim"


def print_tree(explanation: Explanation, console: Console | None = None) -> None:
    console = console or rich_console()
    if not console.is_terminal:
        console.file.write(as_text(explanation) + "\n")
        return
    console.print(_head(explanation))
    for step in explanation.walk:
        console.print(_exchange(step))
    for lookup in explanation.lookups:
        for line in as_lines(lookup):
            console.print(_printable(line))
    console.print(_result(explanation))
    for line in wire.as_lines(explanation.wire):
        console.print(_printable(line), style="yellow" if line.startswith("missing") else _DIM)


def _head(explanation: Explanation) -> RenderableType:
    message, facts = explanation.message, explanation.message.facts
    grid = _grid()
    grid.add_row("exchange", _printable(message.exchange))
    grid.add_row("vhost", _printable(explanation.vhost))
    grid.add_row("key", _printable(facts.routing_key))
    for name, value in facts.headers:
        grid.add_row("header", Text.assemble(_printable(name), " = ", _printable(value)))
    grid.add_row("body", counted(facts.body_size_bytes, "byte"))
    grid.add_row("rules", explanation.version)
    return grid


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style=_DIM)
    grid.add_column(overflow="fold")
    return grid


def _exchange(step: ExchangeStep) -> Tree:
    tree = Tree(Text.assemble(("exchange ", "bold"), (_escaped(step.name), "bold cyan"), f" ({step.type})"))
    for check in step.filters:
        tree.add(_filter(check))
    for visit in step.visits:
        tree.add(_binding(visit))
    if step.alternate is not None:
        tree.add(Text(f"no destination: continues at the alternate exchange {_escaped(step.alternate)}", "yellow"))
    return tree


def _filter(step: FilterStep) -> Text:
    verdict = "passed" if step.breach is None else f"{step.breach} {'dropped' if step.silent else 'channel closed'}"
    return Text(f"filter {_escaped(step.name)}: {verdict}", _DIM if step.breach is None else "red")


def _binding(step: BindingStep) -> Tree:
    style = "bold green" if step.true else _DIM
    destination = _named((step.binding.destination_type, step.binding.destination))
    sign = "✓" if step.true else "✗"
    title = f"{sign} {step.order} {_escaped(step.id)} → {destination} ({step.match_type})"
    tree = Tree(Text(title, style))
    if step.operators:
        grid = Table.grid(padding=(0, 2))
        for operator in step.operators:
            grid.add_row(*_operator(operator))
        tree.add(grid)
    for line, line_style in _effects(step):
        tree.add(Text(line, line_style))
    return tree


def _operator(step: OperatorStep) -> tuple[RenderableType, ...]:
    sign, style = _VERDICTS[step.verdict]
    seen: RenderableType = (
        Text("absent", _DIM) if step.seen is None else Text.assemble(("got ", _DIM), _printable(step.seen))
    )
    return Text(sign, style), _printable(step.key), _printable(step.expected), seen


def _effects(step: BindingStep) -> list[tuple[str, str]]:
    lines = []
    if step.added:
        lines.append(("+ " + ", ".join(map(_named, step.added)), "green"))
    if step.removed:
        lines.append(("- " + ", ".join(map(_named, step.removed)), "red"))
    if step.jump is not None:
        lines.append((f"continues at order {step.jump}", "yellow"))
    if step.stopped:
        lines.append(("stops here", "yellow"))
    if step.error:
        lines.append((_escaped(step.error), "red"))
    return lines


def _result(explanation: Explanation) -> RenderableType:
    result = explanation.result
    grid = _grid()
    good = bool(result.queues or result.exchanges or result.remotes) and not result.error
    note = explanation.note
    grid.add_row("outcome", Text(result.outcome, "bold yellow" if note else "bold green" if good else "bold red"))
    if note:
        grid.add_row("", _printable(note))
        return Group("", grid)
    if result.error:
        grid.add_row("error", Text(_escaped(result.error), "red"))
    for kind, names in (("queues", result.queues), ("exchanges", result.exchanges), ("remotes", result.remotes)):
        if names:
            grid.add_row(kind, _printable(", ".join(names)))
    for reason in result.failed:
        grid.add_row("failed", Text(_escaped(reason), "red"))
    return Group("", grid)


def _named(destination: Destination) -> str:
    return f"{destination[0]} {_escaped(destination[1])}"


def _printable(value: object) -> Text:
    return Text(_escaped(value))


def _escaped(value: object) -> str:
    """Escape control characters, since a message could use them to control the terminal."""
    return printable(str(json_value(value)))
