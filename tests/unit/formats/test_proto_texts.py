"""Values whose text depends on the schema."""

from __future__ import annotations

import pytest

from tests.helpers.proto_schemas import bodies_of, is_in_bulk, texts


@pytest.mark.parametrize(("option", "unknown"), [("", '"E":9'), ("option features.enum_type = CLOSED;", "")])
def test_an_unknown_number_of_an_enum_is_a_number_or_of_a_closed_enum_no_value(option: str, unknown: str) -> None:
    source = f'edition = "2023"; message A {{ E E = 1; repeated E many = 2; }} enum E {{ {option} ZERO = 0; ONE = 1; }}'
    bodies = bodies_of(source)
    assert is_in_bulk(bodies)
    assert texts(bodies, [b"\x08\x01", b"\x08\x09", b"\x08\x00\x12\x03\x01\x09\x00"]) == [
        '{"E":"ONE"}',
        f"{{{unknown}}}",
        '{"E":"ZERO","many":["ONE",9,"ZERO"]}' if unknown else '{"E":"ZERO","many":["ONE","ZERO"]}',
    ]
