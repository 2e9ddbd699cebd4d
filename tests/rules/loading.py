"""Loads rules from strings, one string per file: ``a.yaml``, ``b.yaml`` and so on."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from textwrap import dedent

import pytest

from oxproxy.errors import ConfigErrors
from oxproxy.rules.explain import ExplainRequest, read_question
from oxproxy.rules.loader import LoadedRules, compile_rules


def load(*texts: str) -> LoadedRules:
    """Load strings as rules files."""
    return compile_rules(
        [(f"{string.ascii_lowercase[index]}.yaml", dedent(text).encode()) for index, text in enumerate(texts)]
    )


def faults(*texts: str) -> list[str]:
    """Load invalid strings; return all errors."""
    with pytest.raises(ConfigErrors) as raised:
        load(*texts)
    return str(raised.value).splitlines()


def message_request(data: bytes, source: str) -> ExplainRequest:
    """Read a message to be explained."""
    question = read_question(data, source)
    assert isinstance(question, ExplainRequest)
    return question


def by_line(messages: Iterable[str]) -> list[str]:
    """Return the messages without the column numbers, which every message must have."""
    parted = [re.fullmatch(r"([^:]+:\d+):[1-9]\d*(: .*)", message, re.DOTALL) for message in messages]
    return ["".join(message.groups()) for message in parted if message is not None]


def warnings(*texts: str) -> list[str]:
    """Load strings; return the warnings."""
    return [str(warning) for warning in load(*texts).warnings]


def exchange(*lines: str) -> str:
    """A file with the exchange ``e``, whose definition contains these further lines."""
    return "exchanges:\n  - name: e\n" + "".join(f"    {line}\n" for line in lines)


def binding(arguments: str, kind: str = "x-open") -> str:
    """A file with one exchange and one binding, whose arguments are on line 4."""
    return exchange(f"type: {kind}", f"bindings: [{{queue: q, arguments: {arguments}}}]")
