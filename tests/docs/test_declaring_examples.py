"""Runs the examples of docs/reference/declaring.md through a running sidecar."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from urllib.parse import quote

import pika

from tests.broker.observed import Outside
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "reference" / "declaring.md").read_text()
#: the page that lists what the sidecar creates on the broker
LISTED = (DOCS / "explanation" / "declarations.md").read_text()
BEFORE, _, AFTER = TEXT.partition("\n## After a restart\n")


def run(text: str, names: dict[str, object]) -> tuple[int, str]:
    """Run the examples in a part of the page, except the one that sets the address. Return their number and the
    differences.
    """
    blocks = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    test = doctest.DocTestParser().get_doctest(blocks, names, "declaring.md", None, 0)
    test.examples = [example for example in test.examples if not example.source.startswith("address =")]
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    differences: list[str] = []
    runner.run(test, out=differences.append, clear_globs=False)
    names.update(test.globs)
    return len(test.examples), "".join(differences)


def check_broker_objects(outside: Outside) -> None:
    """Check what the pages state about the bindings on the broker."""
    exchange = outside.exchange("sales")
    is_topic = outside.broker.version < (3, 13)
    assert exchange["type"] == ("topic" if is_topic else "direct")
    assert exchange["arguments"].keys() == {"x-open-exchange", "x-oxproxy", "max-payload-size"}
    prefixes = {key[:14].decode() for _, _, key in outside.bindings("sales")}
    dot = "-" if is_topic else "."
    assert prefixes == {"x.o.p.e.n.x.b.".replace(".", dot), "x.o.p.e.n.x.q.".replace(".", dot)}
    assert all(f"`{prefix}`" in LISTED for prefix in prefixes)


def test_the_examples_are_correct_before_and_after_a_restart(broker: Broker, vhost: str) -> None:
    names: dict[str, object] = {}
    for part, least in ((BEFORE, 17), (AFTER, 4)):
        with Sidecar(broker) as sidecar:
            names["address"] = pika.URLParameters(f"amqp://guest:guest@{sidecar.address}/{quote(vhost, safe='')}")
            count, differences = run(part, names)
            connection = names["connection"]
            assert isinstance(connection, pika.BlockingConnection)
            connection.close()
            if part is BEFORE:
                check_broker_objects(Outside(broker, vhost))
        assert differences == ""
        assert count >= least
