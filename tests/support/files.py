"""A record of test files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Order:
    """An order with its time."""

    id: int
    at: int
