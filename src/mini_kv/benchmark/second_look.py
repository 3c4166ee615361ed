"""A second look at a claim: it is measured again, right next to whatever contradicts it.

A busy machine, or one that wakes its cores slowly, stretches calls for a while. What was measured in another
moment than the claim proves nothing until the claim was measured in that moment too.
"""

from __future__ import annotations

import msgspec

from mini_kv.benchmark.samples import Taken, TimedSubject, batch_request, time_candidate
from mini_kv.core.codes import Code
from mini_kv.core.records.benchmark import Series
from mini_kv.core.records.card import Case
from mini_kv.core.records.results import Finding
from mini_kv.core.rules.statistics import median

# A batch taken again is one of the plan's; a slow operator's has as many samples as last so long.
NEIGHBOUR_US = 150_000.0
LEAST_NEIGHBOUR_SAMPLES = 3


def again_us(subject: TimedSubject, case: Case, candidate: Series) -> float:
    """Take one more batch on the rotating inputs; return its P50. Raises ``CaseLost``."""
    plan = subject.card.benchmark
    fitting = int(NEIGHBOUR_US / max(candidate.p50_us * candidate.calls_per_sample, 1.0))
    so_far = Taken(samples_us=list(candidate.samples_us), calls_per_sample=candidate.calls_per_sample)
    request = msgspec.structs.replace(
        batch_request(subject, case.id, plan, so_far, kept_at=subject.chooser.random()),
        iterations=min(plan.iterations, max(fitting, LEAST_NEIGHBOUR_SAMPLES)),
    )
    return median(time_candidate(subject, request, subject.timeout_s).samples_us)


def not_reproduced(claim_us: float, now_us: float) -> Finding:
    """Return why a case whose samples cannot be had again is not stable."""
    return Finding(
        code=Code.TIME_NOT_REPRODUCED,
        message=f"the plan's samples say {claim_us:.2f} us a call; batches right after them {now_us:.2f} us",
    )
