"""Writes the generated files of the chart: ``python -m deploy.chart.build``.

In the schema of the values, the parts for the configuration and for rules files are generated from the models that read
these files. A chart can read only its own files, so the recording rules, alerts and dashboards of all installations
are in the chart and edited there (`deploy.grafana.build` writes the dashboards).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from deploy.chart.readme import CHART, readme
from oxproxy.cli.schema import json_schema
from oxproxy.config.settings import Settings
from oxproxy.rules.schema import TOP_KEYS

#: The text of a rules file: every line that begins with a letter has a known key. `oxproxy check --values` checks more.
_RULES = rf"^(?:(?:[^A-Za-z\r\n][^\r\n]*|(?:{'|'.join(TOP_KEYS)})[ \t]*:[^\r\n]*)?(?:\r?\n|$))*$"


def made() -> dict[Path, str]:
    """Return every generated file of the chart, with its text."""
    return {CHART / "README.md": readme(), CHART / "values.schema.json": values_schema()}


def values_schema() -> str:
    """Return the schema of the values: what is written by hand, with the generated parts replaced."""
    schema: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    config: dict[str, Any] = json_schema(Settings, "")
    schema["definitions"] = {name: _for_helm(section) for name, section in config["$defs"].items()}
    # Without secrets, the chart generates one.
    secrets = schema["definitions"]["DeclaredSection"]["properties"]["secrets"]
    secrets |= {"type": ["array", "null"], "minItems": 0}
    # Sections without a value are ignored by the chart.
    sections = {
        name: {"anyOf": [_for_helm(section), {"type": "null"}]} for name, section in config["properties"].items()
    }
    schema["properties"]["config"] = {"type": "object", "additionalProperties": False, "properties": sections}
    schema["properties"]["rules"]["properties"]["files"]["additionalProperties"] = {"type": "string", "pattern": _RULES}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _for_helm(section: Any) -> Any:  # JSON of any shape
    """Return a schema for the draft that Helm supports, without texts for editors."""
    if isinstance(section, list):
        return [_for_helm(item) for item in section]
    if not isinstance(section, dict):
        return section
    kept = {key: value for key, value in section.items() if key not in ("default", "description", "title")}
    if "properties" in section:  # names of keys, which may be the same as those of texts
        kept["properties"] = {name: _for_helm(value) for name, value in section["properties"].items()}
    reference = str(kept.get("$ref", "")).replace("#/$defs/", "#/definitions/")
    return (
        {"$ref": reference}
        if reference
        else {key: value if key == "properties" else _for_helm(value) for key, value in kept.items()}
    )


def main() -> int:
    for path, text in made().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
