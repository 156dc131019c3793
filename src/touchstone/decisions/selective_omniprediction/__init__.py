"""One multicalibrated predictor, and for each cost structure the best rule that may say "I do not know" on top of it.

>>> model = MulticalibratedClassifier(base).fit(X, y, groups=G)
>>> SelectiveOmnipredictor(model).decide(X_new, ChowLoss("l2", a_plus=0.3, a_minus=0.1), groups=G_new)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from touchstone.lazy import exports

if TYPE_CHECKING:
    from touchstone.decisions.selective_omniprediction.auditing import Audit as Audit
    from touchstone.decisions.selective_omniprediction.auditing import audit as audit
    from touchstone.decisions.selective_omniprediction.certifying import certified_threshold as certified_threshold
    from touchstone.decisions.selective_omniprediction.deferring import budget_cost as budget_cost
    from touchstone.decisions.selective_omniprediction.deferring import workload as workload
    from touchstone.decisions.selective_omniprediction.groups import intersections as intersections
    from touchstone.decisions.selective_omniprediction.groups import plurality as plurality
    from touchstone.decisions.selective_omniprediction.losses import ChowLoss as ChowLoss
    from touchstone.decisions.selective_omniprediction.losses import Outcome as Outcome
    from touchstone.decisions.selective_omniprediction.multicalibrated import (
        MulticalibratedClassifier as MulticalibratedClassifier,
    )
    from touchstone.decisions.selective_omniprediction.reliable import (
        FullyReliableClassifier as FullyReliableClassifier,
    )
    from touchstone.decisions.selective_omniprediction.selective import (
        MultigroupSelectiveClassifier as MultigroupSelectiveClassifier,
    )
    from touchstone.decisions.selective_omniprediction.selective import (
        SelectiveOmnipredictor as SelectiveOmnipredictor,
    )

_EXPORTS = {
    "Audit": "auditing",
    "ChowLoss": "losses",
    "FullyReliableClassifier": "reliable",
    "MulticalibratedClassifier": "multicalibrated",
    "MultigroupSelectiveClassifier": "selective",
    "Outcome": "losses",
    "SelectiveOmnipredictor": "selective",
    "audit": "auditing",
    "budget_cost": "deferring",
    "certified_threshold": "certifying",
    "intersections": "groups",
    "plurality": "groups",
    "workload": "deferring",
}
__all__ = sorted(_EXPORTS)
__getattr__ = exports(__name__, _EXPORTS)
