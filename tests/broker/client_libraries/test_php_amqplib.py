from __future__ import annotations

import pytest

from tests.broker.client_libraries.programs import PROGRAMS, Application, ApplicationTests


@pytest.fixture(scope="module")
def application() -> Application:
    return Application(["php", PROGRAMS / "application.php"])


class TestPhpAmqplib(ApplicationTests):
    library = "php-amqplib"
    product = "AMQPLib"
    limits_frames = False
