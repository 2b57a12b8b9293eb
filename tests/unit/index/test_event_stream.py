import msgspec
import pytest

from core.index.event_stream import (
    Apply,
    Degraded,
    EventCursor,
    Forget,
    Recovered,
    RequestReplay,
    Restarted,
    Status,
)

END = [b"", b"", b"\xff" * 8, b""]


def payload(seq, process=0):
    return msgspec.msgpack.encode([1000.0 * process + seq, [["BlockRemoved", [seq]]], 0])


def frames(seq, process=0):
    return [b"topic", seq.to_bytes(8, "big"), payload(seq, process)]


def reply(seq, process=0):
    return [b"", *frames(seq, process)]


def plain(actions):
    """Actions as words and numbers."""
    out = []
    for action in actions:
        match action:
            case Apply(seq):
                out.append(seq)
            case RequestReplay(_, from_seq):
                out.append(f"replay {from_seq}")
            case Forget() | Degraded() | Recovered() | Restarted():
                out.append(type(action).__name__.lower())
    return out


class Driver:
    """A cursor with its last replay token, speaking in plain words."""

    def __init__(self, *, has_replay=True):
        self.cursor = EventCursor(has_replay=has_replay)
        self.token = 0
        self.now = 0.0

    def do(self, actions):
        for action in actions:
            if isinstance(action, RequestReplay):
                self.token = action.token
        return plain(actions)

    def start(self, **kwargs):
        return self.do(self.cursor.start(self.now, **kwargs))

    def live(self, seq, process=0):
        return self.do(self.cursor.live(frames(seq, process), self.now))

    def replies(self, *seqs, process=0, end=True):
        out = []
        token = self.token
        for seq in seqs:
            out += self.do(self.cursor.replayed(reply(seq, process), self.now, token=token))
        return out + (self.do(self.cursor.replayed(END, self.now, token=token)) if end else [])

    def tick(self, seconds):
        self.now += seconds
        return self.do(self.cursor.tick(self.now))


def caught_up(upto=5, **kwargs):
    driver = Driver(**kwargs)
    driver.start()
    driver.replies() if driver.cursor.has_replay else None
    for seq in range(upto + 1):
        assert driver.live(seq) == [seq]
    return driver


def test_a_start_learns_all_history_then_what_was_held():
    driver = Driver()
    assert driver.start() == ["replay 0"]
    assert driver.live(3) == driver.live(4) == []
    assert driver.replies(0, 1, 2, 3) == [0, 1, 2, 3, 4]
    assert driver.cursor.status is Status.LIVE
    assert driver.live(5) == [5]


def test_a_start_on_an_idle_new_engine():
    driver = Driver()
    driver.start()
    assert driver.replies() == []
    assert driver.cursor.status is Status.LIVE
    assert driver.live(0) == [0]


def test_a_long_lived_engine_is_learned_from_what_it_kept():
    driver = Driver()
    driver.start()
    assert driver.replies(900, 901) == [900, 901]
    assert driver.live(902) == [902]


def test_without_replay_the_stream_is_taken_as_it_comes():
    driver = Driver(has_replay=False)
    assert driver.start() == []
    assert driver.live(7) == [7]
    assert driver.live(8) == [8]


def test_duplicates_are_dropped():
    driver = caught_up()
    assert driver.live(5) == driver.live(3) == []
    assert driver.cursor.stats.duplicates == 2
    assert driver.live(6) == [6]


def test_a_gap_is_replayed_and_the_held_batch_applied_once():
    driver = caught_up()
    assert driver.live(8) == ["replay 5"]
    assert driver.live(9) == []
    assert driver.replies(5, 6, 7, 8) == [6, 7, 8, 9]
    assert driver.cursor.status is Status.LIVE
    assert driver.live(10) == [10]


def test_live_copies_of_replayed_batches_are_dropped():
    driver = caught_up()
    driver.live(8)
    assert driver.replies(5, 6, 7, 8, 9, 10) == [6, 7, 8, 9, 10]
    assert driver.live(9) == driver.live(10) == []
    assert driver.live(11) == [11]
    assert driver.cursor.stats.restarts == 0


