"""The greatest state that a bin may carry fits a record of the state topic."""

from meander.state.layers.layer_writer import STATE_LIMIT
from meander.state.layers.topic import MAX_STATE_RECORD


def test_a_state_within_the_limit_fits_a_record_of_the_state_topic() -> None:
    assert MAX_STATE_RECORD >= STATE_LIMIT + 4096
