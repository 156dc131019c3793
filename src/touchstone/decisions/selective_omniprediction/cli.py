"""``touchstone decisions abstain``: fit a predictor, decide or abstain for any loss, report, certify and price."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from touchstone.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from touchstone.decisions.selective_omniprediction.losses import ChowLoss

__all__ = ["app"]

app = typer.Typer(
    name="abstain",
    help="Decide or say nothing: one calibrated predictor for all costs and overlapping groups.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Data = Annotated[Path, typer.Argument(help="Table (.csv or .parquet), one row a case.")]
Truth = Annotated[str, typer.Option(help="Column of the outcome; guessed if left out.")]
Groups = Annotated[str, typer.Option(help="Columns of attributes, separated by commas; guessed if left out.")]
Favourable = Annotated[str, typer.Option(help="The value of the outcome whose probability is meant.")]
Model = Annotated[Path, typer.Option("--model", help="File of `fit`.")]
Loss = Annotated[str, typer.Option(help="l1, l2, cost01 or logistic.")]
Plus = Annotated[float, typer.Option(help="Price of saying nothing where the outcome is favourable.")]
Minus = Annotated[float, typer.Option(help="Price of saying nothing where it is not.")]
Seed = Annotated[int, typer.Option(help="Every random number follows from it.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout and nothing else.")]


@app.command()
def fit(
    table: Data,
    out: Annotated[Path, typer.Option("--out", help="File of the predictor (safetensors).")],
    truth: Truth = "",
    score: Annotated[str, typer.Option(help="Column of a model's probabilities to begin from.")] = "",
    features: Annotated[
        str, typer.Option(help="Columns to look at, separated by commas; all others if left out.")
    ] = "",
    groups: Groups = "",
    depth: Annotated[int, typer.Option(min=1, help="Attributes that are combined into groups at most.")] = 2,
    min_group: Annotated[
        int, typer.Option(min=1, help="Rows of the smallest group in the half that finds concepts.")
    ] = 50,
    favourable: Favourable = "1",
    step: Annotated[float, typer.Option(help="Share of a concept that is added in a round.")] = 0.1,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds at most.")] = 200,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Fit probabilities that are calibrated in every group, from a model's scores or from features alone."""
    from touchstone.decisions.predictions import Predictions
    from touchstone.decisions.selective_omniprediction.tables import TablePredictor
    from touchstone.progress import Bars

    data = Predictions.read(table, truth=truth, scores=_names(score), groups=_names(groups), favourable=favourable)
    data.need("truth", who="abstain fit")
    # Scores that were only guessed may be features.
    used = {data.truth, score}
    wanted = _names(features) or [str(name) for name in data.frame.columns if str(name) not in used]
    if score:
        _complete(data.frame, score)
    bars = Bars()
    with bars.bar("finding concepts, rounds at most", rounds) as advance:
        found = TablePredictor.fit(
            data.frame,
            data.outcomes.astype(int),
            features=wanted,
            score=score,
            groups=data.groups,
            depth=depth,
            min_group=min_group,
            path=table,
            progress=advance,
            step=step,
            max_iter=rounds,
            random_state=seed,
        )
    found.save(out)
    log = found.model.history_
    accepted = int(log["accepted"].sum()) if len(log) else 0
    record = {
        "out": str(out),
        "rows": len(data),
        "features": [column.name for column in found.columns],
        "groups": list(found.groups),
        "rounds": len(log),
        "accepted": accepted,
        "squared_error": [float(log["mse_before"].iloc[0]), float(log["mse"].iloc[-1])] if len(log) else None,
    }
    if as_json:
        typer.echo(json.dumps(record, indent=2, ensure_ascii=False))
        return
    typer.echo(f"saved {out}: {len(data)} rows, {len(found.groups)} groups, {accepted} of {len(log)} concepts accepted")
    typer.echo(f"next: touchstone decisions abstain report FRESH_TABLE --model {out}")


