"""How is a broker freed of everything that sidecars made on it? Listed first, removed when told so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from proxy.broker.cleanup import Removal
from proxy.broker.settings import ControlSettings
from proxy.config.settings import Settings
from proxy.errors import ConfigError, ConfigErrors, UpstreamError
from proxy.net.tls_config import WantedTls


def clean_up(settings: Settings, vhosts: Sequence[str], removing: bool, say: Callable[[str], None]) -> bool:
    """List what is there, and remove it.

    Args:
        settings: the configuration, whose control user and management API are used.
        vhosts: virtual hosts to look at; none: all.
        removing: whether to remove what is found.
        say: takes each line.

    Returns:
        Whether nothing is left that had to be.

    Raises:
        ConfigErrors: the management API is not configured, can't be reached or refuses; there is no such virtual host.
    """
    control, management = control_of(settings)
    try:
        return asyncio.run(_clean_up(Removal(control, management), vhosts, removing, say))
    except UpstreamError as error:
        raise ConfigErrors([ConfigError("upstream.management", 0, "", str(error))]) from error


def control_of(settings: Settings) -> tuple[ControlSettings, str]:
    """Give how to act as the control user, and the address of the management API.

    Raises:
        ConfigErrors: the management API is not configured, or files of TLS can't be used.
    """
    upstream = settings.upstream
    if upstream.management is None:
        message = "seen nothing, expected the management API: it alone lists what was made"
        raise ConfigErrors([ConfigError("configuration", 0, "upstream.management", message)])
    tls = WantedTls(settings)
    tls.read({})()
    control = ControlSettings(
        hosts=tuple((one.host, one.port) for one in upstream.addresses),
        username=upstream.control.username,
        password=upstream.control.password.reveal(),
        tls=tls.control(),
        management=upstream.management,
        management_tls=tls.management(),
    )
    return control, upstream.management


async def _clean_up(removal: Removal, vhosts: Sequence[str], removing: bool, say: Callable[[str], None]) -> bool:
    whole = True
    try:
        unknown = sorted(set(vhosts) - await removal.vhosts()) if vhosts else []
        if unknown:
            message = "the broker has no such virtual host, or the control user may not see it"
            raise ConfigErrors([ConfigError("--vhost", 0, name, message) for name in unknown])
        found = await removal.leftovers(vhosts)
        for leftover in found:
            say(str(leftover))
            if removing:
                whole = await removal.remove(leftover) and whole
    finally:
        await removal.close()
    if not found:
        say("nothing of ours is there")
    elif not removing:
        say("nothing was removed: stop every sidecar, then add --yes")
    else:
        say("removed" if whole else "removed, but for exchanges that others have bound to")
    return whole
