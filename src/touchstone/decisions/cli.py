"""The verbs of the room: ``touchstone decisions …``."""

from __future__ import annotations

import typer

from touchstone.decisions.conformal_arbitrage.cli import app as route
from touchstone.decisions.monoculture.cli import app as monoculture
from touchstone.decisions.selective_omniprediction.cli import app as abstain

__all__ = ["app"]

app = typer.Typer(
    name="decisions",
    help="Tables of predictions, scores and decisions; routing a query between models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(abstain)
app.add_typer(monoculture)
app.add_typer(route)
