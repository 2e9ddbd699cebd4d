"""Builds a release as `make dist` does, and installs and uses each of its files outside of the clone.

With ``DIST=DIRECTORY`` in the environment, the files in this directory are tested instead of a new build.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.release import image, packages
from deploy.release.source import ROOT, VERSION, BuildError, commit_time, copy_tracked, run
from tests import stranger
from tests.deploy.container import inside, serve_and_route
from tests.deploy.helm.rendering import CONTROL, of_kind, variant
from tests.deploy.test_image import TOOLS
from tests.private_broker import PrivateBroker

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(1500)]

IMAGE = f"localhost/oxproxy:{VERSION}"
PYTHON_TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"
PURE, COMPILED = f"oxproxy-{VERSION}-py3-none-any.whl", f"oxproxy-{VERSION}-{PYTHON_TAG}-{PYTHON_TAG}-*_x86_64.whl"
RULES = ROOT / "config" / "rules"
PROGRAMS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if "DIST" in os.environ:
        return Path(os.environ["DIST"]).resolve()
    if lacking := image.missing():
        pytest.skip(f"needs {lacking} (make test-matrix installs it)")
    folder = tmp_path_factory.mktemp("release")
    run(sys.executable, "-m", "deploy.release", "--output", folder)
    return folder


@pytest.fixture(scope="module")
def root(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file system of a container of the image in the archive."""
    buildah = image.Buildah(tmp_path_factory.mktemp("buildah"))
    pulled = buildah("pull", "--quiet", f"oci-archive:{dist / f'oxproxy-{VERSION}-image.oci.tar'}")
    with buildah.mounted(pulled.splitlines()[-1]) as folder:
        yield folder


def alone(folder: Path) -> dict[str, str]:
    """Return an environment in which only the programs in ``folder`` are found: no broker, Java or compiler."""
    return {"PATH": str(folder), "HOME": str(folder)}


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def test_the_release_contains_each_file(dist: Path) -> None:
    names = {re.sub(r"-manylinux.*_x86_64|-linux_x86_64", "-PLATFORM", path.name) for path in dist.iterdir()}
    assert names >= {
        f"oxproxy-{VERSION}.tar.gz",
        PURE,
        f"oxproxy-{VERSION}-{PYTHON_TAG}-{PYTHON_TAG}-PLATFORM.whl",
        f"oxproxy-{VERSION}-image.oci.tar",
        f"oxproxy-{VERSION}.tgz",
        "oxproxy.1",
        "oxproxy.bash",
        "_oxproxy",
        "oxproxy.fish",
        f"oxproxy-{VERSION}.cdx.json",
        f"oxproxy-{VERSION}-image.cdx.json",
        f"oxproxy-{VERSION}-licences.md",
        "SHA256SUMS",
    }


def test_the_checksums_are_those_of_all_files(dist: Path) -> None:
    checked = run("sha256sum", "--check", "--strict", "SHA256SUMS", where=dist).splitlines()
    assert {line.removesuffix(": OK") for line in checked} == {path.name for path in dist.iterdir()} - {"SHA256SUMS"}


@pytest.mark.parametrize("installer", ["pip", "uv"])
@pytest.mark.parametrize(("wheel", "build"), [(PURE, "interpreted"), (COMPILED, "compiled")])
def test_a_wheel_runs_in_a_fresh_environment(
    dist: Path, tmp_path: Path, wheel: str, build: str, installer: str
) -> None:
    environment = tmp_path / "environment"
    if installer == "pip":
        run(sys.executable, "-m", "venv", environment, where=tmp_path)
        run(environment / "bin" / "pip", "install", "--quiet", only(dist, wheel), where=tmp_path)
    else:
        run(PROGRAMS / "uv", "venv", "--python", sys.executable, environment, where=tmp_path)
        python = environment / "bin" / "python"
        run(PROGRAMS / "uv", "pip", "install", "--python", python, only(dist, wheel), where=tmp_path)
    program = environment / "bin" / "oxproxy"

    def oxproxy(*arguments: str | Path) -> str:
        command = [program, *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=alone(program.parent), capture_output=True, text=True, check=True
        )
        return done.stdout

    versions = rf"oxproxy {re.escape(VERSION)} \({build}, Python \d+\.\d+\.\d+\S*, PCRE2 \d+\.\d+\)\n"
    assert re.fullmatch(versions, oxproxy("--version"))
    assert oxproxy("check", RULES).startswith("ok: ")
    question = ("--rules", RULES / "documents.yaml", "--exchange", "documents", "--header", "document.type=public")
    assert "documents.public" in oxproxy("explain", *question)


