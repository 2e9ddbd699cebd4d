"""``oxproxy schema``: prints the JSON Schema of the configuration file or of rules files, for editors.

The schemas are generated from the models that read these files. A schema accepts every file that ``oxproxy check``
accepts, and also some files that the command rejects.
"""

from __future__ import annotations

import argparse
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from oxproxy.cli.console import DONE, print_json
from oxproxy.config.settings import Settings
from oxproxy.rules.schema import RulesModel
from oxproxy.yamlfile.hosts import HostPort
from oxproxy.yamlfile.models import FileModel


class _Schema(GenerateJsonSchema):
    """Pydantic's schema, with defaults as written in a file and without titles that repeat names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False, since the title would only repeat the key."""
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Omit a default that can't be written in a file: a secret, a list of sections, or None if null is invalid."""
        default = _written(schema.get("default"))
        described = self.generate_inner(schema["schema"])
        nullable = {"type": "null"} in described.get("anyOf", ())
        return described if default is None and not nullable else {**described, "default": default}


def _written(default: object) -> object:
    if isinstance(default, float):
        return f"{default:g}s"  # only durations are floats
    if isinstance(default, HostPort):
        return str(default)
    if isinstance(default, bytes):
        return default.decode() or None
    if isinstance(default, tuple):
        return [_written(item) for item in default]
    return default if isinstance(default, (str, int)) else None


def json_schema(model: type[FileModel], title: str) -> dict[str, object]:
    """Return the JSON Schema (draft 2020-12) of one kind of file."""
    schema = model.model_json_schema(schema_generator=_Schema)
    for section in (schema, *schema.get("$defs", {}).values()):
        section.pop("title", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": title}


_FILES: dict[str, tuple[type[FileModel], str]] = {
    "config": (Settings, "oxproxy configuration"),
    "rules": (RulesModel, "oxproxy rules"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("format", choices=_FILES, help="file format")


def run(options: argparse.Namespace) -> int:
    print_json(json_schema(*_FILES[options.format]))
    return DONE
