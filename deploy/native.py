"""Compiles the modules of the publish path with mypyc: ``python -m deploy.native``.

``compiled`` in ``[tool.oxproxy]`` of ``pyproject.toml`` lists the modules. The extension modules and their manifest are
written to ``proxy/oxproxy/_native``, where `oxproxy.native` finds them. Nothing is done if the existing modules are up
to date. Only `oxproxy.native` is imported from the project, and only mypy and setuptools are needed from other
packages.

mypyc does not support import cycles (including type-only imports), fields of type ``object`` in named tuples or
dataclasses, ``is`` between tuples, integers beyond 2^53 as ``float``, subclasses in modules that are not listed, or
patched module globals.

Exit status: 0 if the modules were compiled or there was nothing to do; 1 if compilation failed; 3 if there is no C
compiler or Python's headers are missing.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: The directory with the package.
SOURCES = ROOT / "proxy"
sys.path.insert(0, str(SOURCES))  # needed if this file is run by its path, as the build hook does

from oxproxy.native import FOLDER, MANIFEST, SUFFIX, digest, read_manifest  # noqa: E402

FAILED, NO_COMPILER = 1, 3
LOG = ROOT / "build" / "native.log"
#: Third-party modules need not be installed, and the project's settings for mypy are not needed for compilation.
MYPY = ("--config-file=", "--ignore-missing-imports", "--follow-untyped-imports", "--no-incremental")
#: Level 3 for all sources would make compilation take 50 % longer. Using level 3 only for the publish pass and mypyc's
#: runtime library makes a publish 9 % cheaper in the relay (0.66 instead of 0.73 us).
OPTIMIZATION = "1"
HOT = ("publish_pass.c", "_ops.c")


def modules() -> list[str]:
    """Return the sources that are compiled, relative to `SOURCES`."""
    listed: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["oxproxy"]["compiled"]
    return listed


def with_imports(names: Iterable[str]) -> list[str]:
    """Return sources and all modules of the package that they import, whose types and constants are compiled in."""
    wanted = list(names)
    sources = set()
    while wanted:
        name = wanted.pop()
        if name in sources or not (SOURCES / name).is_file():
            continue
        sources.add(name)
        for node in ast.walk(ast.parse((SOURCES / name).read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "oxproxy":
                path = node.module.replace(".", "/")
                wanted += [f"{path}.py", *(f"{path}/{alias.name}.py" for alias in node.names)]
    return sorted(sources)


def settings(names: Iterable[str]) -> str:
    """Describe the compiler, its options and the modules. If the description changes, the modules are recompiled."""
    flags = f"-O{OPTIMIZATION}, -O3 for {' '.join(HOT)}"
    return f"mypy {version('mypy')}, {flags}, Python {sys.version.split()[0]}, {SUFFIX}: {' '.join(names)}"


def missing() -> str:
    """Return what is missing for compilation; "" if nothing is missing."""
    command = os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "cc")
    if shutil.which(command.split()[0]) is None:
        return f"no C compiler ({command.split()[0]})"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return "" if headers.exists() else f"no {headers}"


def build(target: Path) -> None:
    """Compile, and write the extension modules to a directory with their full names."""
    from mypyc.build import mypycify
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    class ParallelBuild(build_ext):  # type: ignore[misc]  # setuptools has no type information
        """Compiles an extension's sources concurrently; setuptools compiles them one after the other."""

        def build_extension(self, ext: Extension) -> None:
            def compile_one(source: str) -> list[str]:
                objects: list[str] = self.compiler.compile(
                    [source],
                    output_dir=self.build_temp,
                    include_dirs=ext.include_dirs,
                    extra_postargs=[*ext.extra_compile_args, *(["-O3"] if source.endswith(HOT) else [])],
                )
                return objects

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                largest_first = sorted(ext.sources, key=lambda source: -Path(source).stat().st_size)
                ext.extra_objects = [path for paths in pool.map(compile_one, largest_first) for path in paths]
            ext.sources = []
            super().build_extension(ext)

    # The variable replaces the flags that Python was built with, so the flags that matter are repeated.
    os.environ["CFLAGS"] = f"-DNDEBUG -fwrapv {os.environ.get('CFLAGS', '')} -w"
    with tempfile.TemporaryDirectory(prefix="oxproxy-native-") as folder:
        extensions = mypycify(
            [*MYPY, *modules()], opt_level=OPTIMIZATION, debug_level="0", multi_file=True, target_dir=folder
        )
        command = ParallelBuild(Distribution({"name": "oxproxy-native", "ext_modules": extensions}))
        command.build_lib, command.build_temp = str(Path(folder, "lib")), str(Path(folder, "temp"))
        command.ensure_finalized()
        command.run()
        for path in Path(command.build_lib).rglob(f"*{SUFFIX}"):
            shutil.copy(path, target / ".".join(path.relative_to(command.build_lib).parts))


def main() -> int:
    """Compile unless the existing modules are up to date."""
    names = modules()
    sources = with_imports(names)
    wanted = digest(str(SOURCES), sources), settings(names), sources
    if read_manifest(FOLDER) == wanted:
        return 0
    if lacking := missing():
        print(f"The publish path is not compiled; the Python sources are used: {lacking}", flush=True)
        return NO_COMPILER
    print(f"Compiling {len(names)} modules of the publish path", flush=True)
    target = Path(f"{FOLDER}.new")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("wb") as log:
        # In a separate process, since mypyc ends the process after an error and changes global state.
        done = subprocess.run([sys.executable, __file__, str(target)], cwd=SOURCES, stdout=log, stderr=log, check=False)
    if done.returncode:
        print(LOG.read_text(errors="replace")[-3000:], f"Compilation failed (full log: {LOG})", file=sys.stderr)
        return FAILED
    (target / MANIFEST).write_text("\n".join([wanted[0], wanted[1], *sources]))
    shutil.rmtree(FOLDER, ignore_errors=True)
    target.rename(FOLDER)
    return 0


if __name__ == "__main__":
    if sys.argv[1:]:
        build(Path(sys.argv[1]))
    else:
        sys.exit(main())
