"""Extraction after unlearning (arXiv 2505.24379): what can be rebuilt of deleted text by who kept the old model.

>>> attack = GuidedExtractor(pre, post, w=1.4)
>>> report = evaluate(attack, queries(post, deleted, prefix="half_words"))
>>> report.gain(), report.mcnemar()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from touchstone.lazy import exports

if TYPE_CHECKING:
    from touchstone.language.unlearned_extraction.choosing import choose_w as choose_w
    from touchstone.language.unlearned_extraction.diverging import divergence as divergence
    from touchstone.language.unlearned_extraction.diverging import rank_candidates as rank_candidates
    from touchstone.language.unlearned_extraction.evaluation import ExtractionReport as ExtractionReport
    from touchstone.language.unlearned_extraction.evaluation import evaluate as evaluate
    from touchstone.language.unlearned_extraction.extractor import Extraction as Extraction
    from touchstone.language.unlearned_extraction.extractor import GuidedExtractor as GuidedExtractor
    from touchstone.language.unlearned_extraction.gate import release_gate as release_gate
    from touchstone.language.unlearned_extraction.pairs import exact_unlearning_pair as exact_unlearning_pair
    from touchstone.language.unlearned_extraction.processor import (
        ReversedGuidanceLogitsProcessor as ReversedGuidanceLogitsProcessor,
    )
    from touchstone.language.unlearned_extraction.sources import Function as Function
    from touchstone.language.unlearned_extraction.sources import Released as Released
    from touchstone.language.unlearned_extraction.sources import SavedLogits as SavedLogits
    from touchstone.language.unlearned_extraction.splitting import queries as queries

# Resolved on first use, so that importing the package loads neither torch nor transformers.
_EXPORTS = {
    "Extraction": "extractor",
    "ExtractionReport": "evaluation",
    "Function": "sources",
    "GuidedExtractor": "extractor",
    "Released": "sources",
    "ReversedGuidanceLogitsProcessor": "processor",
    "SavedLogits": "sources",
    "choose_w": "choosing",
    "divergence": "diverging",
    "evaluate": "evaluation",
    "exact_unlearning_pair": "pairs",
    "queries": "splitting",
    "rank_candidates": "diverging",
    "release_gate": "gate",
}
__all__ = sorted(_EXPORTS)
__getattr__ = exports(__name__, _EXPORTS)
