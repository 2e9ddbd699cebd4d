"""Chooses between the compiled modules and their sources.

`deploy/native.py` compiles the publish path modules that are listed in ``pyproject.toml`` with mypyc. It writes a
manifest and the extension modules, which are named after the full module names, to ``proxy/oxproxy/_native``. The
extension modules are loaded only if the digest in the manifest matches the current sources. Otherwise, for example
after a source file has been edited, Python runs the sources, which behave the same but are slower.

``PURE_PYTHON=1`` in the environment always selects the Python sources.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from types import ModuleType
from typing import Final

ROOT: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER: Final = os.path.join(ROOT, "oxproxy", "_native")
#: File whose first line is the digest of the sources, and whose second line contains the compilation settings. Each
#: further line is the path of a source, relative to ROOT.
MANIFEST: Final = "manifest.txt"
#: File suffix that identifies the version of Python and the platform, so that modules built for other versions
#: or platforms are not loaded.
SUFFIX: Final = EXTENSION_SUFFIXES[0]


def digest(root: str, sources: Iterable[str]) -> str:
    """Return a digest of the sources' names and contents; "" if a source is missing."""
    from hashlib import sha256

    total = sha256()
    for source in sources:
        try:
            with open(os.path.join(root, source), "rb") as file:
                content = file.read()
        except (FileNotFoundError, NotADirectoryError):
            return ""
        total.update(b"%s %d\n" % (source.encode(), len(content)))
        total.update(content)
    return total.hexdigest()


def read_manifest(folder: str) -> tuple[str, str, list[str]]:
    """Return the digest, settings and sources from a build's manifest; empty values if there is no manifest."""
    try:
        with open(os.path.join(folder, MANIFEST), encoding="utf-8") as file:
            lines = file.read().split("\n")
    except (FileNotFoundError, NotADirectoryError):  # NotADirectoryError: the package is in an archive
        return "", "", []
    return lines[0], lines[1], lines[2:]


class _Finder:
    """Finds compiled modules by name; leaves all other modules to the next finder.

    Args:
        files: path of each compiled module, by module name.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        if file is None:
            return None
        spec = ModuleSpec(fullname, ExtensionFileLoader(fullname, file), origin=file)
        spec.has_location = True
        return spec


def _use_compiled() -> bool:
    if os.environ.get("PURE_PYTHON", "") not in ("", "0"):
        return False
    expected, _, sources = read_manifest(FOLDER)
    if not expected or digest(ROOT, sources) != expected:
        return False
    files = {
        name.removesuffix(SUFFIX): os.path.join(FOLDER, name) for name in os.listdir(FOLDER) if name.endswith(SUFFIX)
    }
    if not files:
        return False
    sys.meta_path.insert(0, _Finder(files))
    return True


#: The build of the publish path that this process runs.
BUILD: Final = "compiled" if _use_compiled() else "interpreted"
