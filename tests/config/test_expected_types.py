"""Words for what a value must be: pydantic's own errors are the inputs."""

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from feedline.config.expected_types import expectation_of


class Inner(BaseModel):
    model_config = ConfigDict(strict=True)
    size: int = Field(default=1, ge=1)


class Outer(BaseModel):
    model_config = ConfigDict(strict=True)
    inner: Inner = Inner()
    share: float = Field(default=0.5, gt=0, lt=1)
    on: bool = True


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"inner": {"size": "1_000"}}, ("an integer", "Write 1000, without quotes or underscores")),
        ({"inner": {"size": 2.0}}, ("an integer", "Write 2")),
        ({"inner": {"size": 0}}, ("at least 1", "")),
        ({"inner": None}, ("a mapping with the keys size", "Write one of its keys below it")),
        ({"share": 1}, ("less than 1", "")),
        ({"on": "yes"}, ("true or false", "YAML 1.2 has no other booleans")),
    ],
)
def test_errors_become_expectations_with_a_remedy(value: dict[str, object], expected: tuple[str, str]):
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(value)
    [detail] = caught.value.errors()
    assert expectation_of(detail, ("size",)) == expected
