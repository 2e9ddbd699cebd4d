"""``oxproxy cleanup``: lists and, with ``--yes``, removes the exchanges and bindings that sidecars created.

With ``--stale`` or ``--unused``, only bindings that are no longer needed are removed, while sidecars may be running.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from oxproxy.app.composition import control_settings, secrets_of
from oxproxy.broker.cleanup import Rows, find_leftovers, find_stale, find_unused, remove_leftover, remove_rows
from oxproxy.broker.connection import ControlSettings
from oxproxy.broker.management_api import ManagementApi
from oxproxy.cli.admin_client import admin_url
from oxproxy.cli.commands import add_repeatable
from oxproxy.cli.console import (
    DONE,
    NO,
    add_config_argument,
    print_json,
    print_line,
    printable,
    read_settings,
    required_configuration,
)
from oxproxy.config.loader import rules_files
from oxproxy.config.settings import Settings
from oxproxy.errors import ConfigError, ConfigErrors, UpstreamError
from oxproxy.net.tls_config import SidecarTls
from oxproxy.relay.tokens import Secrets
from oxproxy.relay.vhost import VhostState
from oxproxy.rules.loader import load_rules
from oxproxy.rules.wire import owned_exchanges

#: Timeout of a connection attempt to an admin address, in seconds.
_CONNECT_SECONDS = 5.0
#: Printed before rows are removed.
_BEFORE_STALE = (
    "to remove the bindings, make sure that every sidecar lists the same secrets as this configuration, and add --yes"
)
_BEFORE_UNUSED = (
    "to remove the tokens, wait until nothing is published or declared, and add --yes: a sidecar that still regards a "
    "removed token as bound loses messages until its next pass"
)


def add_broker_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments that select the broker and its virtual hosts."""
    add_config_argument(parser)
    add_repeatable(parser, "--vhost", "NAME", "only this virtual host")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_broker_arguments(parser)
    only = parser.add_mutually_exclusive_group()
    only.add_argument(
        "--stale",
        action="store_true",
        help="only bindings made with secrets that are not listed in the configuration; sidecars may be running",
    )
    only.add_argument(
        "--unused",
        action="store_true",
        help="only tokens that neither the rules nor client bindings need; sidecars may be running, but nothing should "
        "be published or declared",
    )
    parser.add_argument("--yes", action="store_true", help="remove the listed objects")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """List the objects that sidecars created and, with ``--yes``, remove them."""
    settings = read_settings(required_configuration(options.config, "oxproxy cleanup"))
    control, management = control_of(settings)
    states = _states(settings) if options.unused else {}
    if options.yes and not (options.stale or options.unused):
        _expect_stopped(settings)
    try:
        complete = asyncio.run(_clean_up(ManagementApi(control, management), control.declared.secrets, states, options))
    except UpstreamError as error:
        raise ConfigErrors([ConfigError("upstream.management", 0, "", str(error))]) from error
    return DONE if complete else NO


def _states(settings: Settings) -> dict[str, VhostState]:
    """Return the virtual hosts in the rules files of a configuration."""
    loaded = load_rules(rules_files(settings))
    states = {}
    for name, rules in loaded.rules.vhosts.items():
        states[name] = VhostState(name, loaded.routers[name], owned_exchanges(rules))
        states[name].set_addresses(loaded.books.get(name))
    return states


def _expect_stopped(settings: Settings) -> None:
    """Raise `ConfigErrors` if a sidecar listens on the admin address, whatever it requires of requests."""
    if settings.admin.address is None:
        return
    url = admin_url(settings)
    if _is_listening(url):
        message = f"a sidecar is running at {url} and would redeclare removed objects; stop it first"
        raise ConfigErrors([settings.fault("admin.address", message)])


def _is_listening(url: str) -> bool:
    address = urlsplit(url)
    try:
        with socket.create_connection((address.hostname, address.port), _CONNECT_SECONDS):
            return True
    except TimeoutError:  # a process that does not run accepts no connections, but may still listen
        return True
    except OSError:
        return False


def control_of(settings: Settings) -> tuple[ControlSettings, str]:
    """Return the settings of the control user, and the address of the management API.

    Raises:
        ConfigErrors: the management API is not configured, or TLS files can't be used.
    """
    management = settings.upstream.management
    if management is None:
        message = "not set, expected the address of the management API, which is needed to list created objects"
        raise ConfigErrors([ConfigError("configuration", 0, "upstream.management", message)])
    tls = SidecarTls(settings)
    tls.read({})({})
    return control_settings(settings, tls, secrets_of(settings)), management


async def _clean_up(
    management: ManagementApi, secrets: Secrets, states: Mapping[str, VhostState], options: argparse.Namespace
) -> bool:
    """List or remove the objects; return False if some could not be removed."""
    try:
        unknown = sorted(set(options.vhost) - await management.vhosts()) if options.vhost else []
        if unknown:
            message = "the broker has no such virtual host, or the control user has no access to it"
            raise ConfigErrors([ConfigError("--vhost", 0, name, message) for name in unknown])
        if options.stale:
            return await _clean_rows(management, await find_stale(management, secrets, options.vhost), options)
        if options.unused:
            rows = await find_unused(management, states, secrets, options.vhost)
            return await _clean_rows(management, rows, options)
        return await _clean_everything(management, options)
    finally:
        await management.close()


async def _clean_everything(management: ManagementApi, options: argparse.Namespace) -> bool:
    listed: list[dict[str, object]] = []
    complete = True
    for leftover in await find_leftovers(management, options.vhost):
        if not options.json:
            print_line(str(leftover))
        refused = await remove_leftover(management, leftover) if options.yes else []
        removed = options.yes and not (refused or leftover.foreign)
        complete = complete and (removed or not options.yes)
        if not options.json:
            _print_refused(refused)
        listed.append({**leftover.as_json(), "removed": removed, "refused": refused})
    if options.json:
        print_json({"exchanges": listed})
    elif not listed:
        print_line("nothing found")
    elif not options.yes:
        print_line("nothing was removed; to remove the objects, stop every sidecar and add --yes")
    else:
        print_line(
            "removed"
            if complete
            else "removed, except exchanges with foreign bindings, and what the broker refused to remove"
        )
    return complete


async def _clean_rows(management: ManagementApi, found: Iterable[Rows], options: argparse.Namespace) -> bool:
    listed: list[dict[str, object]] = []
    complete = True
    for rows in found:
        if not options.json:
            print_line(printable(str(rows)))
        refused = await remove_rows(management, rows) if options.yes else []
        complete = complete and not refused
        if not options.json:
            _print_refused(refused)
        listed.append({**rows.as_json(), "removed": options.yes and not refused, "refused": refused})
    if options.json:
        print_json({"exchanges": listed})
    elif not listed:
        print_line("nothing found")
    elif not options.yes:
        print_line(f"nothing was removed; {_BEFORE_STALE if options.stale else _BEFORE_UNUSED}")
    else:
        print_line("removed" if complete else "removed, except the bindings that the broker refused to remove")
    return complete


def _print_refused(refused: Iterable[str]) -> None:
    for reason in refused:
        print_line(printable(f"not removed: {reason}"))