@pytest.mark.parametrize("runner", [("pipx", "run", "--spec"), ("uv", "tool", "run", "--from")])
def test_the_wheel_alone_checks_rules_without_a_broker_java_or_compiler(
    dist: Path, tmp_path: Path, runner: tuple[str, ...]
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(sys.executable)
    for name in ("realpath", "dirname"):  # the scripts that uv installs use both
        (programs / name).symlink_to(str(shutil.which(name)))
    wheel = tmp_path / PURE
    shutil.copy(dist / PURE, wheel)
    shutil.copytree(RULES, tmp_path / "rules")
    command = [str(PROGRAMS / runner[0]), *runner[1:], str(wheel), "oxproxy", "check", "rules/"]
    environment = {**alone(programs), "PIPX_DEFAULT_PYTHON": sys.executable, "UV_PYTHON": sys.executable}
    kept = {name: text for name, text in os.environ.items() if name.startswith(("PIP_", "SSL_", "UV_"))}
    done = subprocess.run(command, cwd=tmp_path, env=kept | environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:4]) == (0, "ok: "), done.stderr


def test_two_compiled_wheels_of_a_commit_are_equal(dist: Path, tmp_path: Path) -> None:
    time = commit_time()
    wheel = packages.build_compiled_wheel(copy_tracked(tmp_path / "source", time), tmp_path, time)
    assert wheel.name == only(dist, COMPILED).name
    assert wheel.read_bytes() == only(dist, COMPILED).read_bytes()


def test_the_compiled_wheel_meets_a_manylinux_policy(dist: Path) -> None:
    assert re.search(r"-manylinux\w*(\.manylinux\w*)*_x86_64\.whl$", only(dist, COMPILED).name)


def test_the_image_runs_compiled_with_pcre2_and_without_build_tools(root: Path) -> None:
    version = subprocess.run(inside(root, "/opt/oxproxy/bin/oxproxy", "--version"), capture_output=True, check=True)
    assert re.fullmatch(rb"oxproxy \S+ \(compiled, Python \S+, PCRE2 \d+\.\d+\)\n", version.stdout)
    folders = [root / name for name in ("usr/bin", "usr/local/bin", "opt/oxproxy/bin")]
    assert [str(folder / name) for folder in folders for name in TOOLS if (folder / name).exists()] == []


def test_the_image_states_its_user_and_command(dist: Path) -> None:
    with tarfile.open(dist / f"oxproxy-{VERSION}-image.oci.tar") as archive:

        def document(name: str) -> dict[str, object]:
            member = archive.extractfile(name)
            assert member is not None
            content: dict[str, object] = json.load(member)
            return content

        def blob(descriptor: object) -> dict[str, object]:
            assert isinstance(descriptor, dict)
            return document("blobs/" + descriptor["digest"].replace(":", "/"))

        manifests = document("index.json")["manifests"]
        assert isinstance(manifests, list)
        config = blob(blob(manifests[0])["config"])["config"]
    assert isinstance(config, dict)
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] + config["Cmd"] == ["oxproxy", "serve", "--config", "/etc/oxproxy/oxproxy.yaml"]


def test_the_image_routes_messages_with_a_read_only_root(root: Path, tmp_path: Path) -> None:
    serve_and_route(root, tmp_path)


def test_the_chart_renders_from_the_package(dist: Path) -> None:
    values = CONTROL | variant("gateway")
    (deployment,) = of_kind("Deployment", values, dist / f"oxproxy-{VERSION}.tgz")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"].endswith(f":{VERSION}")


def test_the_man_page_is_readable(dist: Path) -> None:
    page = run("man", "--local-file", dist / "oxproxy.1", more={"MANWIDTH": "100", "MAN_KEEP_FORMATTING": ""})
    assert "oxproxy check" in page
    with zipfile.ZipFile(dist / PURE) as wheel:
        inside_wheel = wheel.read(f"oxproxy-{VERSION}.data/data/share/man/man1/oxproxy.1")
    assert inside_wheel == (dist / "oxproxy.1").read_bytes()


