"""Is an unlearned fact really gone (arXiv 2506.05735)? What still supports it, judged before and after.

>>> before, after = TripleProbe(old), TripleProbe(new)
>>> report = evaluate_unlearning(before, after, targets, graph, RuleJudge(rules))
>>> report.ues_instance, report.ues_graph, report.locality
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from touchstone.lazy import exports

if TYPE_CHECKING:
    from touchstone.language.knowledge_unlearning_eval.calibrating import corruptions as corruptions
    from touchstone.language.knowledge_unlearning_eval.calibrating import fit_temperature as fit_temperature
    from touchstone.language.knowledge_unlearning_eval.evaluation import evaluate_unlearning as evaluate_unlearning
    from touchstone.language.knowledge_unlearning_eval.files import read_case as read_case
    from touchstone.language.knowledge_unlearning_eval.graph import KnowledgeGraph as KnowledgeGraph
    from touchstone.language.knowledge_unlearning_eval.graph import Triple as Triple
    from touchstone.language.knowledge_unlearning_eval.judging import ChatJudge as ChatJudge
    from touchstone.language.knowledge_unlearning_eval.judging import RuleJudge as RuleJudge
    from touchstone.language.knowledge_unlearning_eval.judging import Rules as Rules
    from touchstone.language.knowledge_unlearning_eval.judging import judge_agreement as judge_agreement
    from touchstone.language.knowledge_unlearning_eval.leaks import closed_unlearning as closed_unlearning
    from touchstone.language.knowledge_unlearning_eval.leaks import minimal_leak_set as minimal_leak_set
    from touchstone.language.knowledge_unlearning_eval.probing import TripleProbe as TripleProbe
    from touchstone.language.knowledge_unlearning_eval.subgraph import Subgraph as Subgraph
    from touchstone.language.knowledge_unlearning_eval.subgraph import SupportingSubgraph as SupportingSubgraph

# Resolved on first use, so that importing the package loads neither torch nor transformers.
_EXPORTS = {
    "ChatJudge": "judging",
    "KnowledgeGraph": "graph",
    "RuleJudge": "judging",
    "Rules": "judging",
    "Subgraph": "subgraph",
    "SupportingSubgraph": "subgraph",
    "Triple": "graph",
    "TripleProbe": "probing",
    "closed_unlearning": "leaks",
    "corruptions": "calibrating",
    "evaluate_unlearning": "evaluation",
    "fit_temperature": "calibrating",
    "judge_agreement": "judging",
    "minimal_leak_set": "leaks",
    "read_case": "files",
}
__all__ = sorted(_EXPORTS)
__getattr__ = exports(__name__, _EXPORTS)
