"""How long random tests run, and from which seed; `make soak` sets both."""

from __future__ import annotations

import os

SECONDS = float(os.environ.get("MEANDER_PROPERTY_SECONDS", "60"))
"""For the migration oracle; other suites take a share of it."""
FIRST_SEED = int(os.environ.get("MEANDER_SEED", "0"))
