"""Set-up takes the jars that were tested, and no others."""

from pathlib import Path
from zipfile import ZipFile

import pytest

from jobs.installation import spark_jars
from schemas.errors import ConfigurationError

GROUPS = ["delta", "s3"]


def known_sums(name: str) -> dict[str, str]:
    return dict(line.split()[::-1] for line in spark_jars.group_of(name).sums_file.read_text().splitlines())


def jar(path: Path, name: str) -> Path:
    with ZipFile(path, "w") as archive:
        archive.writestr(name, b"")
    return path


@pytest.mark.parametrize("name", GROUPS)
def test_what_set_up_copied_here_has_the_sums_that_are_noted(name: str) -> None:
    copied_names = spark_jars.group_of(name).copied_list
    copied = copied_names.read_text().split() if copied_names.exists() else []
    assert copied or name == "s3"  # which only `with-s3` copies
    sums = {one: spark_jars.sum_of(spark_jars.JARS / one) for one in copied}
    assert sums.items() <= known_sums(name).items()


@pytest.mark.parametrize("name", GROUPS)
def test_each_jar_that_set_up_asks_for_has_a_sum(name: str) -> None:
    """A new version of one is seen here, before set-up refuses it."""
    coordinates = spark_jars.group_of(name).coordinates
    asked = {f"{artifact}-{version}.jar" for _, artifact, version in (one.split(":") for one in coordinates)}
    assert asked <= known_sums(name).keys()


def test_nothing_is_copied_if_one_jar_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark, ivy, sums = tmp_path / "spark", tmp_path / "ivy", tmp_path / "jars-delta.sha256"
    for folder in (spark, ivy):
        folder.mkdir()
    monkeypatch.setattr(spark_jars, "JARS", spark)
    group = spark_jars.Group("delta", ())
    monkeypatch.setattr(type(group), "sums_file", sums)
    brought = [jar(ivy / f"org_{name}-1.0.jar", f"{name}.class") for name in ("one", "two")]
    jar(spark / "own.jar", "own.class")
    sums.write_text("".join(f"{spark_jars.sum_of(one)}  {spark_jars.file_name(one)}\n" for one in brought))
    jar(brought[1], "other.class")
    with pytest.raises(ConfigurationError, match=r"jars-delta\.sha256: two-1\.0\.jar \("):
        spark_jars.copy(brought, group)
    assert [one.name for one in spark.iterdir()] == ["own.jar"]
    jar(brought[1], "two.class")
    assert spark_jars.copy(brought, group) == ["one-1.0.jar", "two-1.0.jar"]
    assert (spark / "two-1.0.jar").read_bytes() == brought[1].read_bytes()


def test_another_jar_ends_set_up_by_name(tmp_path: Path) -> None:
    jar, sums = tmp_path / "org_one-1.0.jar", tmp_path / "jars.sha256"
    jar.write_bytes(b"content")
    sums.write_text(f"{spark_jars.sum_of(jar)}  one-1.0.jar\n")
    spark_jars.check_sums([jar], sums)
    jar.write_bytes(b"other")
    with pytest.raises(ConfigurationError, match=r"not the jars of jars\.sha256: one-1\.0\.jar"):
        spark_jars.check_sums([jar], sums)


def test_without_the_list_of_sums_no_jar_is_taken(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.sha256 is missing"):
        spark_jars.check_sums([tmp_path / "org_one-1.0.jar"], tmp_path / "none.sha256")
