"""What Spark says of a task that failed, in a sentence that says what to do."""

from __future__ import annotations

import pytest

from app.launcher import translate
from schemas.errors import SetupError

SAID = {
    "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver:"
    " 3.11, PySpark cannot run with different minor versions.": "worker 1's Python: .*3.12 than"
    ".*; set PYSPARK_PYTHON to the same Python on driver and executors",
    "ModuleNotFoundError: No module named 'app'": "worker 1: Meander is not installed where it",
    'Cannot run program "/no/python": error=2': "worker 1: Cannot run program .*; set PYSPARK_PY",
}


@pytest.mark.parametrize("said", SAID)
def test_what_has_to_be_put_right_is_named(said: str) -> None:
    error = translate("worker 1", f"Job aborted due to stage failure:\\n{said}\\nat org.apache")
    assert isinstance(error, SetupError)
    with pytest.raises(SetupError, match=SAID[said]):
        raise error
