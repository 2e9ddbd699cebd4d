"""The process of ``oxproxy serve``: reads all files, and then runs a sidecar."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import structlog

from oxproxy.app.exit_status import EXIT_BROKEN, EXIT_FAULTY
from oxproxy.config.loader import load_settings, rules_files
from oxproxy.errors import ConfigError, ConfigErrors
from oxproxy.garbage import without_collection
from oxproxy.observe.logs import configure
from oxproxy.rules.loader import load_rules

_log = structlog.get_logger(__name__)


def run(config: Path, environ: Mapping[str, str]) -> int:
    """Run the sidecar until SIGTERM or SIGINT.

    Args:
        environ: environment, for overrides and passwords.

    Returns:
        The exit status: 0 drained; 1 internal error; 2 invalid configuration or rules, an address that can't be bound,
        or a refusal by the broker.
    """
    configure()
    try:
        return _run_sidecar(config, environ)
    except (ConfigError, ConfigErrors) as errors:
        sys.stderr.write(f"{errors}\n")
        return EXIT_FAULTY
    except Exception as error:  # noqa: BLE001 -- the last place that can log why the process exits
        _log.error("exiting after an unexpected error", error=f"{type(error).__name__}: {error}", exc_info=error)
        return EXIT_BROKEN


def _run_sidecar(config: Path, environ: Mapping[str, str]) -> int:
    settings, warnings = load_settings(config, environ)
    loaded = load_rules(rules_files(settings))
    failures = loaded.failures()
    if failures:
        sys.stderr.write("".join(f"{failure}\n" for failure in failures))
        return EXIT_FAULTY
    # Imported here, so that errors in files are reported without the time that these imports take.
    with without_collection():  # modules are never freed
        import asyncio

        from oxproxy.app.sidecar import Sidecar

    configure(settings.log.level, settings.log.format)
    for warning in (*warnings, *loaded.warnings):
        _log.warning("configuration", text=str(warning))
    try:
        import uvloop
    except ImportError:  # not available on this platform; the standard library's loop is slower but equivalent
        runner = asyncio.Runner()
    else:
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    with runner:
        return runner.run(Sidecar(settings, loaded, environ).serve())
