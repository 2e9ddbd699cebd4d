"""``oxproxy schema``: the JSON Schema of the configuration file or of rules files, for editors.

The configuration's is made of the keys that `config.settings` declares; that of rules files lists the keys that the
readers in `rules` know. A schema accepts more than ``oxproxy check``, never less.

Source: JSON Schema, draft 2020-12.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from proxy.cli.console import DONE, print_line
from proxy.config.section_reader import members
from proxy.config.settings import Settings
from proxy.rules.evaluation import OUTCOMES
from proxy.rules.field_values import MAX_NAME_BYTES
from proxy.rules.message import TEXT_PROPERTIES
from proxy.rules.schema import DELIVERIES, OPEN, TYPES

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_Schema = dict[str, object]
_NUMBERS = ("delivery_mode", "priority", "timestamp", "expiration")

_TEXT: _Schema = {"type": "string"}
_NAME: _Schema = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_BYTES}
_NAMES: _Schema = {"type": "array", "items": _NAME}
_TABLE: _Schema = {"type": "object"}
_TIME: _Schema = {"type": "string", "description": "a time with its zone such as 2026-11-21T08:00:00Z"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments."""
    parser.add_argument("format", choices=("config", "rules"), help="the configuration file, or rules files")


def run(options: argparse.Namespace) -> int:
    """Print the schema."""
    schema = config_schema() if options.format == "config" else rules_schema()
    print_line(json.dumps(schema, indent=2, ensure_ascii=False))
    return DONE


def config_schema() -> _Schema:
    """Return the schema of the configuration file."""
    return {"$schema": _DRAFT, "title": "oxproxy configuration", **_section(Settings)}


def _section(kind: type[DataclassInstance]) -> _Schema:
    properties: _Schema = {}
    for member in members(kind):
        if member.key is not None:
            properties[member.name] = {**member.key.kind.schema, "description": member.key.doc}
        elif member.section is not None:
            inner = _section(member.section)
            if member.several:
                inner = {"type": "array", "items": inner, "minItems": 1}
            properties[member.name] = {"anyOf": [inner, {"type": "null"}]} if member.optional else inner
    return _closed(properties)


def rules_schema() -> _Schema:
    """Return the schema of rules files."""
    queue: _Schema = {
        "anyOf": [_NAME, _closed({"name": _NAME, "arguments": _TABLE}, "name")],
        "description": "declared durable; one that exists is taken as it is",
    }
    return {
        "$schema": _DRAFT,
        "title": "oxproxy rules",
        **_closed(
            {
                "vhost": {**_NAME, "description": "virtual host that this file is about; default: /"},
                "timezone": {**_TEXT, "description": "local time of dtl operators, such as Europe/Berlin"},
                "queues": {"type": "array", "items": queue},
                "exchanges": {"type": "array", "items": _exchange()},
                "brokers": {"type": "object", "additionalProperties": _broker()},
                "addresses": {"type": "array", "items": _address()},
                "tests": {"type": "array", "items": _test()},
            }
        ),
    }


def _exchange() -> _Schema:
    binding = _closed({"queue": _NAME, "exchange": _NAME, "name": _NAME, "routing_key": _TEXT, "arguments": _TABLE})
    binding["oneOf"] = [{"required": ["queue"]}, {"required": ["exchange"]}]
    return _closed(
        {
            "name": _NAME,
            "type": {"enum": list(TYPES), "default": OPEN},
            "delivery": {"enum": list(DELIVERIES), "default": DELIVERIES[0]},
            "carrier": {**_NAME, "description": "exchange on the broker that carries the messages"},
            "unmatched": {"enum": ["pass"], "description": "what no binding routes goes to the broker's own exchange"},
            "arguments": {**_TABLE, "description": "filters and alternate-exchange"},
            "bindings": {"type": "array", "items": binding},
        },
        "name",
    )


def _broker() -> _Schema:
    tls = _closed({"ca": _TEXT, "certificate": _TEXT, "key": _TEXT, "server_name": _TEXT})
    return _closed(
        {
            "address": _TEXT,
            "tls": tls,
            "username": _TEXT,
            "password": _TEXT,
            "password_env": _TEXT,
            "password_file": _TEXT,
            "vhost": _TEXT,
            "deadline": _TEXT,
            "unconfirmed": {"type": "integer"},
            "unconfirmed_mib": {"type": "integer"},
        },
        "address",
    )


def _address() -> _Schema:
    hosts = {"type": "array", "items": _TEXT}
    properties = {"name": _TEXT, "pattern": _TEXT, "translation": _TEXT, "hosts": hosts}
    return _closed(properties, "pattern", "translation")


def _test() -> _Schema:
    properties: _Schema = dict.fromkeys(TEXT_PROPERTIES, _TEXT)
    properties |= {name: {"type": ["integer", "string"]} for name in _NUMBERS}
    publish = _closed(
        {
            "exchange": _TEXT,
            "routing_key": _TEXT,
            "headers": _TABLE,
            "properties": _closed(properties),
            "body_size": {"type": "integer", "minimum": 0},
        },
        "exchange",
    )
    expect = _closed(
        {
            "queues": _NAMES,
            "exchanges": _NAMES,
            "remotes": _NAMES,
            "outcome": {"enum": list(OUTCOMES)},
            "error": _TEXT,
        }
    )
    test: _Schema = {"name": _TEXT, "publish": publish, "at": _TIME, "queues": _NAMES, "expect": expect}
    return _closed(test, "name", "publish", "expect")


def _closed(properties: _Schema, *required: str) -> _Schema:
    """Return the schema of a mapping with these keys and no others."""
    schema: _Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = list(required)
    return schema
