"""Monoculture or multiplicity: do many models shut out the same people, or does it depend on whom one is judged by?

>>> table = DecisionTable(decisions, y, groups={"sex": sex})
>>> print(audit(table, eps=0.05).to_markdown())
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from touchstone.lazy import exports

if TYPE_CHECKING:
    from touchstone.decisions.monoculture.baselines import poisson_binomial_pmf as poisson_binomial_pmf
    from touchstone.decisions.monoculture.correlation import equivalent_correlation as equivalent_correlation
    from touchstone.decisions.monoculture.correlation import one_factor_table as one_factor_table
    from touchstone.decisions.monoculture.difficulty import item_difficulty as item_difficulty
    from touchstone.decisions.monoculture.drift import recourse_drift as recourse_drift
    from touchstone.decisions.monoculture.exclusion import describe_excluded as describe_excluded
    from touchstone.decisions.monoculture.measures import agreement_curve as agreement_curve
    from touchstone.decisions.monoculture.measures import ambiguity as ambiguity
    from touchstone.decisions.monoculture.measures import discrepancy as discrepancy
    from touchstone.decisions.monoculture.measures import homogenisation_log10 as homogenisation_log10
    from touchstone.decisions.monoculture.measures import pairwise_agreement as pairwise_agreement
    from touchstone.decisions.monoculture.measures import rashomon_set as rashomon_set
    from touchstone.decisions.monoculture.measures import recourse_curve as recourse_curve
    from touchstone.decisions.monoculture.measures import recourse_levels as recourse_levels
    from touchstone.decisions.monoculture.prompts import PromptStyle as PromptStyle
    from touchstone.decisions.monoculture.prompts import TabularPrompter as TabularPrompter
    from touchstone.decisions.monoculture.prompts import all_styles as all_styles
    from touchstone.decisions.monoculture.report import AuditReport as AuditReport
    from touchstone.decisions.monoculture.report import audit as audit
    from touchstone.decisions.monoculture.report import deficit_sweep as deficit_sweep
    from touchstone.decisions.monoculture.schema import Schema as Schema
    from touchstone.decisions.monoculture.scorer import LMScorer as LMScorer
    from touchstone.decisions.monoculture.subsets import by_model_attribute as by_model_attribute
    from touchstone.decisions.monoculture.subsets import compare_sets as compare_sets
    from touchstone.decisions.monoculture.subsets import greedy_portfolio as greedy_portfolio
    from touchstone.decisions.monoculture.subsets import recourse_by_size as recourse_by_size
    from touchstone.decisions.monoculture.subsets import subsampled as subsampled
    from touchstone.decisions.monoculture.table import DecisionTable as DecisionTable
    from touchstone.decisions.monoculture.table import fit_threshold as fit_threshold

_EXPORTS = {
    "AuditReport": "report",
    "DecisionTable": "table",
    "LMScorer": "scorer",
    "PromptStyle": "prompts",
    "Schema": "schema",
    "TabularPrompter": "prompts",
    "agreement_curve": "measures",
    "all_styles": "prompts",
    "ambiguity": "measures",
    "audit": "report",
    "by_model_attribute": "subsets",
    "compare_sets": "subsets",
    "deficit_sweep": "report",
    "describe_excluded": "exclusion",
    "discrepancy": "measures",
    "equivalent_correlation": "correlation",
    "fit_threshold": "table",
    "greedy_portfolio": "subsets",
    "homogenisation_log10": "measures",
    "item_difficulty": "difficulty",
    "one_factor_table": "correlation",
    "pairwise_agreement": "measures",
    "poisson_binomial_pmf": "baselines",
    "rashomon_set": "measures",
    "recourse_by_size": "subsets",
    "recourse_curve": "measures",
    "recourse_drift": "drift",
    "recourse_levels": "measures",
    "subsampled": "subsets",
}
__all__ = sorted(_EXPORTS)
__getattr__ = exports(__name__, _EXPORTS)
