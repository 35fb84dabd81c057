"""Types of columns, and the common fields of several formats."""

import itertools
import pickle

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    TimestampType,
    VariantType,
)

from schemas.errors import UnsupportedError
from schemas.layout import (
    ERROR_COLUMN,
    EXTRA_COLUMN,
    INEXACT_COLUMN,
    MISFITS_COLUMN,
    TypeOptions,
    arrow_type,
    column_storage,
    spark_type,
    table_layout,
    union_fields,
)
from schemas.space import Field, Space

DEFAULT = TypeOptions()
CHOICES = [
    DEFAULT,
    TypeOptions(unsigned="long", decimal_scale=0, integer="decimal"),
    TypeOptions(unsigned="precise", decimal_scale=38, integer="decimal"),
    TypeOptions(unsigned="long", decimal_scale="string", integer="long"),
]
TYPES: dict[str, DataType] = {
    "unsigned": DecimalType(20, 0),
    "integer": LongType(),
    "double": DoubleType(),
    "number": DoubleType(),
    "decimal": DecimalType(38, 18),
    "string": StringType(),
    "varbinary": BinaryType(),
    "boolean": BooleanType(),
    "uuid": StringType(),
    "datetime": TimestampType(),
    "interval": StringType(),
    "any": VariantType(),
    "map": VariantType(),
    "array": VariantType(),
    "scalar": VariantType(),
    "uint8": DecimalType(20, 0),
    "int64": LongType(),
    "float32": DoubleType(),
}


def space(*fields: Field, name: str = "things") -> Space:
    return Space(512, 1, name, "memtx", fields)


@pytest.mark.parametrize("kind", TYPES)
def test_default_types(kind: str) -> None:
    assert spark_type(column_storage(kind, DEFAULT), DEFAULT) == TYPES[kind]


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("unsigned", TypeOptions(unsigned="long"), LongType()),
        ("uint64", TypeOptions(unsigned="long"), LongType()),
        ("integer", TypeOptions(integer="decimal"), DecimalType(20, 0)),
        ("unsigned", TypeOptions(integer="decimal", unsigned="long"), LongType()),
        ("decimal", TypeOptions(decimal_scale=4), DecimalType(38, 4)),
        ("decimal", TypeOptions(decimal_scale="string"), StringType()),
    ],
)
def test_chosen_types(kind: str, options: TypeOptions, expected: DataType) -> None:
    assert spark_type(column_storage(kind, options), options) == expected


@pytest.mark.parametrize("options", CHOICES, ids=str)
def test_arrow_types_are_those_that_spark_takes(options: TypeOptions) -> None:
    for kind in TYPES:
        expected = to_arrow_type(spark_type(column_storage(kind, options), options), timezone="UTC")
        found = arrow_type(column_storage(kind, options), options)
        assert found == expected, kind
        if pa.types.is_struct(expected):
            assert [field.metadata for field in found] == [field.metadata for field in expected]


def test_an_unknown_type_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="the field type polygon is not known"):
        column_storage("polygon", DEFAULT)


def test_fields_are_united_by_name_in_the_order_of_the_first_format() -> None:
    one = space(Field("id", "unsigned"), Field("name", "string"))
    other = space(Field("name", "string"), Field("mail", "string"), Field("id", "unsigned"))
    assert union_fields([one, other]) == (
        Field("id", "unsigned"),
        Field("name", "string"),
        Field("mail", "string", is_nullable=True),
    )
    assert [field.name for field in union_fields([other, one])] == ["name", "mail", "id"]
    assert union_fields([one]) == one.fields


def test_a_field_is_nullable_where_any_format_says_so() -> None:
    strict, lax = space(Field("a", "any")), space(Field("a", "any", is_nullable=True))
    assert union_fields([strict, lax]) == union_fields([lax, strict]) == (Field("a", "any", True),)
    assert union_fields([strict, strict]) == (Field("a", "any"),)


@pytest.mark.parametrize(
    ("one", "other", "wider"),
    [
        ("unsigned", "integer", "integer"),
        ("integer", "number", "number"),
        ("decimal", "number", "number"),
        ("double", "scalar", "scalar"),
        ("uuid", "any", "any"),
        ("array", "any", "any"),
        ("scalar", "any", "any"),
        ("uint8", "unsigned", "unsigned"),
        ("int8", "uint64", "integer"),
    ],
)
def test_the_wider_type_is_taken(one: str, other: str, wider: str) -> None:
    for first, second in ((one, other), (other, one)):
        assert union_fields([space(Field("f", first)), space(Field("f", second))])[0].type == wider


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("unsigned", "string"),
        ("decimal", "integer"),
        ("double", "unsigned"),
        ("map", "array"),
        ("map", "scalar"),
    ],
)
def test_incompatible_types_are_refused(one: str, other: str) -> None:
    spaces = [space(Field("f", one)), space(Field("f", other))]
    with pytest.raises(UnsupportedError) as caught:
        union_fields(spaces)
    assert str(caught.value).startswith(
        f"the field f is {one} and {other} in different replicasets (space things)"
    )


def test_the_order_of_formats_does_not_change_the_type() -> None:
    names = ("unsigned", "integer", "number", "double", "decimal", "string", "scalar", "map", "any")
    for three in itertools.combinations(names, 3):
        results = set()
        for order in itertools.permutations(three):
            try:
                results.add(union_fields([space(Field("f", kind)) for kind in order])[0].type)
            except UnsupportedError:
                results.add("refused")
        assert len(results) == 1, (three, results)


def test_a_layout_has_the_columns_of_all_formats() -> None:
    one = space(Field("id", "unsigned"), Field("a b", "map"))
    other = space(Field("mail", "string"), Field("id", "integer"))
    layout = table_layout([one, other], ["id", "a_b", "mail"], TypeOptions(decimal_scale=2))
    assert layout.formats == (one.fields, other.fields)
    assert layout.spark_schema().simpleString() == (
        "struct<id:bigint,a_b:variant,mail:string,_extra:variant,_inexact:string,_misfits:array<string>>"
    )
    assert layout.decoded_schema().names[-4:] == [EXTRA_COLUMN, INEXACT_COLUMN, MISFITS_COLUMN, ERROR_COLUMN]
    assert [field.name for field in layout.arrow_fields()] == layout.decoded_schema().names
    assert [to_arrow_type(field.dataType, timezone="UTC") for field in layout.decoded_schema()] == [
        field.type for field in layout.arrow_fields()
    ]
    assert pickle.loads(pickle.dumps(layout)) == layout


def test_a_space_without_a_format_has_only_what_is_past_it() -> None:
    assert table_layout([space()]).spark_schema().names == [EXTRA_COLUMN, INEXACT_COLUMN, MISFITS_COLUMN]


def test_a_layout_of_unknown_types_or_wrong_names_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="polygon"):
        table_layout([space(Field("f", "polygon"))])
    with pytest.raises(UnsupportedError, match=r"1 column names for 2 fields \(space things\)"):
        table_layout([space(Field("a", "any"), Field("b", "any"))], ["a"])
