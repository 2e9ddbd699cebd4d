"""``oxproxy cleanup``: lists everything that sidecars created on the broker, and removes it with ``--yes``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

from proxy.broker.cleanup import Cleanup
from proxy.broker.connection import ControlSettings
from proxy.cli.admin_client import AdminClient, admin_urls
from proxy.cli.console import DONE, NO, print_line, read_settings
from proxy.config.settings import Settings
from proxy.errors import ConfigError, ConfigErrors, UpstreamError
from proxy.net.tls_config import SidecarTls


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", type=Path, required=True, help="configuration file")
    parser.add_argument(
        "--vhost", metavar="NAME", action="append", default=[], help="only this virtual host; can be repeated"
    )
    parser.add_argument("--yes", action="store_true", help="remove the listed objects")


def run(options: argparse.Namespace) -> int:
    """List our objects and remove them with ``--yes``; return NO if something had to stay.

    Raises:
        ConfigErrors: the management API is not configured, unreachable or refuses; there is no such virtual host; a
            sidecar of this configuration runs, which would declare the objects again.
    """
    settings = read_settings(options.config)
    control, management = control_settings(settings)
    if options.yes:
        _expect_stopped(settings)
    try:
        complete = asyncio.run(_clean_up(Cleanup(control, management), options.vhost, options.yes))
    except UpstreamError as error:
        raise ConfigErrors([ConfigError("upstream.management", 0, "", str(error))]) from error
    return DONE if complete else NO


def _expect_stopped(settings: Settings) -> None:
    """Check on the admin ports that no worker is running."""
    running = []
    for url in admin_urls(settings) if settings.admin_addresses else []:
        with contextlib.suppress(ConfigErrors):
            AdminClient(url, "oxproxy cleanup").request("GET", "/livez")
            running.append(url)
    if running:
        message = f"a sidecar runs at {', '.join(running)} and would redeclare what is removed: stop it first"
        raise ConfigErrors([settings.fault("admin.address", message)])


def control_settings(settings: Settings) -> tuple[ControlSettings, str]:
    """Return the settings of the control user, and the address of the management API.

    Raises:
        ConfigErrors: the management API is not configured, or TLS files can't be used.
    """
    upstream = settings.upstream
    if upstream.management is None:
        message = "seen nothing, expected the management API, which is needed to list what was created"
        raise ConfigErrors([ConfigError("configuration", 0, "upstream.management", message)])
    tls = SidecarTls(settings)
    tls.read({})()
    control = ControlSettings(
        hosts=tuple((address.host, address.port) for address in upstream.addresses),
        username=upstream.control.username,
        password=upstream.control.password.get_secret_value(),
        tls=tls.control(),
        management=upstream.management,
        management_tls=tls.management(),
    )
    return control, upstream.management


async def _clean_up(removal: Cleanup, vhosts: Sequence[str], removing: bool) -> bool:
    """Return True if nothing is left that had to be removed."""
    complete = True
    try:
        unknown = sorted(set(vhosts) - await removal.vhosts()) if vhosts else []
        if unknown:
            message = "the broker has no such virtual host, or the control user has no access to it"
            raise ConfigErrors([ConfigError("--vhost", 0, name, message) for name in unknown])
        leftovers = await removal.leftovers(vhosts)
        for leftover in leftovers:
            print_line(str(leftover))
            if removing:
                complete = await removal.remove(leftover) and complete
    finally:
        await removal.close()
    if not leftovers:
        print_line("nothing found")
    elif not removing:
        print_line("nothing was removed: stop every sidecar, then add --yes")
    else:
        print_line("removed" if complete else "removed, except exchanges with foreign bindings")
    return complete
