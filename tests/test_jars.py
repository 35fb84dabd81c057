"""Set-up takes the jars that were tested, and no others."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def spark_jars() -> ModuleType:
    spec = importlib.util.spec_from_file_location("spark_jars", ROOT / "setup" / "spark_jars.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["spark_jars"] = module  # dataclasses ask for it
    spec.loader.exec_module(module)
    return module


def test_what_set_up_copied_here_has_the_sums_that_are_noted(spark_jars: ModuleType) -> None:
    group = spark_jars.group_of("delta")
    known = dict(line.split()[::-1] for line in group.sums.read_text().splitlines())
    copied = group.copied.read_text().split()
    assert copied
    assert {name: spark_jars.sum_of(spark_jars.JARS / name) for name in copied}.items() <= known.items()


def test_another_jar_ends_set_up_by_name(spark_jars: ModuleType, tmp_path: Path) -> None:
    jar, sums = tmp_path / "org_one-1.0.jar", tmp_path / "jars.sha256"
    jar.write_bytes(b"content")
    sums.write_text(f"{spark_jars.sum_of(jar)}  one-1.0.jar\n")
    spark_jars.check_sums([jar], sums)
    jar.write_bytes(b"other")
    with pytest.raises(SystemExit, match=r"not the jars of jars\.sha256: one-1\.0\.jar"):
        spark_jars.check_sums([jar], sums)


def test_jars_without_sums_are_named(
    spark_jars: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spark_jars.check_sums([tmp_path / "org_one-1.0.jar"], tmp_path / "none.sha256")
    assert "not checked" in capsys.readouterr().err
