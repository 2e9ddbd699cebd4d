from __future__ import annotations

import json

from proxy.cli.check_formats import as_sarif
from proxy.cli.findings import ERROR, Finding


def test_file_names_in_sarif_are_uri_references() -> None:
    log = json.loads(as_sarif([Finding(ERROR, "my rules/100%#1,a.yaml", 1, 1, "", "wrong")], "1.0"))
    (result,) = log["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "my%20rules/100%25%231,a.yaml"
