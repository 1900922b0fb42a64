"""The sync interval by step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solo.errors import InvalidArgument
from solo.schedule import Schedule


def test_a_number_is_the_interval_at_every_step() -> None:
    schedule = Schedule.parse("100")
    assert schedule.at(0) == schedule.at(99_999) == 100
    assert str(schedule) == "100"


def test_stages_apply_from_their_step_on() -> None:
    schedule = Schedule.parse("0:1, 500:16,5000:100")
    assert [schedule.at(s) for s in (0, 499, 500, 4_000, 5000, 70_000)] == [1, 1, 16, 16, 100, 100]
    assert str(schedule) == "0:1,500:16,5000:100"


def test_a_long_interval_does_not_swallow_the_stage_that_follows() -> None:
    assert Schedule.parse("0:100,150:10").at(100) == 50


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0", "0 is not between 1"),
        ("-3", "-3 is not between 1"),
        ("ten", "'ten' is not a whole number"),
        ("", "'' is not a whole number"),
        ("5:1,10:2", "begins at step 5"),
        ("0:1,0:2", "ascending"),
        ("0:1,20", "has no STEP"),
        ("0:0", "0 is not between 1"),
        ("1.5", "not a whole number"),
    ],
)
def test_a_malformed_interval_is_refused_with_its_text_and_how_to_write_it(
    text: str, why: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Schedule.parse(text)
    assert why in str(caught.value)
    assert repr(text) in str(caught.value)
    assert "0:1,500:16" in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_a_schedule_or_a_clear_error(text: str) -> None:
    try:
        schedule = Schedule.parse(text)
    except InvalidArgument as error:
        assert "sync interval" in str(error)
    else:
        assert Schedule.parse(str(schedule)) == schedule
        assert schedule.at(0) >= 1
