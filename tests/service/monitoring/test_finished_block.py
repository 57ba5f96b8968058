"""A finished block: the attributes of its span, of types that OpenTelemetry takes, with nothing of its rows."""

from dataclasses import fields

from feedline.service.monitoring.finished_block import FinishedBlock


def test_all_but_its_times_are_attributes():
    names = [field.name for field in fields(FinishedBlock)]
    block = FinishedBlock(**{name: "b-l0-b1" if name == "name" else place for place, name in enumerate(names)})
    attributes = block.attributes()
    assert sorted(map(str, attributes.values())) == sorted(
        str(getattr(block, name)) for name in names if name not in ("submitted_s", "arrived_s")
    )
    assert all(name.startswith("feedline.") for name in attributes)
    assert all(isinstance(value, str | int | float) for value in attributes.values())
