from __future__ import annotations

import pytest

from proxy.yamlfile.masking import masked


@pytest.mark.parametrize(
    "value", ["|\n      secret", "\n      secret", '"first\n      secret"', ">-\n      first\n      secret"]
)
def test_a_password_on_several_lines_is_masked_in_text_that_is_not_yaml(value: str) -> None:
    text = masked(f"brokers:\n  b:\n    password: {value}\n    username: me\n  bad: [\n")
    assert "secret" not in text
    assert "    username: me\n  bad: [\n" in text
