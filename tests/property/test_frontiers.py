"""I1 and I7 by brute force: no member reports a frontier ahead of what is really outstanding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest

from meander.dataflow.progress.capability import Capability
from meander.state.store.store import Databases
from tests.support.property.budget import FLOWS, SCHEDULES, seeds
from tests.support.property.cases import Case, checked, random_case, with_some_comings_and_goings
from tests.support.property.frontier_watch import watch_frontiers

FLOOR = 20


@pytest.mark.soak
def test_no_member_of_a_flow_reports_a_frontier_ahead_of_what_is_outstanding(
    databases: Databases,
    capabilities: list[Capability],
    record_property: Callable[[str, object], None],
) -> None:
    namespace, happened = count(), Counter[str]()

    def watched(case: Case) -> Counter[str]:
        return watch_frontiers(case, next(namespace), databases, capabilities)

    for seed in seeds(FLOWS, FLOOR):
        case = with_some_comings_and_goings(random_case(seed))
        happened += checked(case, watched)
        happened["runs"] += 1
    record_property(f"{SCHEDULES}flows whose frontiers were watched", happened["runs"])
    record_property("looks at all that was outstanding", happened["looks"])
    record_property("workers that joined these", happened["joined"])
    record_property("workers that left these", happened["left"])
    record_property("partitions of these that changed hands", happened["partition_moved"])
    record_property("partitions that came to these", happened["partition_added"])
