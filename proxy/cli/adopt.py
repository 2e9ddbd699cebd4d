"""``oxproxy adopt``: bindings that earlier versions, or sidecars with a previous secret, left behind are signed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from proxy.app.composition import secrets_of
from proxy.broker.adoption import Adoption, Unadopted
from proxy.broker.management_api import ManagementApi
from proxy.cli.cleanup import control_of
from proxy.config.settings import Settings
from proxy.errors import ConfigError, ConfigErrors, UpstreamError


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be adopted.

    Args:
        vhosts: only there; none: every virtual host that the control user may see.
        exchanges: only bindings of these; none: of all.
        dry_run: list, and change nothing.
        doubtful: sign bindings as well whose signature is none of our secrets'.
        finish: end the transition afterwards.
    """

    vhosts: tuple[str, ...] = ()
    exchanges: tuple[str, ...] = ()
    dry_run: bool = False
    doubtful: bool = False
    finish: bool = False


def adopt(settings: Settings, wanted: Wanted, say: Callable[[str], None]) -> bool:
    """List what the current secret did not sign, sign it, and end the transition where that is wanted.

    Args:
        settings: the configuration, whose control user, management API and secrets are used.
        wanted: what to do.
        say: takes each line.

    Returns:
        Whether nothing is left that was to be done.

    Raises:
        ConfigErrors: the management API is not configured, the broker can't be reached or refuses, there is no such
            virtual host.
    """
    control, management = control_of(settings)
    control = replace(control, declared=replace(control.declared, secrets=secrets_of(settings)))
    try:
        return asyncio.run(_adopt(Adoption(control, ManagementApi(control, management)), wanted, say))
    except UpstreamError as error:
        raise ConfigErrors([ConfigError("oxproxy adopt", 0, "", str(error))]) from error


async def _adopt(adoption: Adoption, wanted: Wanted, say: Callable[[str], None]) -> bool:
    try:
        vhosts = await adoption.vhosts()
        if missing := sorted(set(wanted.vhosts).difference(vhosts)):
            seen = f'seen "{missing[0]}", expected one of {", ".join(sorted(vhosts))}'
            raise ConfigErrors([ConfigError("oxproxy adopt", 0, "--vhost", seen)])
        whole = True
        for vhost in sorted(set(wanted.vhosts) or vhosts):
            whole = await _adopt_vhost(adoption, vhost, wanted, say) and whole
        return whole
    finally:
        await adoption.close()


async def _adopt_vhost(adoption: Adoption, vhost: str, wanted: Wanted, say: Callable[[str], None]) -> bool:
    found = await adoption.find(vhost, {name.encode() for name in wanted.exchanges})
    left: list[Unadopted] = []
    for one in found:
        why = await _signed(adoption, one, wanted)
        say(f"{one}: {why or 'signed'}")
        if why:
            left.append(one)
    unsigned = sum(one.secret is None for one in left)
    say(
        f"vhost {vhost}: {len(found) - len(left)} bindings signed, {unsigned} left without a valid signature, "
        f"{len(left) - unsigned} left under a previous secret"
    )
    finished = not wanted.finish or await _finished(adoption, vhost, wanted, say)
    if wanted.dry_run:
        return finished
    return finished and not any(wanted.doubtful or not one.doubtful for one in left)


async def _finished(adoption: Adoption, vhost: str, wanted: Wanted, say: Callable[[str], None]) -> bool:
    """End the transition to the current destination tokens; answer whether it is ended."""
    if not await adoption.carriers(vhost):
        return True
    lacking = await adoption.lacking_tokens(vhost)
    for carrier, (kind, name) in lacking:
        shown = f"{kind} {name.decode(errors='replace')}"
        say(
            f"vhost {vhost}: exchange {carrier.decode(errors='replace')}: {shown} is bound under tokens of 0.1 or of a "
            "previous secret alone: not finished; every sidecar must run with the current secret first"
        )
    if lacking or wanted.dry_run:
        return not lacking
    old = await adoption.retire_tokens(vhost)
    say(f"vhost {vhost}: transition finished; running sidecars take away {old} bindings under old tokens")
    return True


async def _signed(adoption: Adoption, found: Unadopted, wanted: Wanted) -> str | None:
    """Sign a binding; say why it was not."""
    if found.doubtful and not wanted.doubtful:
        return "left, since no version of oxproxy leaves it so (--doubtful signs it)"
    if wanted.dry_run:
        return "would be signed"
    why = await adoption.sign(found)
    return None if why is None else f"left: {why}"
