"""Tests that the supported brokers are stated as they are tested."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from oxproxy.broker.versions import NEWEST, OLDEST, SUPPORTED, BrokerVersion
from tests.other_rabbitmq import RELEASES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "brokers.md").read_text()
TESTED = dict(re.findall(r"^\| (\d+\.\d+\.\d+) \| (\w+) \|", PAGE, re.MULTILINE))


def test_the_versions_of_the_matrix_are_listed() -> None:
    listed = {release: BrokerVersion("RabbitMQ", version).release for version, release in TESTED.items()}
    assert listed == RELEASES
    assert (min(RELEASES.values()), max(RELEASES.values())) == (OLDEST, NEWEST)


def test_the_first_page_names_the_supported_and_the_tested_versions() -> None:
    first_screen = " ".join((ROOT / "README.md").read_text().splitlines()[:20])
    *most, last = TESTED
    assert f"supports {SUPPORTED} and is" in first_screen
    assert f"with {', '.join(most)} and {last}." in first_screen
    assert f"supports {SUPPORTED}," in PAGE


@pytest.mark.parametrize("name", ["SECURITY.md", "docs/reference/compatibility.md"])
def test_pages_state_the_supported_versions_of_rabbitmq_and_python(name: str) -> None:
    text = (ROOT / name).read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert SUPPORTED.removeprefix("RabbitMQ ") in text
    assert f"CPython {project['requires-python'].removeprefix('>=')} or newer" in text


def test_compose_starts_a_supported_broker() -> None:
    [image] = re.findall(r"image: rabbitmq:([\d.]+)-management", (ROOT / "deploy/docker/compose.yaml").read_text())
    assert BrokerVersion("RabbitMQ", image).is_supported
