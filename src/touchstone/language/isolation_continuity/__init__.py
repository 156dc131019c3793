"""Continuity and isolation (arXiv 2505.10606): how large a share of a prompt can change before the continuation does,
and which patterns exclude each other.

>>> body = pattern(model, ("0",))
>>> continuity_curve(model, body, lengths=(64, 256)).numbers["delta_hat"]
>>> learnable_periods(model).numbers["p_max"]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from touchstone.lazy import exports

if TYPE_CHECKING:
    from touchstone.language.isolation_continuity.basin import attractor_basin as attractor_basin
    from touchstone.language.isolation_continuity.basin import captures as captures
    from touchstone.language.isolation_continuity.bodies import passage as passage
    from touchstone.language.isolation_continuity.bodies import pattern as pattern
    from touchstone.language.isolation_continuity.curve import continuity_curve as continuity_curve
    from touchstone.language.isolation_continuity.divergence import hamming as hamming
    from touchstone.language.isolation_continuity.edits import DecisiveEdit as DecisiveEdit
    from touchstone.language.isolation_continuity.edits import decisive_edits as decisive_edits
    from touchstone.language.isolation_continuity.edits import restated as restated
    from touchstone.language.isolation_continuity.period import learnable_periods as learnable_periods
    from touchstone.language.isolation_continuity.period import pair_matrix as pair_matrix
    from touchstone.language.isolation_continuity.position import position_profile as position_profile
    from touchstone.language.isolation_continuity.report import Report as Report
    from touchstone.language.isolation_continuity.report import compare as compare
    from touchstone.language.isolation_continuity.report import gate as gate
    from touchstone.language.isolation_continuity.scaling import log_n_attention as log_n_attention
    from touchstone.language.isolation_continuity.tiny import Architecture as Architecture
    from touchstone.language.isolation_continuity.tiny import TinyTransformer as TinyTransformer

# Resolved on first use, so that importing the package loads neither torch nor transformers.
_EXPORTS = {
    "Architecture": "tiny",
    "DecisiveEdit": "edits",
    "Report": "report",
    "TinyTransformer": "tiny",
    "attractor_basin": "basin",
    "captures": "basin",
    "compare": "report",
    "continuity_curve": "curve",
    "decisive_edits": "edits",
    "gate": "report",
    "hamming": "divergence",
    "learnable_periods": "period",
    "log_n_attention": "scaling",
    "pair_matrix": "period",
    "passage": "bodies",
    "pattern": "bodies",
    "position_profile": "position",
    "restated": "edits",
}
__all__ = sorted(_EXPORTS)
__getattr__ = exports(__name__, _EXPORTS)
