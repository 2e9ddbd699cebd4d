"""``oxproxy cleanup``: lists everything that sidecars made on the broker, and removes it with ``--yes``."""

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
    """List what is there and remove it with ``--yes``; the answer is no where something had to stay.

    Raises:
        ConfigErrors: the management API is not configured, can't be reached or refuses; there is no such virtual host;
            a sidecar of this configuration runs, which would declare again what is removed.
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
    """Ask the admin ports of all workers whether they run."""
    running = []
    for url in admin_urls(settings) if settings.admin_addresses else []:
        with contextlib.suppress(ConfigErrors):
            AdminClient(url, "oxproxy cleanup").request("GET", "/livez")
            running.append(url)
    if running:
        message = f"a sidecar runs at {', '.join(running)} and would declare again what is removed: stop it first"
        raise ConfigErrors([settings.fault("admin.address", message)])


def control_settings(settings: Settings) -> tuple[ControlSettings, str]:
    """Return how to connect as the control user, and the address of the management API.

    Raises:
        ConfigErrors: the management API is not configured, or files of TLS can't be used.
    """
    upstream = settings.upstream
    if upstream.management is None:
        message = "seen nothing, expected the management API: it alone lists what was made"
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
    """Return whether nothing is left that had to be removed."""
    complete = True
    try:
        unknown = sorted(set(vhosts) - await removal.vhosts()) if vhosts else []
        if unknown:
            message = "the broker has no such virtual host, or the control user may not see it"
            raise ConfigErrors([ConfigError("--vhost", 0, name, message) for name in unknown])
        leftovers = await removal.leftovers(vhosts)
        for leftover in leftovers:
            print_line(str(leftover))
            if removing:
                complete = await removal.remove(leftover) and complete
    finally:
        await removal.close()
    if not leftovers:
        print_line("nothing of ours is there")
    elif not removing:
        print_line("nothing was removed: stop every sidecar, then add --yes")
    else:
        print_line("removed" if complete else "removed, but for exchanges that others have bound to")
    return complete
