"""The SQL expressions of the configuration: what each gives, against Spark, and which texts are none."""

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from schemas.errors import ExpressionError
from schemas.expression import parse
from udfs.expressions import evaluate, keeps, spark_type

AT = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
ROWS = pa.table(
    {
        "cents": pa.array([1234, None, 5, 2**63 - 1], pa.int64()),
        "u": pa.array([Decimal(1), Decimal(2**64 - 1), None, Decimal(7)], pa.decimal128(20, 0)),
        "name": pa.array(["Ann", "bob", None, "x_y"]),
        "at": pa.array([AT] * 4, pa.timestamp("us", "UTC")),
        "d": pa.array([1.5, 0.0, None, 3.0]),
        "m": pa.array([Decimal("1.25"), None, Decimal("-1.5"), Decimal(3)], pa.decimal128(38, 18)),
        "j": pa.array(['{"a":{"b":[1,2.50]}}', "{}", None, "["]),
        "yes": pa.array([True, False, None, True]),
    }
)


@pytest.mark.parametrize(
    ("text", "expected", "kind"),
    [
        ("cents / 100", ["12.34", None, "0.05", "92233720368547758.07"], "decimal(38,18)"),
        ("cents * 2", [2468, None, 10, None], "bigint"),
        ("u + 1", ["2", "18446744073709551616", None, "8"], "decimal(38,0)"),
        ("u % 2", ["1", "1", None, "1"], "decimal(38,0)"),
        ("-m", ["-1.25", None, "1.5", "-3"], "decimal(38,18)"),
        ("m * m", ["1.5625", None, "2.25", "9"], "decimal(38,18)"),
        ("m / 0", [None] * 4, "decimal(38,18)"),
        ("1 / 3", ["0.333333333333333333"] * 4, "decimal(38,18)"),
        ("d / d", [1.0, None, None, 1.0], "double"),
        ("d + 1", [2.5, 1.0, None, 4.0], "double"),
        ("name || '!'", ["Ann!", "bob!", None, "x_y!"], "string"),
        ("case when cents > 10 then 'big' else 'small' end", ["big", "small", "small", "big"], "string"),
        ("coalesce(cents, 0)", [1234, 0, 5, 2**63 - 1], "bigint"),
        ("cast(name as bigint)", [None] * 4, "bigint"),
        ("cast('12.55' as decimal(10, 1))", ["12.6"] * 4, "decimal(10,1)"),
        (
            "cast(m as string)",
            ["1.250000000000000000", None, "-1.500000000000000000", "3.000000000000000000"],
            "string",
        ),
        ("cast(m as bigint)", [1, None, -1, 3], "bigint"),
        ("name like 'A%' or name is null", [True, False, True, False], "boolean"),
        ("not (cents between 1 and 10)", [True, None, False, True], "boolean"),
        ("name not in ('Ann', 'bob')", [False, False, None, True], "boolean"),
        ("at >= '2026-01-01'", [True] * 4, "boolean"),
        ("at < '2026-01-02T00:00:00Z'", [False] * 4, "boolean"),
        ("year(at) * 100 + month(at)", [202601] * 4, "bigint"),
        ("date(at)", [AT.date()] * 4, "date"),
        ("round(m, 1)", ["1.3", None, "-1.5", "3.0"], "decimal(38,1)"),
        ("substring(name, 1, 2)", ["An", "bo", None, "x_"], "string"),
        ("json_value(j, '$.a.b[1]')", ["2.50", None, None, None], "string"),
        ("json_value(j, '$.a')", ['{"b": ["1", "2.50"]}', None, None, None], "string"),
        ("u = 1 and m > 1", [True, False, False, False], "boolean"),
        ("d > m", [True, None, None, False], "boolean"),
        ("`name`", ["Ann", "bob", None, "x_y"], "string"),
        ("yes and null", [None, False, None, None], "boolean"),
        ("null", [None] * 4, "string"),
    ],
)
def test_an_expression(text: str, expected: list[Any], kind: str) -> None:
    found = evaluate(parse(text), ROWS).to_pylist()
    wanted = [Decimal(one) if kind.startswith("decimal") and one is not None else one for one in expected]
    assert found == wanted
    assert spark_type(parse(text), list(ROWS.schema)).simpleString() == kind


def test_a_filter_keeps_what_is_true() -> None:
    assert keeps(parse("yes"), ROWS).to_pylist() == [True, False, False, True]
    with pytest.raises(ExpressionError, match="'cents' is no filter: it gives int64"):
        keeps(parse("cents"), ROWS)


ALSO_OF_SPARK = (
    *("cents * 2 - 1", "u % 3", "name || 'x'", "upper(name)", "length(name)", "abs(m)", "d / 2", "d * d"),
    *("cents = 5 OR name IS NULL", "NOT yes", "name LIKE '_nn'", "name LIKE 'x\\_y'", "coalesce(name, '-')"),
    *("CASE WHEN yes THEN 1 WHEN cents = 5 THEN 2 END", "year(at)", "hour(at)", "round(d)", "trim(' a ')"),
    *("cents BETWEEN 5 AND 2000", "name IN ('Ann', NULL)", "m > 1 AND d > 1", "substring(name, 2)"),
)


@pytest.mark.spark
def test_spark_gives_the_same(spark: SparkSession) -> None:
    rows = ROWS.drop_columns(["cents"]).append_column("cents", pa.array([1234, None, 5, 7], pa.int64()))
    theirs = spark.createDataFrame(rows).selectExpr(*ALSO_OF_SPARK).collect()
    for column, text in enumerate(ALSO_OF_SPARK):
        assert evaluate(parse(text), rows).to_pylist() == [row[column] for row in theirs], text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the end at character 1; wanted: a column, a value or a function"),
        ("a b", "'b' at character 3; wanted: an operator or the end"),
        ("f(x)", "f is not a function here; allowed: abs, ceil"),
        ("lower(a, b)", "lower with 2 arguments; wanted: 1 to 1"),
        ("1 +", "the end at character 4"),
        ("'x", "wanted: an expression"),
        ("cast(a as foo)", "wanted: a type: string"),
        ("cast(a as decimal(40, 2))", "is not a type"),
        ("a; drop", "'; drop' at character 2"),
        ("select 1", "'1' at character 8"),
        ("(" * 200 + "1", "nested deeper than 100 levels"),
        ("a not 5", "wanted: IN, BETWEEN or LIKE"),
        ("case end", "wanted: WHEN"),
    ],
)
def test_a_text_that_is_no_expression(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError) as error:
        parse(text)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("colour", "there is no column colour"), ("name + 1", "does not take"), ("name > 1", "does not take")],
)
def test_an_expression_that_does_not_fit_the_columns(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError, match=reason):
        spark_type(parse(text), list(ROWS.schema))
