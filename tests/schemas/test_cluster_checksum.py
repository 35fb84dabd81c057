"""The checksum of a replicaset's instances: golden values, and what changes it."""

import zlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.cluster_checksum import checksum, checksum_input

A1, A2 = "a0000000-0000-4000-8000-000000000001", "a0000000-0000-4000-8000-000000000002"
INSTANCES = st.dictionaries(st.integers(1, 31), st.uuids().map(str), max_size=31)


@pytest.mark.parametrize(
    ("instances", "data", "expected"),
    [
        ({}, b"", 0x00000000),
        ({1: A1}, f"1:{A1}\n".encode(), 0xD5BE0836),
        ({2: A2, 1: A1}, f"1:{A1}\n2:{A2}\n".encode(), 0xC39CCC4E),
        ({1: A2, 2: A1}, f"1:{A2}\n2:{A1}\n".encode(), 0x0BF8282F),
        ({10: A1, 9: A2}, f"9:{A2}\n10:{A1}\n".encode(), 0xE764B429),
    ],
)
def test_golden_values(instances: dict[int, str], data: bytes, expected: int) -> None:
    """As in docs/formats.md; 2 comes before 10: ids are sorted as numbers."""
    assert checksum_input(instances) == data
    assert f"{checksum(instances):08x}" == f"{expected:08x}"


def test_the_check_value_of_the_polynomial() -> None:
    from schemas import cluster_checksum

    assert cluster_checksum._CRC32(b"123456789") == 0xCBF43926


def test_the_case_of_a_uuid_does_not_matter() -> None:
    assert checksum({1: A1.upper()}) == checksum({1: A1})


@given(INSTANCES, st.integers(0, 2**32).map(Random))
def test_the_order_of_instances_does_not_matter(instances: dict[int, str], random: Random) -> None:
    shuffled = list(instances.items())
    random.shuffle(shuffled)
    assert checksum(dict(shuffled)) == checksum(instances) == zlib.crc32(checksum_input(instances))


@given(INSTANCES.filter(lambda found: len(found) > 1))
def test_swapped_ids_change_the_checksum(instances: dict[int, str]) -> None:
    first, second, *_ = sorted(instances)
    swapped = {**instances, first: instances[second], second: instances[first]}
    assert (checksum_input(swapped) == checksum_input(instances)) == (instances[first] == instances[second])
    assert checksum(swapped) != checksum(instances) or instances[first] == instances[second]
