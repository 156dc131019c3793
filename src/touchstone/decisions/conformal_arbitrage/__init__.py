"""Conformal Arbitrage: route each query between two models under a promise on the risk.

>>> router = ConformalArbitrage(alpha=0.05).calibrate(primary_scores, guard_values)
>>> router.decide(new_scores, guardian).choice
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from touchstone.lazy import exports

if TYPE_CHECKING:
    from touchstone.decisions.conformal_arbitrage.arbitrage import ConformalArbitrage as ConformalArbitrage
    from touchstone.decisions.conformal_arbitrage.arbitrage import Decision as Decision
    from touchstone.decisions.conformal_arbitrage.baselines import chord_gain as chord_gain
    from touchstone.decisions.conformal_arbitrage.baselines import compare_routers as compare_routers
    from touchstone.decisions.conformal_arbitrage.baselines import measure as measure
    from touchstone.decisions.conformal_arbitrage.costs import Costs as Costs
    from touchstone.decisions.conformal_arbitrage.drift import DriftAlarm as DriftAlarm
    from touchstone.decisions.conformal_arbitrage.endpoint import EndpointParty as EndpointParty
    from touchstone.decisions.conformal_arbitrage.log import ScoreLog as ScoreLog
    from touchstone.decisions.conformal_arbitrage.log import replay as replay
    from touchstone.decisions.conformal_arbitrage.option_scorer import OptionScorer as OptionScorer
    from touchstone.decisions.conformal_arbitrage.parties import FunctionParty as FunctionParty
    from touchstone.decisions.conformal_arbitrage.parties import LocalParty as LocalParty
    from touchstone.decisions.conformal_arbitrage.parties import Query as Query
    from touchstone.decisions.conformal_arbitrage.parties import UnavailableError as UnavailableError
    from touchstone.decisions.conformal_arbitrage.parties import party as party
    from touchstone.decisions.conformal_arbitrage.queue import QueueParty as QueueParty
    from touchstone.decisions.conformal_arbitrage.router import Router as Router
    from touchstone.decisions.conformal_arbitrage.server import RouterServer as RouterServer

_EXPORTS = {
    "ConformalArbitrage": "arbitrage",
    "Costs": "costs",
    "Decision": "arbitrage",
    "DriftAlarm": "drift",
    "EndpointParty": "endpoint",
    "FunctionParty": "parties",
    "LocalParty": "parties",
    "OptionScorer": "option_scorer",
    "Query": "parties",
    "QueueParty": "queue",
    "Router": "router",
    "RouterServer": "server",
    "ScoreLog": "log",
    "UnavailableError": "parties",
    "chord_gain": "baselines",
    "compare_routers": "baselines",
    "measure": "baselines",
    "party": "parties",
    "replay": "log",
}
__all__ = sorted(_EXPORTS)
__getattr__ = exports(__name__, _EXPORTS)
