"""Lists what a release contains: SBOMs in CycloneDX, licences of the dependencies, and checksums.

cyclonedx-py reads the Python packages. Debian's packages in the image are added from dpkg's database.
Sources: CycloneDX 1.6; purl specification, types ``deb`` and ``pypi``.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from deploy.release.source import VERSION, BuildError, run

_LICENCES_HEADING = """\
# Licences of the dependencies of oxproxy {version}

oxproxy itself is licensed under Apache-2.0. `pip install oxproxy` also installs the packages in this table. They are
separate packages with their own licences; the wheel contains none of them.

"""


def bill_of_environment(python: Path, time: int) -> str:
    """Return the SBOM of an environment in which oxproxy is installed, as JSON.

    Args:
        python: interpreter of the environment.
        time: time that the SBOM states, in seconds since 1970.
    """
    return _bill(_python_packages(python, {}, time))


def bill_of_image(root: Path, time: int) -> str:
    """Return the SBOM of the image, as JSON: its Python packages and Debian's packages.

    Args:
        root: the image's file system.
        time: time that the SBOM states, in seconds since 1970.
    """
    (packages,) = (root / "opt" / "oxproxy").glob("lib/python*/site-packages")
    # The image's interpreter cannot run outside of the image. Another one looks for packages only in this directory.
    bom = _python_packages(Path(sys.executable), {"PYTHONPATH": str(packages)}, time, "-S")
    assert bom.metadata.component is not None
    bom.metadata.component.type = ComponentType.CONTAINER
    for component in _debian_packages(root):
        bom.components.add(component)
        bom.register_dependency(bom.metadata.component, [component])
    return _bill(bom)


def _python_packages(python: Path, more: dict[str, str], time: int, *options: str) -> Bom:
    """Return cyclonedx-py's SBOM of an environment. Its subject is this project."""
    command = (sys.executable, "-m", "cyclonedx_py", "environment", *options, "--pyproject", "pyproject.toml")
    output = ("--output-reproducible", "--short-PURLs", "--spec-version", "1.6", str(python))
    text = run(*command, *output, more={"SOURCE_DATE_EPOCH": str(time), **more})
    bom: Bom = Bom.from_json(json.loads(text))  # type: ignore[attr-defined]  # added by a decorator
    return bom


def _debian_packages(root: Path) -> Iterator[Component]:
    """Yield Debian's packages that are installed in a file system."""
    release = dict(line.split("=", 1) for line in (root / "etc/os-release").read_text().splitlines() if "=" in line)
    distribution = f"{release['ID']}-{release['VERSION_ID'].strip(chr(34))}"
    for paragraph in (root / "var/lib/dpkg/status").read_text().split("\n\n"):
        package = HeaderParser().parsestr(paragraph)
        if package["Status"] != "install ok installed":
            continue
        qualifiers = {"arch": package["Architecture"], "distro": distribution}
        purl = PackageURL("deb", release["ID"], package["Package"], package["Version"], qualifiers)
        yield Component(
            name=package["Package"],
            version=package["Version"],
            type=ComponentType.LIBRARY,
            description=package["Description"].partition("\n")[0],
            purl=purl,
            bom_ref=str(purl),
        )


def _bill(bom: Bom) -> str:
    """Return the SBOM as JSON, without a random serial number, so that equal contents have equal SBOMs.

    Raises:
        BuildError: the SBOM does not conform to the schema.
    """
    text = JsonV1Dot6(bom).output_as_string(indent=2)
    document = json.loads(text)
    document.pop("serialNumber", None)
    text = json.dumps(document, indent=2, sort_keys=True) + "\n"
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise BuildError(f"the SBOM does not conform to CycloneDX 1.6: {error}")
    return text


def licences(python: Path) -> str:
    """Return a Markdown page with the licences of the packages in an environment in which oxproxy is installed.

    Args:
        python: interpreter of the environment.
    """
    command = (sys.executable, "-m", "piplicenses", "--python", python, "--with-urls", "--format", "markdown")
    return _LICENCES_HEADING.format(version=VERSION) + run(*command, "--ignore-packages", "oxproxy")


def checksums(folder: Path) -> str:
    """Return the SHA-256 checksums of all files in a directory, in the format of ``sha256sum``."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
