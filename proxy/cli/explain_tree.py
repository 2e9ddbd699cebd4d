"""How does an explanation look to a person at a terminal? The same walk as the plain text, as a coloured tree.

It adds nothing and leaves nothing out; where the output is no terminal the plain text is written.
"""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from proxy.routing.trace import BindingStep, ExchangeStep, FilterStep, OperatorStep, Verdict
from proxy.rules import wire
from proxy.rules.explain import Explanation, as_lines, as_text
from proxy.rules.message import plain
from proxy.values import Destination

_VERDICTS = {Verdict.MATCH: ("✓", "green"), Verdict.MISMATCH: ("✗", "red"), Verdict.ABSENT: ("∅", "yellow")}
_QUIET = "dim"


def show(explanation: Explanation, console: Console | None = None) -> None:
    """Write an explanation to standard output."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.file.write(as_text(explanation) + "\n")
        return
    console.print(_head(explanation))
    for step in explanation.walk:
        console.print(_exchange(step))
    for lookup in explanation.lookups:
        for line in as_lines(lookup):
            console.print(_safe(line))
    console.print(_result(explanation))
    for line in wire.as_lines(explanation.wire):
        console.print(_safe(line), style="yellow" if line.startswith("missing") else _QUIET)


def _head(explanation: Explanation) -> RenderableType:
    message, facts = explanation.message, explanation.message.facts
    grid = _grid()
    grid.add_row("exchange", _safe(message.exchange))
    grid.add_row("vhost", _safe(explanation.vhost))
    grid.add_row("key", _safe(facts.routing_key))
    for name, value in facts.headers:
        grid.add_row("header", Text.assemble(_safe(name), " = ", _safe(value)))
    grid.add_row("body", f"{facts.body_size_bytes} bytes")
    grid.add_row("rules", explanation.version)
    return grid


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style=_QUIET)
    grid.add_column(overflow="fold")
    return grid


def _exchange(step: ExchangeStep) -> Tree:
    tree = Tree(Text.assemble(("exchange ", "bold"), (_plain(step.name), "bold cyan"), f" ({step.type})"))
    for each in step.filters:
        tree.add(_filter(each))
    for visit in step.visits:
        tree.add(_binding(visit))
    if step.alternate is not None:
        tree.add(Text(f"no destination: goes on to the alternate exchange {_plain(step.alternate)}", "yellow"))
    return tree


def _filter(step: FilterStep) -> Text:
    words = "passed" if step.breach is None else f"{step.breach} {'dropped' if step.silent else 'channel closed'}"
    return Text(f"filter {_plain(step.name)}: {words}", _QUIET if step.breach is None else "red")


def _binding(step: BindingStep) -> Tree:
    style = "bold green" if step.true else _QUIET
    destination = _named((step.binding.destination_type, step.binding.destination))
    sign = "✓" if step.true else "✗"
    title = f"{sign} {step.order} {_plain(step.id)} → {destination} ({step.match_type})"
    tree = Tree(Text(title, style))
    if step.operators:
        grid = Table.grid(padding=(0, 2))
        for each in step.operators:
            grid.add_row(*_operator(each))
        tree.add(grid)
    for line, line_style in _effects(step):
        tree.add(Text(line, line_style))
    return tree


def _operator(step: OperatorStep) -> tuple[RenderableType, ...]:
    sign, style = _VERDICTS[step.verdict]
    seen: RenderableType = (
        Text("absent", _QUIET) if step.seen is None else Text.assemble(("saw ", _QUIET), _safe(step.seen))
    )
    return Text(sign, style), _safe(step.key), _safe(step.expected), seen


def _effects(step: BindingStep) -> list[tuple[str, str]]:
    lines = []
    if step.added:
        lines.append(("+ " + ", ".join(map(_named, step.added)), "green"))
    if step.removed:
        lines.append(("- " + ", ".join(map(_named, step.removed)), "red"))
    if step.jump is not None:
        lines.append((f"goes on at order {step.jump}", "yellow"))
    if step.stopped:
        lines.append(("stops here", "yellow"))
    if step.error:
        lines.append((_plain(step.error), "red"))
    return lines


def _result(explanation: Explanation) -> RenderableType:
    result = explanation.result
    grid = _grid()
    good = bool(result.queues or result.exchanges or result.remotes) and not result.error
    grid.add_row("outcome", Text(result.outcome, "bold green" if good else "bold red"))
    if result.error:
        grid.add_row("error", Text(_plain(result.error), "red"))
    for what, names in (("queues", result.queues), ("exchanges", result.exchanges), ("remotes", result.remotes)):
        if names:
            grid.add_row(what, _safe(", ".join(names)))
    for why in result.failed:
        grid.add_row("failed", Text(_plain(why), "red"))
    return Group("", grid)


def _named(destination: Destination) -> str:
    return f"{destination[0]} {_plain(destination[1])}"


def _safe(seen: object) -> Text:
    return Text(_plain(seen))


def _plain(seen: object) -> str:
    """Write a value so that nothing in it can steer the terminal."""
    text = str(plain(seen))
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
