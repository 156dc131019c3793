"""Test awareness (arXiv 2505.14617): does a model behave differently when it senses a test?

>>> pairs = build_pairs(n=60, tokenise=model.encode_continuation)
>>> found = cue_features(model, pairs)
>>> probe = AwarenessProbe().fit(found.x, found.y, found.groups)
>>> with GateEdit(model, probe.direction_, strength=1.0, sign=-1):
...     model.generate(prompts)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from touchstone.lazy import exports

if TYPE_CHECKING:
    from touchstone.language.test_awareness.arms import ResidualSteering as ResidualSteering
    from touchstone.language.test_awareness.arms import build_arms as build_arms
    from touchstone.language.test_awareness.comparison import AwarenessStudy as AwarenessStudy
    from touchstone.language.test_awareness.edit import GateEdit as GateEdit
    from touchstone.language.test_awareness.features import Features as Features
    from touchstone.language.test_awareness.features import build_grid as build_grid
    from touchstone.language.test_awareness.features import cell_features as cell_features
    from touchstone.language.test_awareness.features import cue_features as cue_features
    from touchstone.language.test_awareness.features import span_features as span_features
    from touchstone.language.test_awareness.labels import AskedJudge as AskedJudge
    from touchstone.language.test_awareness.labels import LexiconJudge as LexiconJudge
    from touchstone.language.test_awareness.labels import label_traces as label_traces
    from touchstone.language.test_awareness.mediation import dose_response as dose_response
    from touchstone.language.test_awareness.monitoring import monitor as monitor
    from touchstone.language.test_awareness.pairs import Pair as Pair
    from touchstone.language.test_awareness.pairs import PairTemplate as PairTemplate
    from touchstone.language.test_awareness.pairs import build_pairs as build_pairs
    from touchstone.language.test_awareness.pairs import load_pairs as load_pairs
    from touchstone.language.test_awareness.probe import AwarenessProbe as AwarenessProbe
    from touchstone.language.test_awareness.traces import generate_traces as generate_traces

# Resolved on first use, so that importing the package loads neither torch nor transformers.
_EXPORTS = {
    "AskedJudge": "labels",
    "AwarenessProbe": "probe",
    "AwarenessStudy": "comparison",
    "Features": "features",
    "GateEdit": "edit",
    "LexiconJudge": "labels",
    "Pair": "pairs",
    "PairTemplate": "pairs",
    "ResidualSteering": "arms",
    "build_arms": "arms",
    "build_grid": "features",
    "build_pairs": "pairs",
    "cell_features": "features",
    "cue_features": "features",
    "dose_response": "mediation",
    "generate_traces": "traces",
    "label_traces": "labels",
    "load_pairs": "pairs",
    "monitor": "monitoring",
    "span_features": "features",
}
__all__ = sorted(_EXPORTS)
__getattr__ = exports(__name__, _EXPORTS)
