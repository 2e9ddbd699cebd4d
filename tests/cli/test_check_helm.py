"""Tests ``oxproxy check --values``: configuration and rules files in the values of the Helm chart."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.chart.readme import CHART
from tests.sidecar import oxproxy_here

VALUES = """\
replicaCount: 3
config:
  upstream:
    address: rabbitmq:5671
    tls: {ca: /etc/oxproxy/trust/ca.crt}
    control: {username: oxproxy}
  audit: null
rules:
  files:
    orders.yaml: |  # a comment
      # the orders
      vhost: shop
      queues: [big]
      brokers: {archive: {address: "a:1", username: u, password_env: NOWHERE, tls: {}}}
      exchanges:
        - name: orders
          bindings:
            - {queue: big, name: big, arguments: {"x-?hkv>= amount": 1000}}
      tests: orders_test.yaml
    orders_test.yaml: |
      tests:
        - name: a big order
          publish: {exchange: orders, headers: {amount: 2000}}
          expect: {queues: [big]}
"""


def check(folder: Path, text: str, *options: str, **environ: str) -> tuple[int, str, list[str]]:
    file = folder / "values.yaml"
    file.write_text(text)
    done = oxproxy_here("check", "--values", str(file), *options, **environ)
    return done.returncode, done.stdout, done.stderr.replace(f"{folder}/", "").splitlines()


def test_configuration_rules_and_tests_are_checked_without_the_files_of_the_pods(tmp_path: Path) -> None:
    status, out, errors = check(tmp_path, VALUES, "--strict", "--fail-under", "100")
    assert (status, errors) == (0, [])
    assert out.startswith("ok: 2 files, 1 exchange, 1 binding, 1 test; rules ")


def test_values_of_a_parent_chart_contain_those_of_the_chart(tmp_path: Path) -> None:
    indented = "".join(f"  {line}\n" for line in VALUES.splitlines())
    assert check(tmp_path, f"other: 1\noxproxy:\n{indented}", "--strict")[0] == 0


@pytest.mark.parametrize(
    ("written", "wrong", "error"),
    [
        ("    tls:", "    tsl:", "values.yaml:5:5: upstream.tsl: unknown key, expected one of"),
        ("      exchanges:", "      exchnages:", "values.yaml:15:7: exchnages: unknown key; did you mean exchanges?"),
        (
            '"x-?hkv>= amount": 1000',
            '"x-?hkv=> amount": 1000',
            'values.yaml:18:51: exchanges[0].bindings[0].arguments["x-?hkv=> amount"]: unknown operator x-?hkv=>',
        ),
        ("      # the orders", '      "orders', "values.yaml:"),
        (
            "  files:",
            "  more.yaml: |\n    queues: []\n  files:",
            "values.yaml:9:3: rules.more.yaml: got a rules file here",
        ),
        ("  files:", "  files: [a]\n  others:", "values.yaml:9:10: rules.files: got a list, expected a mapping"),
        (
            "    orders.yaml: |  # a comment",
            "    other.yaml: 1\n    orders.yaml: |",
            "values.yaml:10:17: rules.files.other",
        ),
        ("      tests: orders_test.yaml", "      tests: others_test.yaml", "values.yaml:19:14: tests: "),
    ],
)
def test_an_error_has_its_position_in_the_values(tmp_path: Path, written: str, wrong: str, error: str) -> None:
    status, _, errors = check(tmp_path, VALUES.replace(written, wrong))
    assert (status, errors[0][: len(error)]) == (2, error)


def test_a_failed_test_has_its_position_in_its_file(tmp_path: Path) -> None:
    status, _, errors = check(tmp_path, VALUES.replace("amount: 2000", "amount: 20"))
    assert (status, errors[0].partition(" tests")[0]) == (1, "orders_test.yaml:2:5:")


@pytest.mark.parametrize("text", ["", "replicaCount: 2\n", "- config\n"])
def test_a_file_without_values_of_the_chart_is_an_error(tmp_path: Path, text: str) -> None:
    assert check(tmp_path, text)[0] == 2


def test_variables_of_this_machine_do_not_override_the_values(tmp_path: Path) -> None:
    assert (
        check(tmp_path, VALUES, "--strict", OXPROXY_UPSTREAM__CONTROL__PASSWORD="hunter2", OXPROXY_LOG__LEVEL="x")[0]
        == 0
    )


def test_the_defaults_of_the_chart_have_no_errors() -> None:
    assert oxproxy_here("check", "-f", str(CHART / "values.yaml")).returncode == 0


def test_values_without_the_option_are_recognized(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(VALUES)
    done = oxproxy_here("check", str(tmp_path / "values.yaml"))
    assert done.returncode == 2
    assert done.stderr.endswith("got values of the Helm chart, expected a configuration or rules; use --values\n")


def test_missing_values_are_an_error(tmp_path: Path) -> None:
    done = oxproxy_here("check", "--values", str(tmp_path / "none.yaml"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{tmp_path}/none.yaml: can't be read: No such file or directory\n"
