"""``oxproxy adopt``: signs bindings left on the broker by earlier versions, or by sidecars with a previous secret."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace
from pathlib import Path

from proxy.app.composition import secrets_of
from proxy.broker.adoption import Adoption, UnsignedBinding
from proxy.broker.management_api import ManagementApi
from proxy.cli.cleanup import control_settings
from proxy.cli.console import DONE, NO, print_line, read_settings
from proxy.errors import ConfigError, ConfigErrors, UpstreamError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", type=Path, required=True, help="configuration file")
    parser.add_argument(
        "--vhost", metavar="NAME", action="append", default=[], help="only this virtual host; can be repeated"
    )
    parser.add_argument(
        "--exchange", metavar="NAME", action="append", default=[], help="only this exchange; can be repeated"
    )
    parser.add_argument("--dry-run", action="store_true", help="list without changes")
    parser.add_argument(
        "--doubtful", action="store_true", help="also sign bindings whose signature matches no configured secret"
    )
    parser.add_argument(
        "--finish",
        action="store_true",
        help="then remove the tokens of version 0.1 and of previous secrets",
    )


def run(options: argparse.Namespace) -> int:
    """List bindings that the current secret did not sign, sign them, and end the transition with ``--finish``.

    Returns NO if something could not be done.

    Raises:
        ConfigErrors: the management API is not configured, the broker is unreachable or refuses, there is no such
            virtual host.
    """
    settings = read_settings(options.config)
    control, management = control_settings(settings)
    control = replace(control, declared=replace(control.declared, secrets=secrets_of(settings)))
    try:
        complete = asyncio.run(_adopt(Adoption(control, ManagementApi(control, management)), options))
    except UpstreamError as error:
        raise ConfigErrors([ConfigError("oxproxy adopt", 0, "", str(error))]) from error
    return DONE if complete else NO


async def _adopt(adoption: Adoption, options: argparse.Namespace) -> bool:
    try:
        vhosts = await adoption.vhosts()
        if missing := sorted(set(options.vhost).difference(vhosts)):
            seen = f'seen "{missing[0]}", expected one of {", ".join(sorted(vhosts))}'
            raise ConfigErrors([ConfigError("oxproxy adopt", 0, "--vhost", seen)])
        complete = True
        for vhost in sorted(set(options.vhost) or vhosts):
            complete = await _adopt_vhost(adoption, vhost, options) and complete
        return complete
    finally:
        await adoption.close()


async def _adopt_vhost(adoption: Adoption, vhost: str, options: argparse.Namespace) -> bool:
    bindings = await adoption.find(vhost, {name.encode() for name in options.exchange})
    left: list[UnsignedBinding] = []
    for binding in bindings:
        reason = await _sign(adoption, binding, options)
        print_line(f"{binding}: {reason or 'signed'}")
        if reason:
            left.append(binding)
    unsigned = sum(binding.secret is None for binding in left)
    print_line(
        f"vhost {vhost}: {len(bindings) - len(left)} bindings signed, {unsigned} left without a valid signature, "
        f"{len(left) - unsigned} left under a previous secret"
    )
    finished = not options.finish or await _finish(adoption, vhost, options.dry_run)
    if options.dry_run:
        return finished
    return finished and not any(options.doubtful or not binding.foreign_signature for binding in left)


async def _finish(adoption: Adoption, vhost: str, dry_run: bool) -> bool:
    """End the transition to the current destination tokens; return whether it is ended."""
    if not await adoption.carriers(vhost):
        return True
    lacking = await adoption.lacking_tokens(vhost)
    for carrier, (kind, name) in lacking:
        destination = f"{kind} {name.decode(errors='replace')}"
        print_line(
            f"vhost {vhost}: exchange {carrier.decode(errors='replace')}: {destination} is bound under tokens of 0.1 "
            "or of a previous secret only: not finished; every sidecar must run with the current secret first"
        )
    if lacking or dry_run:
        return not lacking
    old = await adoption.retire_tokens(vhost)
    print_line(f"vhost {vhost}: transition finished; running sidecars remove {old} bindings under old tokens")
    return True


async def _sign(adoption: Adoption, binding: UnsignedBinding, options: argparse.Namespace) -> str | None:
    """Sign a binding; return why it was not signed."""
    if binding.foreign_signature and not options.doubtful:
        return "not signed: no version of oxproxy creates such a binding (--doubtful signs it)"
    if options.dry_run:
        return "would be signed"
    reason = await adoption.sign(binding)
    return None if reason is None else f"left: {reason}"
