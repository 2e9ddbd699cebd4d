"""One process of ``oxproxy serve``: a sidecar, a supervisor of workers, or a check of all files.

A supervisor and a check import only what they need. Compared with the imports of a sidecar, those of a supervisor take
a third of the time, and those of a check take half of the time.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from proxy.app.workers import EXIT_BROKEN, EXIT_FAULTY, EXIT_OK, Workers, WorkerSlot
from proxy.config.loader import STANDARD_INPUT, load_settings, rules_files
from proxy.config.settings import Settings
from proxy.errors import ConfigError, ConfigErrors
from proxy.garbage import without_collection
from proxy.observe.logs import configure
from proxy.yamlfile.document import ConfigWarning

_log = structlog.get_logger(__name__)


def run(config: Path, environ: Mapping[str, str], slot: WorkerSlot | None = None, dry_run: bool = False) -> int:
    """Run the sidecar until SIGTERM or SIGINT.

    Args:
        environ: environment, for overrides and passwords.
        slot: identifies this process among several workers; None for a single process.
        dry_run: stop after all files have been read and checked.

    Returns:
        The exit status: 0 drained; 1 internal error; 2 invalid configuration or rules, an address that can't be bound,
        or a refusal by the broker.
    """
    configure()
    try:
        settings, warnings = load_settings(config, environ)
        if slot is None and settings.workers > 1 and not dry_run:
            return _run_workers(config, settings)
        return _run_sidecar(settings, warnings, environ, slot, dry_run)
    except (ConfigError, ConfigErrors) as errors:
        sys.stderr.write(f"{errors}\n")
        return EXIT_FAULTY
    except Exception as error:  # noqa: BLE001 -- the last place that can log why the process exits
        _log.error("exiting after an unexpected error", error=f"{type(error).__name__}: {error}", exc_info=error)
        return EXIT_BROKEN


def _run_workers(config: Path, settings: Settings) -> int:
    if config == STANDARD_INPUT:
        message = f"got {settings.workers}, expected 1: several workers can't read standard input"
        raise settings.fault("workers", message)
    configure(settings.log.level, settings.log.format)
    return Workers(config, settings).serve()


def _run_sidecar(
    settings: Settings,
    warnings: Sequence[ConfigWarning],
    environ: Mapping[str, str],
    slot: WorkerSlot | None,
    dry_run: bool,
) -> int:
    from proxy.rules.loader import load_rules

    loaded = load_rules(rules_files(settings))
    failures = loaded.failures()
    if failures:
        sys.stderr.write("".join(f"{failure}\n" for failure in failures))
        return EXIT_FAULTY
    if dry_run:
        from proxy.app.composition import remote_brokers
        from proxy.net.tls_config import SidecarTls

        SidecarTls(settings).read(remote_brokers(loaded, environ, settings.listen_addresses))
        return EXIT_OK
    with without_collection():  # modules are never freed
        import asyncio

        from proxy.app.sidecar import Sidecar

    configure(settings.log.level, settings.log.format)
    if slot is not None:
        structlog.contextvars.bind_contextvars(worker=slot.number)
    for warning in (*warnings, *loaded.warnings):
        _log.warning("configuration", text=str(warning))
    try:
        import uvloop
    except ImportError:  # not available on this platform; the standard library's loop is slower but equivalent
        runner = asyncio.Runner()
    else:
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    with runner:
        return runner.run(Sidecar(settings, loaded, environ, slot).serve())
