"""An explanation's facts are plain values that JSON has, of the rank that waits most."""

from __future__ import annotations

import json

from explained_runs import rank_samples

from feedline.workbench.explain.explained_costs import Explanation, HeadspaceFacts, explanation_facts


def test_facts_are_those_of_the_slowest_rank_samples() -> None:
    explanation = Explanation(
        name="n",
        source="running",
        ranks=(rank_samples(0, 0.1), rank_samples(1, 0.5)),
        seconds=4.0,
        headspace=HeadspaceFacts(rows_per_s=2000.0, gain=2.0),
    )
    assert explanation.slowest.rank == 1
    facts = explanation_facts(explanation, explanation.slowest.verdict())
    again = json.loads(json.dumps(facts, allow_nan=False))
    assert again == facts
    assert (facts["rank"], facts["trainer_wait"], facts["limit"], facts["headspace"]["gain"]) == (1, 0.5, "cores", 2.0)
    assert [each["rank"] for each in facts["ranks"]] == [0, 1]
    assert facts["stages"][0] == {
        "name": "planning",
        "seconds": 0.0,
        "cpu_s": None,
        "rows_per_s": None,
        "interval": None,
    }
    assert {each["resource"] for each in facts["bounds"]} == {"trainer", "threads", "cores"}
    assert facts["advice"][0]["kind"] == "workers"
    assert len(facts["samples"]) == 4
