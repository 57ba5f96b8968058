"""What is shown has neither secrets nor values of rows."""

from __future__ import annotations

from feedline.service.feeder_status import shown_finding, shown_text


def test_values_and_secrets_are_left_out():
    assert shown_text("feature x: a value breaks clip: got 'Jane Doe', expected a number") == (
        "feature x: a value breaks clip (the log has the value)"
    )
    assert shown_text("the store s3://me:secret@host/b is slow\nagain") == "the store s3://host/b is slow again"
    assert shown_text("8 blocks in flight, 4 ring slots: the pace is not known yet").endswith("not known yet")


def test_findings_keep_rates_and_no_values():
    text = "feature 'x' is not as expected in epoch 0: got null_rate 0.03, expected <= 0.01; got min -7, expected >= 0"
    assert shown_finding(text) == text.replace("min -7", "min …")
