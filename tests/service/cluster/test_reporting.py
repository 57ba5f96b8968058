"""What a feeder reports to its scheduler: what passes demand, and the connections that it keeps meanwhile."""

from __future__ import annotations

from types import SimpleNamespace

from feedline.service.cluster.reporting import HELD_S, IDLE_S, IdleConnections, PassDemand


def test_a_pass_that_lasts_asks_for_a_thread_per_task_and_later_gives_back():
    demand = PassDemand(grow_after_s=5.0)
    assert [demand.look(tasks, now_s) for now_s, tasks in ((0.0, 0), (2.0, 90), (6.0, 80))] == [0.0, 1.0, 1.0]
    assert demand.look(70, 7.0) == 70.0
    assert demand.look(0, 9.0) == 70.0, "between two waves"
    assert demand.look(60, 11.0) == 70.0, "the second wave has not begun anew"
    assert demand.look(2, 12.0 + HELD_S) == 2.0, "its last tasks"
    assert demand.look(0, 13.0 + 2 * HELD_S) == 0.0
    assert demand.look(50, 14.0 + 2 * HELD_S) == 1.0, "another pass"


def test_only_idle_connections_to_workers_outside_of_the_route_are_closed():
    closed: list[str] = []
    available = {"member": {1}, "left": {2}, "busy": {3}, "none": set[int]()}
    occupied = {"busy": {4}}

    def remove(address: str, *, reason: str) -> None:
        closed.append(address)
        del available[address]

    pool = SimpleNamespace(available=available, occupied=occupied, remove=remove)
    idle = IdleConnections()
    idle.close_others(pool, {"member"}, 0.0)
    idle.close_others(pool, {"member"}, IDLE_S - 1)
    assert not closed
    idle.close_others(pool, {"member"}, IDLE_S)
    assert closed == ["left"]
    occupied["busy"].clear()
    idle.close_others(pool, {"member"}, 2 * IDLE_S)
    assert closed == ["left"], "idle since now"
    idle.close_others(pool, {"member", "busy"}, 2.5 * IDLE_S)
    idle.close_others(pool, {"member"}, 3 * IDLE_S)
    idle.close_others(pool, (), 9 * IDLE_S)
    assert closed == ["left"], "it was in the route in between, and without one all stay"
    assert set(available) == {"member", "busy", "none"}