def test_bash_completes_commands(dist: Path) -> None:
    script = 'source oxproxy.bash; COMP_WORDS=(oxproxy che); COMP_CWORD=1; _oxproxy; echo "${COMPREPLY[@]}"'
    assert run("bash", "-c", script, where=dist) == "check\n"


@pytest.mark.parametrize(("name", "begin"), [("_oxproxy", "#compdef oxproxy"), ("oxproxy.fish", "# fish completion")])
def test_the_completions_of_zsh_and_fish_name_the_commands(dist: Path, name: str, begin: str) -> None:
    text = (dist / name).read_text()
    assert text.startswith(begin)
    assert "backtest" in text


def components(path: Path) -> dict[str, dict[str, object]]:
    """Return the components of an SBOM by their purl without qualifiers."""
    bom = json.loads(path.read_text())
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    assert (bom["metadata"]["component"]["name"], bom["metadata"]["component"]["version"]) == ("oxproxy", VERSION)
    return {component["purl"].partition("?")[0]: component for component in bom["components"]}


def pins() -> dict[str, str]:
    lines = (ROOT / "deploy" / "local" / "requirements.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def test_the_sbom_of_the_wheel_lists_its_dependencies_with_licences(dist: Path) -> None:
    listed = components(dist / f"oxproxy-{VERSION}.cdx.json")
    for name in ("aiohttp", "pamqp", "pydantic", "uvloop", "isal"):
        assert listed[f"pkg:pypi/{name}@{pins()[name]}"]["licenses"]
    assert not [purl for purl in listed if purl.startswith(("pkg:pypi/pip@", "pkg:pypi/pytest@", "pkg:pypi/oxproxy@"))]


def test_the_sbom_of_the_image_also_lists_debian_packages(dist: Path, root: Path) -> None:
    listed = components(dist / f"oxproxy-{VERSION}-image.cdx.json")
    assert {name for name in ("aiohttp", "pamqp", "isal") if f"pkg:pypi/{name}@{pins()[name]}" not in listed} == set()
    status = (root / "var/lib/dpkg/status").read_text()
    installed = set(re.findall(r"^Package: (.*)$", status, re.MULTILINE))
    assert "libpcre2-8-0" in installed
    assert {purl.split("/")[2].split("@")[0] for purl in listed if purl.startswith("pkg:deb/")} == {
        name.replace("+", "%2B") for name in installed
    }
    assert not [purl for purl in listed if purl.startswith(("pkg:pypi/pip@", "pkg:pypi/pytest@"))]


def test_the_list_of_licences_names_every_dependency(dist: Path) -> None:
    text = (dist / f"oxproxy-{VERSION}-licences.md").read_text()
    rows = [re.split(r" *\| *", line)[1:4] for line in text.splitlines() if line.startswith("| ")]
    licences = {name.lower(): licence for name, _, licence in rows}
    listed = components(dist / f"oxproxy-{VERSION}.cdx.json").values()
    assert {str(component["name"]).lower() for component in listed} - licences.keys() == set()
    assert [name for name, licence in licences.items() if licence == "UNKNOWN"] == []


def test_a_wheel_that_meets_no_manylinux_policy_keeps_its_tag(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def built(*command: str | Path, where: Path, more: object) -> str:
        if "auditwheel" in command:
            raise BuildError("cannot repair")
        Path(command[-2], "oxproxy-1-cp311-cp311-linux_x86_64.whl").touch()
        return ""

    monkeypatch.setattr(packages, "run", built)
    assert packages.build_compiled_wheel(ROOT, tmp_path, 0).name == "oxproxy-1-cp311-cp311-linux_x86_64.whl"
    assert "keeps its tag: cannot repair" in capsys.readouterr().err


def test_a_stranger_has_a_routed_message_within_a_minute(dist: Path) -> None:
    with PrivateBroker() as broker:
        seconds = stranger.measure(dist, broker)
    assert seconds <= stranger.LIMIT_SECONDS
