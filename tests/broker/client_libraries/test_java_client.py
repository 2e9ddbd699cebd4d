from __future__ import annotations

import subprocess

import pytest

from tests.broker.client_libraries.programs import PROGRAMS, Application, ApplicationTests

LIBRARIES = ":".join(f"/usr/share/java/{name}.jar" for name in ("amqp-client", "slf4j-api", "slf4j-nop"))


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Application:
    classes = tmp_path_factory.mktemp("java")
    command = ["javac", "-cp", LIBRARIES, "-d", str(classes), str(PROGRAMS / "Application.java")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Application(
        ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{LIBRARIES}", "Application"]
    )


class TestJavaClient(ApplicationTests):
    library = "Java client"
    product = "RabbitMQ"
    recovers = True
