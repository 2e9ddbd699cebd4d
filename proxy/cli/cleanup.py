"""``oxproxy cleanup``: lists and, with ``--yes``, removes the exchanges and bindings that sidecars created."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from pathlib import Path

from proxy.app.composition import control_settings, secrets_of
from proxy.broker.cleanup import find_leftovers, remove_leftover
from proxy.broker.connection import ControlSettings
from proxy.broker.management_api import ManagementApi
from proxy.cli.admin_client import AdminClient, admin_urls
from proxy.cli.commands import add_repeatable
from proxy.cli.console import DONE, NO, print_json, print_line, read_settings
from proxy.config.settings import Settings
from proxy.errors import ConfigError, ConfigErrors, UpstreamError
from proxy.net.tls_config import SidecarTls


def add_broker_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments that select the broker and its virtual hosts."""
    parser.add_argument(
        "--config", metavar="FILE", type=Path, required=True, help="configuration file; - for standard input"
    )
    add_repeatable(parser, "--vhost", "NAME", "only this virtual host")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_broker_arguments(parser)
    parser.add_argument("--yes", action="store_true", help="remove the listed objects")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """List the exchanges and bindings that sidecars created and, with ``--yes``, remove them."""
    settings = read_settings(options.config)
    control, management = control_of(settings)
    if options.yes:
        _expect_stopped(settings)
    try:
        complete = asyncio.run(_clean_up(ManagementApi(control, management), options))
    except UpstreamError as error:
        raise ConfigErrors([ConfigError("upstream.management", 0, "", str(error))]) from error
    return DONE if complete else NO


def _expect_stopped(settings: Settings) -> None:
    """Raise `ConfigErrors` if a worker responds on its admin port."""
    running = []
    for url in admin_urls(settings) if settings.admin_addresses else []:
        with contextlib.suppress(ConfigErrors):
            AdminClient(url, "oxproxy cleanup").request("GET", "/livez")
            running.append(url)
    if running:
        message = f"a sidecar is running at {', '.join(running)} and would redeclare removed objects; stop it first"
        raise ConfigErrors([settings.fault("admin.address", message)])


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
    tls.read({})()
    return control_settings(settings, tls, secrets_of(settings)), management


async def _clean_up(management: ManagementApi, options: argparse.Namespace) -> bool:
    """List or remove the objects; return False if some could not be removed."""
    listed: list[dict[str, object]] = []
    try:
        unknown = sorted(set(options.vhost) - await management.vhosts()) if options.vhost else []
        if unknown:
            message = "the broker has no such virtual host, or the control user has no access to it"
            raise ConfigErrors([ConfigError("--vhost", 0, name, message) for name in unknown])
        for leftover in await find_leftovers(management, options.vhost):
            if not options.json:
                print_line(str(leftover))
            listed.append(
                {**leftover.as_json(), "removed": options.yes and await remove_leftover(management, leftover)}
            )
    finally:
        await management.close()
    complete = not options.yes or all(row["removed"] for row in listed)
    if options.json:
        print_json({"exchanges": listed})
    elif not listed:
        print_line("nothing found")
    elif not options.yes:
        print_line("nothing was removed; to remove the objects, stop every sidecar and add --yes")
    else:
        print_line("removed" if complete else "removed, except exchanges with foreign bindings")
    return complete
