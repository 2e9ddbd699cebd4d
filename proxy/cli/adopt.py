"""``oxproxy adopt``: signs bindings on the broker that were created by earlier versions or with a previous secret."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Collection, Iterable

from proxy.broker.adoption import Adoption, UnsignedBinding
from proxy.broker.connection import ControlSettings
from proxy.broker.management_api import ManagementApi
from proxy.cli.cleanup import add_broker_arguments, control_of
from proxy.cli.commands import add_repeatable
from proxy.cli.console import DONE, NO, print_json, print_line, read_settings
from proxy.errors import ConfigError, ConfigErrors, UpstreamError
from proxy.values import counted, describe, shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_broker_arguments(parser)
    add_repeatable(parser, "--exchange", "NAME", "only this exchange")
    parser.add_argument("--dry-run", action="store_true", help="list the bindings without changing them")
    parser.add_argument(
        "--doubtful", action="store_true", help="also sign bindings whose signature matches no configured secret"
    )
    parser.add_argument(
        "--finish",
        action="store_true",
        help="afterwards, remove tokens created by version 0.1 or with previous secrets",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """List and sign bindings that are not signed with the current secret; with ``--finish``, end the transition."""
    settings = read_settings(options.config)
    control, management = control_of(settings)
    try:
        complete = asyncio.run(_adopt(control, ManagementApi(control, management), options))
    except UpstreamError as error:
        raise ConfigErrors([ConfigError("oxproxy adopt", 0, "", str(error))]) from error
    return DONE if complete else NO


async def _adopt(control: ControlSettings, management: ManagementApi, options: argparse.Namespace) -> bool:
    try:
        vhosts = await management.vhosts()
        _check_known("--vhost", options.vhost, vhosts)
        adoptions = [Adoption(control, management, vhost) for vhost in sorted(set(options.vhost) or vhosts)]
        carriers = {shown(carrier) for adoption in adoptions for carrier in await adoption.carriers()}
        _check_known("--exchange", options.exchange, carriers)
        adopted = [await _adopt_vhost(adoption, options) for adoption in adoptions]
    finally:
        await management.close()
    if options.json:
        print_json({"vhosts": adopted})
    return all(vhost["complete"] for vhost in adopted)


def _check_known(option: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise `ConfigErrors` if an option names something that does not exist on the broker."""
    for name in names:
        if name not in known:
            text = f'got "{name}", expected one of {", ".join(sorted(known)) or "none"}'
            raise ConfigErrors([ConfigError("oxproxy adopt", 0, option, text)])


async def _adopt_vhost(adoption: Adoption, options: argparse.Namespace) -> dict[str, object]:
    """Sign the bindings in a virtual host and return the results; print each result unless JSON is requested."""
    vhost = adoption.vhost
    print_text: Callable[[str], None] = (lambda _: None) if options.json else print_line
    bindings = await adoption.find({name.encode() for name in options.exchange})
    listed: list[dict[str, object]] = []
    left: list[UnsignedBinding] = []
    try:
        for binding in bindings:
            reason = await _sign(adoption, binding, options)
            print_text(f"{binding}: {reason or 'signed'}")
            listed.append({**binding.as_json(), "signed": reason is None, "left": reason})
            if reason:
                left.append(binding)
    finally:
        await adoption.close()
    unsigned = sum(binding.secret is None for binding in left)
    print_text(
        f"vhost {vhost}: {counted(len(bindings) - len(left), 'binding')} signed, "
        f"{unsigned} still without a valid signature, {len(left) - unsigned} still signed with a previous secret"
    )
    finished, notes = await _finish(adoption, options) if options.finish else (True, [])
    for note in notes:
        print_text(f"vhost {vhost}: {note}")
    signed = options.dry_run or not any(options.doubtful or not binding.foreign_signature for binding in left)
    return {"vhost": vhost, "bindings": listed, "transition": notes, "complete": finished and signed}


async def _finish(adoption: Adoption, options: argparse.Namespace) -> tuple[bool, list[str]]:
    """End the transition to the current destination tokens. Return whether it has ended, and notes for the operator."""
    if not await adoption.carriers():
        return True, []
    lacking = await adoption.lacking_tokens()
    if lacking or options.dry_run:
        return not lacking, [
            f"exchange {shown(carrier)}: {describe(destination)} is bound only "
            "with tokens from version 0.1 or a previous secret, so the transition is not finished: every sidecar must "
            "first run with the current secret"
            for carrier, destination in lacking
        ]
    old = await adoption.retire_tokens()
    return True, [f"transition finished; running sidecars will remove {counted(old, 'binding')} with old tokens"]


async def _sign(adoption: Adoption, binding: UnsignedBinding, options: argparse.Namespace) -> str | None:
    """Sign a binding; return the reason if it was not signed."""
    if binding.foreign_signature and not options.doubtful:
        return "not signed: it is forged, or its secret was lost (--doubtful signs it)"
    if options.dry_run:
        return "would be signed"
    reason = await adoption.sign(binding)
    return None if reason is None else f"not signed: {reason}"
