from rankline.serving.server.supervisor import Backoff


def test_pauses_between_starts_grow_and_end_when_it_ran_for_a_while() -> None:
    now_s = 0.0
    backoff = Backoff(lambda: now_s)

    def end_after(duration_s: float) -> float:
        nonlocal now_s
        backoff.note_start()
        now_s += duration_s
        return backoff.note_end()

    assert [end_after(1.0) for _ in range(5)] == [0, 1, 2, 2, 2]  # crashes
    assert end_after(60.0) == 0
    assert [backoff.note_end() for _ in range(6)] == [1, 2, 4, 8, 10, 10]  # starts that fail
    assert [backoff.note_end() for _ in range(2000)][-1] == 10
    assert not backoff.is_due
    now_s += 10
    assert backoff.is_due
