"""The systemd units in `conf/`: systemd itself understands every line."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONF = Path(__file__).resolve().parent.parent / "conf"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("unit", sorted(CONF.glob("*.service")), ids=lambda path: path.name)
def test_its_sandbox_is_closed(unit: Path) -> None:
    # 10 is no sandbox at all; 3.0 leaves the network, and the compilers of Java and numba.
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=30", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout[-300:]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("unit", sorted(CONF.glob("*.service")), ids=lambda path: path.name)
def test_systemd_accepts_it(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name
    # The program must exist where the unit is verified.
    copy.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", unit.read_text(), flags=re.M))
    command = ["systemd-analyze", "verify", "--man=no", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    # An older systemd says that it passes over a key of a newer one; the unit says so, too.
    lines = [line for line in done.stderr.splitlines() if unit.name in line and "RestartSteps" not in line]
    assert [line for line in lines if "RestartMaxDelaySec" not in line] == []
