"""Fairness reward models (arXiv 2507.11344): let fair lines of reasoning weigh more in a decision.

>>> reward = FairnessRewardModel(context="none").fit(steps, labels)
>>> FairVote(tau=0.2).decide(chains, reward.score_chains(chains))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from touchstone.lazy import exports

if TYPE_CHECKING:
    from touchstone.language.fairness_reward_model.chains import Case as Case
    from touchstone.language.fairness_reward_model.chains import Chain as Chain
    from touchstone.language.fairness_reward_model.chains import extract_answer as extract_answer
    from touchstone.language.fairness_reward_model.chains import read_cases as read_cases
    from touchstone.language.fairness_reward_model.chains import split_steps as split_steps
    from touchstone.language.fairness_reward_model.fairness import choose_tau as choose_tau
    from touchstone.language.fairness_reward_model.fairness import group_fairness_report as group_fairness_report
    from touchstone.language.fairness_reward_model.fairness import tau_sweep as tau_sweep
    from touchstone.language.fairness_reward_model.labels import JudgeLabeler as JudgeLabeler
    from touchstone.language.fairness_reward_model.labels import RuleLabeler as RuleLabeler
    from touchstone.language.fairness_reward_model.reward import FairnessRewardModel as FairnessRewardModel
    from touchstone.language.fairness_reward_model.voting import Ballots as Ballots
    from touchstone.language.fairness_reward_model.voting import FairVote as FairVote

# Resolved on first use, so that importing the package loads neither torch nor scikit-learn.
_EXPORTS = {
    "Ballots": "voting",
    "Case": "chains",
    "Chain": "chains",
    "FairVote": "voting",
    "FairnessRewardModel": "reward",
    "JudgeLabeler": "labels",
    "RuleLabeler": "labels",
    "choose_tau": "fairness",
    "extract_answer": "chains",
    "group_fairness_report": "fairness",
    "read_cases": "chains",
    "split_steps": "chains",
    "tau_sweep": "fairness",
}
__all__ = sorted(_EXPORTS)
__getattr__ = exports(__name__, _EXPORTS)
