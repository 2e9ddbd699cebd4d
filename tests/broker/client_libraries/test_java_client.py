from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.broker.client_libraries.programs import PROGRAMS, Application, ApplicationTests, through
from tests.broker.delivery.site import Site

SPRING = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "spring.md").read_text()
#: The bindings of the page.
BINDING = re.compile(r'new Binding\("(.+?)", DestinationType\.QUEUE, "(.+?)", "", Map\.of\("(.+?)", 1000\)\)')

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

    def test_the_example_for_spring_works_with_the_methods_that_spring_uses(
        self, application: Application, site: Site
    ) -> None:
        [(exchange, kind)] = re.findall(r'new CustomExchange\("(.+?)", "(.+?)"\)', SPRING)
        [(queue, source, argument)] = BINDING.findall(SPRING)
        assert (source, f'new Queue("{queue}")' in SPRING) == (exchange, True)
        [(target, header)] = re.findall(r'convertAndSend\("(.+?)", "".*?setHeader\("(.+?)", 2500\)', SPRING, re.DOTALL)
        assert target == exchange
        assert application.run("spring", through(site), exchange, kind, queue, argument, header) == [
            ["version", ".".join(map(str, site.broker.version))],
            ["confirmed", "1"],
            ["returned", "312", "orders", "order 10"],
            ["confirmed", "2"],
            ["delivered", "orders", "2500"],
        ]
