"""Connections to workers outside of a route are closed after they have carried nothing for a while."""

from __future__ import annotations

from types import SimpleNamespace

from feedline.service.cluster.reporting import IDLE_S, IdleConnections


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
