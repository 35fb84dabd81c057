"""Runs promtool, if it is installed (`setup/setup.sh with-promtool`), and reads the alerts."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "conf" / "prometheus" / "alerts.yaml"


def rules() -> dict[str, dict[str, Any]]:
    """Return the alerts by their names."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool; skip the test without it."""
    in_venv = Path(sys.executable).parent / "promtool"
    found = (
        os.environ.get("PROMTOOL") or shutil.which("promtool") or (str(in_venv) if in_venv.exists() else None)
    )
    if found is None:
        pytest.skip("there is no promtool: setup/setup.sh with-promtool")
    return subprocess.run(
        [found, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60
    )