@app.command()
def predict(
    table: Data,
    model: Model,
    out: Annotated[Path, typer.Option("--out", help="Table of probabilities and decisions (.csv).")],
    loss: Loss = "l1",
    a_plus: Plus = 0.1,
    a_minus: Minus = 0.1,
    eps: Annotated[
        float | None, typer.Option(help="Decide up to eps and from 1 - eps on instead, whatever the loss.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Decide or say nothing about each row: k* of a loss, or the threshold that is fair to groups."""
    import numpy as np
    import pandas as pd

    from touchstone.decisions.predictions import read_table
    from touchstone.decisions.selective_omniprediction.selective import as_sets, threshold_decision
    from touchstone.decisions.selective_omniprediction.tables import TablePredictor
    from touchstone.files import write_text

    rule = _loss(loss, a_plus, a_minus)
    frame = read_table(table, "table")
    h = TablePredictor.load(model).scores(frame)
    if eps is not None:
        if not 0 < eps < 0.5:
            raise InputError(f"--eps {eps}: expected a number between 0 and 0.5")
        said = threshold_decision(h, eps)
        decided = np.where(said < 0, np.nan, said)
        interval: Any = (eps, 1 - eps)
        sets = as_sets(said)
        more = {"may_be_0": sets[:, 0].astype(int), "may_be_1": sets[:, 1].astype(int)}
    else:
        decided, interval, more = rule.decide(h), rule.abstention_interval(), {}
    result = pd.DataFrame({"probability": h, "decision": decided, **more})
    write_text(out, result.to_csv(index=False, lineterminator="\n"))
    silent = int(np.isnan(decided).sum())
    record = {"out": str(out), "rows": len(h), "without_decision": silent, "interval": interval}
    if as_json:
        typer.echo(json.dumps(record, indent=2))
        return
    between = f"between {interval[0]:.4g} and {interval[1]:.4g}" if interval else "nowhere"
    typer.echo(f"saved {out}: {len(h)} rows, {silent} of them without a decision (probabilities {between})")


@app.command()
def report(
    table: Data,
    truth: Truth = "",
    scores: Annotated[
        str, typer.Option(help="Columns of probabilities, separated by commas; guessed if left out.")
    ] = "",
    model: Annotated[Path | None, typer.Option("--model", help="File of `fit`, reported beside its base.")] = None,
    groups: Groups = "",
    favourable: Favourable = "1",
    eps: Annotated[float, typer.Option(help="Decide up to eps and from 1 - eps on.")] = 0.1,
    loss: Annotated[str, typer.Option(help="l1, l2 or logistic.")] = "l1",
    a_plus: Plus = 0.1,
    a_minus: Minus = 0.1,
    depth: Annotated[int, typer.Option(min=1, help="Attributes that are combined into groups at most.")] = 2,
    draws: Annotated[int, typer.Option(min=2, help="Bootstrap draws.")] = 500,
    out: Annotated[Path | None, typer.Option("--out", help="Folder: evidence.json, tables, figures.")] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Calibration, abstention and errors, overall and in every group, on rows that no fit has seen."""
    from touchstone.decisions.predictions import Predictions
    from touchstone.decisions.selective_omniprediction.check import Settings, check
    from touchstone.progress import Bars
    from touchstone.run import Run

    if out is not None and out.exists():
        raise InputError(f"{out}: already exists; nothing was written")
    if loss not in ("l1", "l2", "logistic"):
        raise InputError(f"--loss {loss!r}: expected l1, l2 or logistic")
    if not 0 < eps < 0.5:
        raise InputError(f"--eps {eps}: expected a number between 0 and 0.5")
    _loss(loss, a_plus, a_minus)
    data = Predictions.read(table, truth=truth, scores=_names(scores), groups=_names(groups), favourable=favourable)
    bars = Bars()
    named = ""
    if model is not None:
        data, named = _with_model(data, table, model, scores=_names(scores), say=bars.say)
    settings = Settings(eps, loss, a_plus, a_minus, depth, draws=draws, model=named)  # type: ignore[arg-type]
    evidence = check(data, settings, Run(seed=seed, progress=bars))
    if out is not None:
        evidence.save(out)
    if as_json:
        typer.echo(evidence.to_json(), nl=False)
        return
    from rich.console import Console

    from touchstone.report import render_terminal

    Console().print(render_terminal([evidence]))


@app.command()
def certify(
    table: Data,
    model: Model,
    truth: Truth = "",
    favourable: Favourable = "1",
    eps: Annotated[float, typer.Option(help="Share of all cases that may be decided wrongly.")] = 0.1,
    group_eps: Annotated[
        float | None, typer.Option(help="Share of each group's cases that may be decided wrongly.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Probability with which a bound may fail.")] = 0.05,
    as_json: Json = False,
) -> None:
    """The largest threshold whose errors are bounded with a confidence, from rows that no fit has seen."""
    from touchstone.decisions.predictions import Predictions
    from touchstone.decisions.selective_omniprediction.certifying import certified_threshold
    from touchstone.decisions.selective_omniprediction.tables import TablePredictor

    data = Predictions.read(table, truth=truth, favourable=favourable)
    data.need("truth", who="abstain certify")
    predictor = TablePredictor.load(model)
    if predictor.saw(table):
        raise InputError(f"{table}: is the table of the fit; a certificate needs rows that no fit has seen")
    h = predictor.scores(data.frame)
    y = data.outcomes.astype(int)
    threshold = certified_threshold(h, y, eps, predictor.membership(data.frame), group_eps=group_eps, delta=delta)
    share = float(((h <= threshold) | (h >= 1 - threshold)).mean()) if threshold else 0.0
    record = {"threshold": threshold, "predicted_share": share, "rows": len(h)}
    if as_json:
        typer.echo(json.dumps(record, indent=2))
    elif not threshold:
        typer.echo("no threshold keeps these bounds: abstain everywhere, or allow more errors")
    else:
        typer.echo(f"threshold {threshold:.3f}: decides {share:.1%} of the rows; use predict --eps {threshold:.3f}")


@app.command()
def price(
    table: Data,
    score: Annotated[str, typer.Option(help="Column of probabilities.")],
    loss: Loss = "l1",
    most: Annotated[float | None, typer.Option(help="Find the price at which at most this share is deferred.")] = None,
    group_most: Annotated[float | None, typer.Option(help="And at most this share of any group.")] = None,
    groups: Annotated[str, typer.Option(help="Columns of attributes, separated by commas.")] = "",
    as_json: Json = False,
) -> None:
    """What a price of abstaining leads to: the interval of probabilities, and the share of cases that is deferred."""
    import numpy as np

    from touchstone.decisions.predictions import Predictions, read_table
    from touchstone.decisions.selective_omniprediction.deferring import budget_cost, workload
    from touchstone.decisions.selective_omniprediction.groups import intersections

    data = Predictions(read_table(table, "table"), scores=(score,), groups=tuple(_names(groups)))
    h = _complete(data.frame, score)
    members = intersections(data.frame[list(data.groups)], depth=1) if data.groups else None
    rule = _loss(loss, 0.1, 0.1)
    if most is not None:
        costs = [budget_cost(rule, h, most, members, group_most)]
    elif group_most is not None:
        raise InputError("--group-most: needs --most")
    else:
        costs = np.linspace(0.05, 0.5, 10).round(3).tolist()
    rows = workload(rule, h, costs, members)
    if as_json:
        typer.echo(rows.to_json(orient="records", indent=2))
    else:
        typer.echo(rows.to_string(index=False, float_format=lambda value: f"{value:.3f}"))


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _loss(kind: str, a_plus: float, a_minus: float) -> ChowLoss:
    from touchstone.decisions.selective_omniprediction.losses import KINDS, ChowLoss

    if kind not in KINDS:
        raise InputError(f"--loss {kind!r}: expected {', '.join(KINDS)}")
    for name, value in (("--a-plus", a_plus), ("--a-minus", a_minus)):
        if not value >= 0:
            raise InputError(f"{name} {value}: expected a number of at least 0")
    return ChowLoss(kind, a_plus, a_minus)  # type: ignore[arg-type]


def _complete(frame: pd.DataFrame, name: str) -> Any:
    """A column of probabilities without a gap."""
    values = frame[name]
    if values.isna().any():
        row = int(values.isna().to_numpy().argmax()) + 1
        raise InputError(f"column {name!r}, row {row}: has no score")
    return values.to_numpy(dtype=float)


def _with_model(data: Any, path: Path, model: Path, *, scores: list[str], say: Any) -> tuple[Any, str]:
    """The table with the model's probabilities as a column, beside those of its base; and that column's name."""
    from dataclasses import replace

    from touchstone.decisions.selective_omniprediction.tables import TablePredictor

    predictor = TablePredictor.load(model)
    if predictor.saw(path):
        say("this is the table of the fit: errors on it are smaller than on new rows")
    name = "multicalibrated"
    if name in data.frame.columns:
        raise InputError(f"column {name!r}: the table has one already; rename it")
    beside = tuple(scores) or ((predictor.score,) if predictor.score else ())
    frame = data.frame.assign(**{name: predictor.scores(data.frame)})
    return replace(data, frame=frame, scores=(*beside, name)), name
