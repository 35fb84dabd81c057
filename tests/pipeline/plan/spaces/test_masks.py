"""Which columns of a table are masked, and when a space is refused because a mask would not hold."""

from pathlib import Path

import pytest

from config.deployment import Types
from config.spaces import Spaces
from pipeline.plan.spaces.masks import Mask, check_still_masked, mask_of
from pipeline.plan.spaces.tables import build_table_layout
from schemas.errors import ConfigurationError, UnsupportedError
from schemas.space import Field, KeyPart, Space


def space(*fields: str, name: str = "people", key: int = 0) -> Space:
    whole = tuple(Field(one, "string") for one in ("id", *fields))
    return Space(512, 1, name, "memtx", whole, (KeyPart(key, "string"),))


def masked(config: Spaces, *spaces: Space, is_masked: bool = False) -> Mask | None:
    return mask_of(config, spaces, build_table_layout(spaces, Types(), config), is_masked=is_masked)


PHONE = Spaces.model_validate({"masks": {"people": {"phone": "drop", "Mail": "drop"}}})


def test_columns_are_those_of_the_table() -> None:
    found = masked(PHONE, space("phone"), space("x", "Mail"))
    assert found is not None
    assert found.kinds == {"phone": "drop", "mail__u0": "drop"}
    layout = build_table_layout((space("phone"), space("x", "Mail")), Types(), PHONE)
    assert found.schema(layout).names[:3] == ["id", "x", "_inexact"]
    assert not {"_tuple", "_extra", "phone", "mail__u0"} & set(found.schema(layout).names)


def test_a_table_is_masked_by_its_fields_and_stays_so() -> None:
    assert masked(PHONE, space("name")) is None
    assert masked(PHONE, space("phone", name="other"), is_masked=True) is None
    lasting = masked(PHONE, space("name"), is_masked=True)
    assert lasting is not None
    assert lasting.kinds == {}


def test_a_field_of_the_key_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="phone: a field of the primary key"):
        masked(PHONE, space("phone", key=1))


def check_each(definitions: list[Space]) -> None:
    """Check definitions in the order in which they come."""
    for number, definition in enumerate(definitions):
        check_still_masked(definitions[:number], definition, PHONE.masks_of)


@pytest.mark.parametrize(
    ("definitions", "exposed"),
    [
        ([space("phone"), space("Mail")], None),
        ([space("phone"), space(), space("Mail")], None),
        ([space("phone"), space("telephone")], "people.phone is masked, and is called people.telephone"),
        ([space("phone"), space("telephone"), space("phone")], "people.phone"),
        ([space("phone"), space(), space("telephone")], "people.phone"),
        ([space("phone"), space("phone", name="persons")], "is called persons.phone"),
        ([space("telephone"), space("phone")], None),
    ],
)
def test_a_masked_field_does_not_go_on_without_a_mask(definitions: list[Space], exposed: str | None) -> None:
    if exposed is None:
        check_each(definitions)
    else:
        with pytest.raises(UnsupportedError, match=exposed):
            check_each(definitions)


def test_a_short_key_is_refused_and_another_one_is_another_mask(tmp_path: Path) -> None:
    key = tmp_path / "key"
    config = Spaces.model_validate({"masks": {"*": {"phone": "hash"}}, "mask_key_file": str(key)})
    found = masked(config, space("phone"))
    assert found is not None
    properties = []
    for text in ("a key of 16 bytes", "another of 16 or so"):
        key.write_text(text + "\nnot this line")
        properties.append(found.property_value())
    assert properties[0] != properties[1]
    key.write_text("short")
    with pytest.raises(ConfigurationError, match="has 5 characters"):
        found.property_value()
