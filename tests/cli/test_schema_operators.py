from __future__ import annotations

from pathlib import Path

import pytest

from proxy.cli.check import check_files
from tests.cli.test_schema import SCHEMAS, is_valid


@pytest.mark.parametrize(
    "arguments",
    [
        "x-?rk!=: [a, b]",
        "x-match: any, x-?rk=: [a, b]",
        "x-match: any, x-?rkta: [a.#, b.#]",
        "x-?rk!taci: [a, b]",
        "x-?hkex: [a, b]",
        "x-?hk!ex: [a, b]",
        "x-?hkexn: [a, b]",
        "x-?prex: [type, app_id]",
        "x-?pr!ex: [type, app_id]",
    ],
)
def test_the_schema_accepts_lists_of_values(arguments: str, tmp_path: Path) -> None:
    text = f"exchanges: [{{name: e, bindings: [{{queue: q, arguments: {{{arguments}}}}}]}}]"
    (tmp_path / "rules.yaml").write_text(text)
    assert check_files([tmp_path / "rules.yaml"], {}).errors == []
    assert is_valid(SCHEMAS["rules"], text)


@pytest.mark.parametrize("url", ["HTTP://127.0.0.1:15672", "Https://h", "' http://h'"])
def test_the_schema_accepts_every_accepted_url(url: str, tmp_path: Path) -> None:
    text = f"upstream: {{management: {url}}}"
    (tmp_path / "oxproxy.yaml").write_text(text)
    assert check_files([tmp_path / "oxproxy.yaml"], {}).errors == []
    assert is_valid(SCHEMAS["config"], text)
