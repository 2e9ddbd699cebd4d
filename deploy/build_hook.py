"""Puts the compiled modules into a wheel; hatchling runs it where ``HATCH_BUILD_HOOKS_ENABLE=true`` is set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledModules(BuildHookInterface[Any]):
    """Compiles before the wheel is made, and marks the wheel as one for this Python and this platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile.

        Args:
            version: kind of wheel; an editable one runs from the project's directory and contains nothing.
            build_data: what hatchling makes the wheel of.
        """
        if version == "editable":
            return
        subprocess.run([sys.executable, Path(self.root, "deploy", "native.py")], check=True)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"][str(Path(self.root, "proxy", "_native"))] = "proxy/_native"
