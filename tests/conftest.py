"""Fixtures for all tests: a RabbitMQ for each pytest-xdist worker, and a virtual host for each test."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from oxproxy import values
from tests.broker.delivery.distance import Far, distant
from tests.private_broker import BrokerMissing, some_broker
from tests.rabbitmq import Broker

#: Markers of tests that need a service. Without the service they are skipped, or fail in CI.
SERVICES = ("broker", "spark")

# Hypothesis measures wall time, which depends on the other tests that run at the same time.
# In `make test`, every run tries the same examples, so that a new checkout does not fail by chance. `make test-matrix`
# tries others, with --hypothesis-profile=random. The profile "many" is for a test that is run by hand.
settings.register_profile("random", settings(), deadline=None)
settings.register_profile("many", settings(), deadline=None, max_examples=20_000, database=None)
settings.register_profile("oxproxy", settings(), deadline=None, derandomize=True)
settings.load_profile("oxproxy")


# jsonschema imports this library, if it is installed, for a format that no schema uses. The import takes over a second.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

# A shell starts background jobs with SIGINT ignored, which the processes started by tests would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use the broker, so that ``-m "not broker"`` excludes them.

    Workers of pytest-xdist take files in order. Files that use the broker take longest and therefore run first.
    """
    for item in items:
        if {"broker", "far"}.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.broker)
    if "PYTEST_XDIST_WORKER" in os.environ:
        long = {item.path for item in items if item.get_closest_marker("broker")}
        items.sort(key=lambda item: item.path not in long)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, turn the skip of a test that needs a service into a failure."""
    report = yield
    needs_service = any(item.get_closest_marker(name) for name in SERVICES)
    if report.skipped and needs_service and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow here: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def forgotten_secrets() -> Iterator[None]:
    """Forget the secrets that a test has read, since they would be masked in the errors of other tests."""
    before = set(values._SECRETS)
    yield
    values._SECRETS.intersection_update(before)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A RabbitMQ shared by all tests of a worker. Tests must not change its virtual host ``/`` or its settings."""
    try:
        with some_broker() as running:
            yield running
    except BrokerMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def vhost(broker: Broker) -> Iterator[str]:
    """A virtual host for one test. It is deleted afterwards with its contents."""
    name = f"test-{secrets.token_hex(6)}"
    broker.create_vhost(name)
    try:
        yield name
    finally:
        broker.delete_vhost(name)


@pytest.fixture(scope="session")
def distant_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command")
    try:
        with distant(tmp_path_factory.mktemp("authority")) as far:
            yield far
    except BrokerMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def far(distant_broker: Far) -> Far:
    """Another RabbitMQ with empty queues, shared by the tests of a worker, which may block or kill it for a time."""
    distant_broker.empty()
    return distant_broker


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted file system of 128 KiB."""
    mounted = tmp_path / "small"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(mounted)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system is not allowed here")
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)
