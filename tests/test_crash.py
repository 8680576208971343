"""Killed at random moments: `python -m tests.crash --kills 200` does many, this a few."""

import os

import crash


def test_a_few_kills_lose_nothing_that_was_stored():
    seed = int(os.environ.get("WEAKLINK_SEED", "20"))
    assert crash.run(len(crash.SCENES), seed, seconds=1.0) == dict.fromkeys(crash.SCENES, 1)