def test_lost_history_forgets_and_relearns():
    driver = caught_up()
    driver.live(400)
    assert driver.replies(300, 301, end=False) == ["forget", 300, 301]
    assert driver.replies(*range(302, 401)) == list(range(302, 401))
    assert driver.cursor.status is Status.LIVE
    assert not driver.cursor.degraded


def test_a_restart_shows_when_numbers_go_back():
    driver = caught_up()
    assert driver.live(0, process=1) == ["restarted", "forget", "replay 0"]
    assert driver.replies(0, process=1) == [0]
    assert driver.live(1, process=1) == [1]


def test_a_restart_with_the_same_number_is_no_duplicate():
    driver = caught_up(0)
    assert driver.live(0, process=1) == ["restarted", "forget", "replay 0"]


def test_a_restart_without_replay_starts_from_the_frame_at_hand():
    driver = caught_up(has_replay=False)
    assert driver.live(2, process=1) == ["restarted", "forget", 2]
    assert driver.live(3, process=1) == [3]


def test_a_restart_hidden_in_a_gap_shows_in_the_replay():
    driver = caught_up()
    assert driver.live(9, process=1) == ["replay 5"]
    assert driver.replies(5, process=1, end=False) == ["restarted", "forget", "replay 0"]
    assert driver.replies(*range(10), process=1) == list(range(10))
    assert driver.cursor.status is Status.LIVE


def test_a_restart_that_has_not_come_as_far_answers_with_nothing():
    driver = caught_up(50)
    driver.live(53)
    assert driver.replies() == ["restarted", "forget", "replay 0"]


def test_a_changed_epoch_forgets_and_relearns():
    driver = caught_up()
    actions = driver.cursor.epoch_changed("process started at 12:00", 0.0)
    assert actions[0] == Restarted("process started at 12:00")
    assert driver.do(actions) == ["restarted", "forget", "replay 0"]
    assert driver.replies(0, 1, process=1) == [0, 1]


def test_an_epoch_change_during_a_replay_starts_over_and_old_replies_are_ignored():
    driver = caught_up()
    driver.live(8)
    old = driver.token
    driver.do(driver.cursor.epoch_changed("restarted", 0.0))
    assert driver.cursor.replayed(reply(5), 0.0, token=old) == []
    assert driver.cursor.replay_failed("late", 0.0, token=old) == []
    assert driver.replies(0, process=1) == [0]


def test_three_silent_replays_then_rest_then_start_anew():
    driver = caught_up()
    driver.live(8)
    assert driver.tick(1.9) == []
    assert driver.tick(0.2) == ["replay 5"]
    assert driver.tick(2.1) == ["replay 5"]
    assert driver.tick(2.1) == ["forget", "degraded"]
    assert driver.cursor.status is Status.COOLING
    assert driver.live(9) == driver.live(10) == []
    assert driver.tick(29.9) == []
    assert driver.tick(0.2) == ["replay 0"]
    assert driver.replies(*range(11)) == [*range(11), "recovered"]
    assert driver.live(11) == [11]


def test_progress_renews_the_attempts():
    driver = caught_up()
    driver.live(20)
    for seq in range(6, 15):
        driver.replies(*([seq - 1, seq]), end=False)
        assert driver.tick(2.1) == [f"replay {seq}"]
    assert driver.cursor.status is Status.REPLAYING


def test_a_replay_that_drips_is_cut_in_the_end():
    driver = caught_up()
    driver.live(1000)
    driver.replies(5, end=False)
    out = []
    for seq in range(6, 200):
        out += driver.tick(1.0)
        out += driver.replies(seq, end=False)
    assert "degraded" in out
    assert driver.cursor.status in (Status.COOLING, Status.REPLAYING)


