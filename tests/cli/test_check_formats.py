"""Tests `oxproxy check` in pipelines: exit statuses, and output in machine-readable formats."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from oxproxy.cli import main as cli
from oxproxy.cli.check_formats import as_sarif
from oxproxy.cli.findings import ERROR, Finding
from oxproxy.cli.main import main
from tests.certificates import Authority

RULES = """\
exchanges:
  - name: e
    bindings:
      - {queue: q, name: first, arguments: {type: report}}
      - {queue: r, name: "second, 100%", arguments: {"x-?hkv> n": 5}}
      - {queue: never, arguments: {x-match: any}}
tests:
  - {name: "reports <go> to q", publish: {exchange: e, headers: {type: report}}, expect: {queues: [q]}}
"""
FAILING = RULES + "  - {name: wrong, publish: {exchange: e, headers: {n: 5}}, expect: {queues: [r]}}\n"
BROKEN = "exchanges:\n  - {name: 5}\n  - {nam: '<a>'}\n"


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules,1.yaml"
    path.write_text(RULES)
    return path


def run_check(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["check", *map(str, arguments)])
    return status, *capsys.readouterr()


def test_warnings_fail_only_with_the_option(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run_check(capsys, rules)
    assert (status, out[:3], err.count("warning: ")) == (0, "ok:", 1)
    status, out, err = run_check(capsys, "--strict", rules)
    assert (status, out) == (1, "")
    assert err.endswith("\n1 warning, which --strict does not allow\n")
    assert json.loads(run_check(capsys, "--strict", "--json", rules)[1])["ok"] is False


@pytest.mark.parametrize(("least", "status"), [("33.3", 0), ("33.4", 1), ("100", 1), ("0", 0)])
def test_coverage_below_the_limit_fails(
    rules: Path, capsys: pytest.CaptureFixture[str], least: str, status: int
) -> None:
    exit_status, _, err = run_check(capsys, "--fail-under", least, rules)
    assert exit_status == status
    assert ("tests cover 33.33 % of the bindings, expected" in err) == bool(status)


@pytest.mark.parametrize("arguments", [["--fail-under", "101"], ["--fail-under", "much"], ["--format", "yaml"]])
def test_invalid_options_are_usage_errors(rules: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", *arguments, str(rules)])
    assert ended.value.code == 2


@pytest.mark.parametrize(("text", "status"), [(RULES, 0), (FAILING, 1), (BROKEN, 2)])
@pytest.mark.parametrize("form", ["json", "github", "junit", "sarif"])
def test_the_status_is_the_same_in_every_format_and_standard_error_is_empty(
    rules: Path, capsys: pytest.CaptureFixture[str], form: str, text: str, status: int
) -> None:
    rules.write_text(text)
    exit_status, out, err = run_check(capsys, "--format", form, rules)
    assert (exit_status, err) == (status, "")
    assert out.endswith("\n")


def test_github_annotations_have_file_and_line_and_are_one_line_each(
    rules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules.write_text(FAILING)
    _, out, _ = run_check(capsys, "--format", "github", rules)
    warning, test = out.splitlines()
    place = str(rules).replace(",", "%2C")
    assert warning.startswith(f"::warning file={place},line=6,col=9,title=oxproxy check::")
    assert test.startswith(
        f"::error file={place},line=9,col=5,title=oxproxy check::tests[1]: wrong: queues: expected r"
    )
    assert "%0A" in test
    assert "second, 100%25" in test
    _, out, _ = run_check(capsys, "--format", "github", "--strict", rules)
    assert out.startswith("::error ")


def test_junit_has_a_case_for_each_test_and_for_each_error(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules.write_text(FAILING)
    (suite,) = ET.fromstring(run_check(capsys, "--format", "junit", rules)[1])
    assert suite.attrib == {"name": "oxproxy check", "tests": "2", "failures": "1", "errors": "0"}
    good, wrong = suite
    assert (good.attrib["name"], good.attrib["classname"], list(good)) == ("reports <go> to q", str(rules), [])
    (failure,) = wrong
    assert failure.attrib["message"].startswith("wrong: queues: expected r as well")
    assert failure.text is not None
    assert "mismatch  x-?hkv> n: 5, got 5" in failure.text
    rules.write_text(BROKEN)
    (suite,) = ET.fromstring(run_check(capsys, "--format", "junit", rules)[1])
    assert [child.tag for case in suite for child in case] == ["error"] * int(suite.attrib["errors"])
    assert "got the number 5" in ET.tostring(suite, encoding="unicode")


def test_sarif_has_a_result_with_its_region_for_each_finding(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules.write_text(FAILING)
    log = json.loads(run_check(capsys, "--format", "sarif", rules)[1])
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert run["tool"]["driver"]["version"]
    known = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert [(result["ruleId"], result["level"]) for result in run["results"]] == [
        ("warning", "warning"),
        ("test", "error"),
    ]
    assert {result["ruleId"] for result in run["results"]} <= known
    (place,) = run["results"][1]["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": str(rules)},
        "region": {"startLine": 9, "startColumn": 5},
    }


def test_json_contains_the_evaluation_of_a_failing_test_and_the_coverage(
    rules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules.write_text(FAILING)
    document = json.loads(run_check(capsys, "--format", "json", rules)[1])
    (failure,) = document["failures"]
    assert "mismatch  x-?hkv> n: 5, got 5" in failure["walk"]
    assert document["coverage"] == 33.33


def test_file_names_in_sarif_are_uri_references() -> None:
    log = json.loads(as_sarif([Finding(ERROR, "my rules/100%#1,a.yaml", 1, 1, "", "wrong")], "1.0"))
    (result,) = log["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "my%20rules/100%25%231,a.yaml"


CONFIG = """\
listen:
  - {address: 127.0.0.1:5673, tls: {certificate: cert.pem, key: key.pem, client_ca: ca.pem}}
