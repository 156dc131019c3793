"""EvoRefuse (arXiv 2505.23473): find harmless requests that a model refuses, and teach it not to.

>>> out = EvoRefuse(model, **default_rules(), fitness="prefix_mass").run(seeds)
>>> out.to_jsonl("found.jsonl")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from touchstone.lazy import exports

if TYPE_CHECKING:
    from touchstone.language.evorefuse.align import build_align as build_align
    from touchstone.language.evorefuse.archive import Archive as Archive
    from touchstone.language.evorefuse.grammar import default_grammar as default_grammar
    from touchstone.language.evorefuse.influence import attribution as attribution
    from touchstone.language.evorefuse.llm import llm_writers as llm_writers
    from touchstone.language.evorefuse.metrics import confidence as confidence
    from touchstone.language.evorefuse.metrics import diversity as diversity
    from touchstone.language.evorefuse.metrics import over_refusal_report as over_refusal_report
    from touchstone.language.evorefuse.mitigation import load_adapter as load_adapter
    from touchstone.language.evorefuse.mitigation import mitigate as mitigate
    from touchstone.language.evorefuse.rules import default_rules as default_rules
    from touchstone.language.evorefuse.search import EvoRefuse as EvoRefuse
    from touchstone.language.evorefuse.trigger import minimal_trigger as minimal_trigger
    from touchstone.language.evorefuse.trigger import paired_contrast as paired_contrast
    from touchstone.language.evorefuse.two_sided import two_sided_report as two_sided_report

# Resolved on first use, so that importing the package loads neither torch nor transformers.
_EXPORTS = {
    "Archive": "archive",
    "EvoRefuse": "search",
    "attribution": "influence",
    "build_align": "align",
    "confidence": "metrics",
    "default_grammar": "grammar",
    "default_rules": "rules",
    "diversity": "metrics",
    "llm_writers": "llm",
    "load_adapter": "mitigation",
    "minimal_trigger": "trigger",
    "mitigate": "mitigation",
    "over_refusal_report": "metrics",
    "paired_contrast": "trigger",
    "two_sided_report": "two_sided",
}
__all__ = sorted(_EXPORTS)
__getattr__ = exports(__name__, _EXPORTS)
