"""``oxproxy routes``: shows exchanges, bindings and destinations as a tree, from files or from a running sidecar."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxproxy.cli.admin_client import add_admin_arguments, admin_clients
from oxproxy.cli.commands import add_repeatable
from oxproxy.cli.console import DONE, NO, json_line, load_rules_of, print_errors, print_json, printable, rich_console

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        metavar="FILE",
        type=Path,
        nargs="*",
        help="rules files or a configuration; - for standard input; default: query a running sidecar",
    )
    add_admin_arguments(parser)
    parser.add_argument("--vhost", metavar="NAME", help="only this virtual host")
    add_repeatable(parser, "--exchange", "NAME", "only this exchange")
    parser.add_argument("--json", action="store_true", help="print the response of /api/routes")


def run(options: argparse.Namespace) -> int:
    """Print the tree."""
    if options.files:
        from oxproxy.rules.overview import overview

        routes: dict[str, Any] = overview(load_rules_of(options.files))
    else:
        routes = admin_clients(options, "oxproxy routes")[0].json("/api/routes")
    faults = list(_not_found(routes["vhosts"], options.vhost, options.exchange))
    routes["vhosts"] = list(_chosen(routes["vhosts"], options.vhost, options.exchange))
    if options.json:
        print_json(routes)
    else:
        console = rich_console()
        for vhost in routes["vhosts"]:
            console.print(_tree(vhost, routes.get("missing", {}).get(vhost["vhost"], {})))
    print_errors(faults)
    return NO if faults else DONE


def _not_found(vhosts: Sequence[Mapping[str, Any]], name: str | None, exchanges: Sequence[str]) -> Iterator[str]:
    """Yield errors for requested virtual hosts or exchanges that do not exist, and suggest similar names."""
    names = [vhost["vhost"] for vhost in vhosts]
    if name is not None and name not in names:
        yield f'no virtual host in the rules is named "{name}"{_similar(name, names)}'
        return
    known = [
        exchange["exchange"] for vhost in vhosts if name in (None, vhost["vhost"]) for exchange in vhost["exchanges"]
    ]
    where = "in the rules" if name is None else f"in virtual host {name}"
    for exchange in exchanges:
        if exchange not in known:
            yield f'no exchange {where} is named "{exchange}"{_similar(exchange, known)}'


def _similar(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _chosen(vhosts: Sequence[dict[str, Any]], name: str | None, exchanges: Sequence[str]) -> Iterator[dict[str, Any]]:
    for vhost in vhosts:
        kept = [exchange for exchange in vhost["exchanges"] if not exchanges or exchange["exchange"] in exchanges]
        if name in (None, vhost["vhost"]) and (kept or not exchanges):
            yield {**vhost, "exchanges": kept, **({"addresses": [], "brokers": []} if exchanges else {})}


def _tree(vhost: Mapping[str, Any], missing: Mapping[str, str]) -> Tree:
    from rich.tree import Tree

    tree = Tree(_styled(("vhost ", ""), (vhost["vhost"], "bold")))
    for exchange in vhost["exchanges"]:
        branch = tree.add(_exchange(exchange))
        for binding in exchange["bindings"]:
            _add_binding(branch, binding, missing)
        if exchange["alternate"] is not None:
            branch.add(_styled(("otherwise → ", ""), (f"exchange {exchange['alternate']}", "yellow")))
    if vhost["addresses"]:
        branch = tree.add(_styled(("addresses", "bold")))
        for number, address in enumerate(vhost["addresses"]):
            name = f" ({address['name']})" if address["name"] else ""
            branch.add(_styled((f"{number}{name}: {address['pattern']} → {address['translation']}", "")))
    for broker in vhost["brokers"]:
        tree.add(_styled(("broker ", ""), (broker["name"], "bold"), (f" {broker['address']}", "")))
    return tree


def _exchange(exchange: Mapping[str, Any]) -> Text:
    about = [exchange["type"], f"delivery {exchange['delivery']}"]
    if exchange["carrier"] not in (None, exchange["exchange"]):
        about.append(f"carrier {exchange['carrier']}")
    if exchange["unmatched"]:
        about.append("unmatched messages are passed on")
    return _styled(("exchange ", ""), (exchange["exchange"], "bold cyan"), (f" ({', '.join(about)})", "dim"))


def _add_binding(branch: Tree, binding: Mapping[str, Any], missing: Mapping[str, str]) -> None:
    kind, name = binding["destination"]["type"], binding["destination"]["name"]
    destination = f"{kind} {name}"
    title = _styled(
        (f"{binding['order']} ", "dim"),
        (binding["binding"], ""),
        (" → ", ""),
        (destination, "cyan" if binding["evaluated_here"] else "green"),
        (f"  missing: {missing[destination]}" if destination in missing else "", "bold red"),
        (f"  bound by a client of user {binding['user']}" if binding["user"] else "", "yellow"),
    )
    node = branch.add(title)
    when = [f"{key}: {json_line(value)}" for key, value in binding["conditions"].items()]
    if binding["routing_key"]:
        when.insert(0, f"routing key {json_line(binding['routing_key'])}")
    if when:
        node.add(_styled((f"{binding['match']}: " if len(when) > 1 else "", "dim"), (", ".join(when), "")))
    if binding["effects"]:
        effects = [
            f"{key}: {json_line(value)}" for key, value in binding["effects"].items() if key not in ("x-order", "order")
        ]
        if effects:
            node.add(_styled((", ".join(effects), "yellow")))


def _styled(*parts: tuple[str, str]) -> Text:
    from rich.text import Text

    return Text.assemble(*((printable(text), style) for text, style in parts))