upstream:
  address: rabbit.example:5671
  tls: {ca: ca.pem, certificate: cert.pem, key: key.pem}
  control: {username: u, password_env: HOME}
rules: [rules.yaml]
declared: {secrets: [{file: secret}]}
"""
WITH_TLS = """\
brokers:
  far:
    address: far.example:5671
    tls: {ca: far-ca.pem, certificate: far.pem, key: far.key}
    username: u
    password_env: HOME
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def folder(authority: Authority, tmp_path: Path) -> Path:
    """A directory with valid files."""
    for name, prefix in (("sidecar", ""), ("mover", "far")):
        certificate, key = authority.certificate(name)
        (tmp_path / (f"{prefix}.pem" if prefix else "cert.pem")).write_bytes(certificate.read_bytes())
        (tmp_path / (f"{prefix}.key" if prefix else "key.pem")).write_bytes(key.read_bytes())
    for name in ("ca.pem", "far-ca.pem"):
        (tmp_path / name).write_bytes(authority.ca.read_bytes())
    (tmp_path / "oxproxy.yaml").write_text(CONFIG)
    (tmp_path / "rules.yaml").write_text(WITH_TLS)
    (tmp_path / "secret").write_bytes(bytes(32))
    return tmp_path


def check_tls(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, list[str]]:
    status = cli.main(["check", *more, str(folder / "oxproxy.yaml")])
    captured = capsys.readouterr()
    lines = (captured.out if more else captured.err).replace(f"{folder}/", "")
    return status, lines.splitlines()


def test_valid_files_are_accepted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_tls(folder, capsys) == (0, [])


def test_unusable_files_are_errors_at_their_keys(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "ca.pem").write_text("none")
    (folder / "far-ca.pem").write_text("none")
    (folder / "key.pem").write_bytes((folder / "far.key").read_bytes())
    no_authority = "no PEM block CERTIFICATE, expected CA certificates"
    no_pair = "key.pem: expected the private key of the certificate in cert.pem"
    assert check_tls(folder, capsys) == (
        2,
        [
            f"oxproxy.yaml:2:60: listen[0].tls.key: {no_pair}",
            f"oxproxy.yaml:5:9: upstream.tls.ca: ca.pem: {no_authority}",
            f"rules.yaml:4:11: brokers.far.tls.ca: far-ca.pem: {no_authority}",
        ],
    )


def test_missing_files_are_warnings(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("key.pem", "far.key"):
        (folder / name).unlink()
    unread = "can't be read: No such file or directory"
    assert check_tls(folder, capsys) == (
        0,
        [
            "oxproxy.yaml:2:60: listen[0].tls.key: warning: key.pem: file does not exist",
            "oxproxy.yaml:5:44: upstream.tls.key: warning: key.pem: file does not exist",
            f"rules.yaml:4:49: brokers.far.tls.key: warning: far.key: {unread}",
        ],
    )


def test_no_private_key_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = (folder / "key.pem").read_text().replace("PRIVATE KEY", "PUBLIC KEY")
    (folder / "key.pem").write_text(content)
    _, lines = check_tls(folder, capsys)
    assert lines
    assert not [line for line in content.splitlines()[1:-1] if line in "\n".join(lines)]
