import heapq
import itertools

import pytest

from core.simulation.links import Links


class Clock:
    def __init__(self):
        self.heap, self.count, self.now = [], itertools.count(), 0.0

    def schedule(self, at, function, argument):
        heapq.heappush(self.heap, (at, next(self.count), function, argument))

    def run(self, until=float("inf")):
        while self.heap and self.heap[0][0] <= until:
            self.now, _, function, argument = heapq.heappop(self.heap)
            function(self.now, argument)


def links(nodes=4, rate=100.0, latency=0.0):
    clock = Clock()
    return clock, Links([rate] * nodes, latency, clock.schedule)


def note(ends, name):
    return lambda now, flow, whole: ends.append((name, round(now, 6), whole))


def test_a_lone_flow_takes_size_over_rate_and_latency():
    clock, fabric = links(latency=0.5)
    ends = []
    fabric.start(0.0, 0, 1, 200.0, note(ends, "a"))
    clock.run()
    assert ends == [("a", 2.5, True)]
    assert fabric.moved_bytes == 200.0


def test_two_flows_of_one_sender_share_its_rate():
    clock, fabric = links()
    ends = []
    fabric.start(0.0, 0, 1, 100.0, note(ends, "a"))
    fabric.start(0.0, 0, 2, 100.0, note(ends, "b"))
    clock.run()
    assert ends == [("a", 2.0, True), ("b", 2.0, True)]


def test_a_flow_speeds_up_when_another_ends():
    clock, fabric = links()
    ends = []
    fabric.start(0.0, 0, 1, 100.0, note(ends, "long"))
    fabric.start(0.0, 2, 1, 25.0, note(ends, "short"))
    clock.run()
    # Both at 50 until 0.5 s; then 75 bytes at 100.
    assert ends == [("short", 0.5, True), ("long", 1.25, True)]


def test_a_later_flow_slows_the_one_under_way():
    clock, fabric = links()
    ends = []
    fabric.start(0.0, 0, 1, 100.0, note(ends, "a"))
    clock.run(until=0.5)
    fabric.start(0.5, 0, 3, 100.0, note(ends, "b"))
    clock.run()
    assert ends == [("a", 1.5, True), ("b", 2.0, True)]


def test_a_dead_node_cuts_its_flows_and_frees_the_others():
    clock, fabric = links()
    ends = []
    fabric.start(0.0, 0, 1, 100.0, note(ends, "cut"))
    fabric.start(0.0, 0, 2, 100.0, note(ends, "kept"))
    clock.run(until=1.0)
    fabric.cut(1.0, 1)
    clock.run()
    assert ends == [("cut", 1.0, False), ("kept", 1.5, True)]
    assert fabric.moved_bytes == pytest.approx(100.0)