def test_a_waiting_replay_is_not_late():
    driver = caught_up()
    driver.live(8)
    for _ in range(200):
        driver.now += 1.5
        driver.cursor.replay_waiting(driver.now, token=driver.token)
        assert driver.tick(0.0) == []
    assert driver.replies(5, 6, 7) == [6, 7, 8]


def test_a_replay_that_ends_early_or_has_a_hole_is_asked_for_again():
    driver = caught_up()
    driver.live(9)
    assert driver.replies(5, 6) == [6, "replay 6"]
    assert driver.replies(6, 8, end=False) == ["replay 6"]
    assert driver.replies(6, 7, 8) == [7, 8, 9]


def test_a_gap_without_replay_degrades_until_it_has_rested():
    driver = caught_up(has_replay=False)
    assert driver.live(8) == ["forget", "degraded"]
    assert driver.live(9) == []
    assert driver.tick(30.1) == ["recovered"]
    assert driver.live(10) == [10]


def test_a_batch_that_does_not_parse_costs_the_node_its_blocks_only():
    driver = caught_up()
    bad = [b"topic", (6).to_bytes(8, "big"), b"\xc1"]
    assert plain(driver.cursor.live(bad, 0.0)) == ["forget"]
    assert driver.live(7) == [7]


def test_frames_that_are_none_are_counted_and_too_many_end_the_stream():
    driver = caught_up()
    for _ in range(10):
        assert driver.cursor.live([b"x"], 1.0) == []
    assert plain(driver.cursor.live([b"", b"short", b""], 1.0)) == ["forget", "degraded"]
    assert driver.cursor.stats.malformed == 11


def test_bad_frames_spread_over_time_do_no_harm():
    driver = caught_up()
    for minute in range(100):
        assert driver.cursor.live([b"x"], 10.0 * minute) == []
    assert driver.cursor.status is Status.LIVE


def test_a_malformed_reply_is_a_failed_attempt():
    driver = caught_up()
    driver.live(8)
    actions = driver.cursor.replayed([b"", b"x"], 0.0, token=driver.token)
    assert plain(actions) == ["replay 5"]


def test_held_batches_are_bounded_and_fetched_again(monkeypatch):
    monkeypatch.setattr("core.index.stream_steps.HELD_BATCHES_MAX", 3)
    driver = caught_up()
    driver.live(8)
    for seq in range(9, 15):
        driver.live(seq)
    assert driver.cursor.stats.held_dropped == 4
    assert driver.replies(5, 6, 7) == [6, 7, 8, 9, 10, "replay 10"]
    assert driver.replies(10, 11, 12, 13, 14) == [11, 12, 13, 14]
    assert driver.cursor.status is Status.LIVE


def test_a_snapshot_is_continued_where_the_engine_is_still_the_same():
    before = caught_up()
    mark = {"applied": before.cursor.last_applied, "digest": before.cursor.applied_digest}
    driver = Driver()
    assert driver.start(**mark) == ["replay 5"]
    assert driver.replies(5, 6) == [6]
    driver = Driver()
    driver.start(**mark)
    assert driver.replies(5, process=1, end=False) == ["restarted", "forget", "replay 0"]
    driver = Driver()
    driver.start(**mark)
    assert driver.replies() == ["restarted", "forget", "replay 0"]
    driver = Driver(has_replay=False)
    assert driver.start(**mark) == ["forget"]


def test_older_replay_framing_without_topic():
    driver = caught_up()
    driver.live(7)
    for seq in (5, 6):
        three = [b"", seq.to_bytes(8, "big"), payload(seq)]
        driver.do(driver.cursor.replayed(three, 0.0, token=driver.token))
    actions = driver.cursor.replayed([b"", b"\xff" * 8, b""], 0.0, token=driver.token)
    assert plain(actions) == [7]


@pytest.mark.parametrize("has_replay", [True, False])
def test_nothing_is_applied_before_the_start(has_replay):
    driver = Driver(has_replay=has_replay)
    assert driver.live(0) == []
    assert driver.cursor.status is Status.UNKNOWN
