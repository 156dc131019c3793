"""``touchstone decisions route``: score, calibrate, look at the frontier, decide, and serve a router."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from touchstone.errors import InputError

if TYPE_CHECKING:
    from touchstone.decisions.conformal_arbitrage.arbitrage import ConformalArbitrage
    from touchstone.decisions.conformal_arbitrage.costs import Costs
    from touchstone.decisions.conformal_arbitrage.log import ScoreLog

__all__ = ["app"]

app = typer.Typer(
    name="route",
    help="Route queries between two models or people under a promise on the risk.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout and nothing else.")]
Seed = Annotated[int, typer.Option(help="Every random number follows from it.")]
Scores = Annotated[Path, typer.Argument(metavar="SCORES.jsonl", help="Log of scores, one query a line.")]
RouterFile = Annotated[Path, typer.Argument(metavar="ROUTER.json", help="File of `calibrate`.")]
Risk = Annotated[str, typer.Option(help="candidate, realised_monotone or realised_ltt.")]
Bound = Annotated[float, typer.Option("--bound", help="Largest guardrail value.")]
Normalise = Annotated[str, typer.Option(help="Of Primary scores: none, softmax, minmax or rank.")]
Delta = Annotated[float, typer.Option(help="For realised_ltt: chance that the promise is broken.")]
Primary = Annotated[str, typer.Option("--primary", help="http://HOST/v1#MODEL, local:MODEL or call:MODULE:FUNCTION.")]
Guardian = Annotated[str, typer.Option("--guardian", help="The same, or queue:FILE for people.")]
PriceFirst = Annotated[float, typer.Option("--cost-primary", help="Price of the Primary, a query.")]
PriceSecond = Annotated[float, typer.Option("--cost-guardian", help="Price of a call of the Guardian.")]
PriceOption = Annotated[float, typer.Option("--cost-option", help="Price of each option the Guardian looks at.")]
Unit = Annotated[str, typer.Option(help="Unit of prices, for reports.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait for a server or a person.")]


@app.command()
def calibrate(
    scores: Scores,
    out: Annotated[Path, typer.Option("--out", help="File to write the router to.")],
    alpha: Annotated[float, typer.Option(help="The risk that is allowed.")] = 0.1,
    risk: Risk = "candidate",
    bound: Bound = 1.0,
    normalise: Normalise = "none",
    delta: Delta = 0.1,
    cost_primary: PriceFirst = 1.0,
    cost_guardian: PriceSecond = 20.0,
    cost_option: PriceOption = 0.0,
    unit: Unit = "",
    replace: Annotated[bool, typer.Option("--replace", help="Replace --out if it is there.")] = False,
    as_json: Json = False,
) -> None:
    """Choose the threshold from queries with known guardrail values, and save the router."""
    if out.exists() and not replace:
        raise InputError(f"--out {out}: already exists; nothing was written")
    log = _log(scores)
    log.need("guard")
    costs = _costs(cost_primary, cost_guardian, cost_option, unit)
    router = _router(alpha, risk, bound, normalise, costs, delta)
    guardian = log.guardian if risk != "candidate" or _whole(log) else None
    with _spoken():
        router.calibrate(log.primary.scores, log.guard, guardian, mask=log.primary.mask)  # type: ignore[arg-type]
    router.reduce = log.reduce
    router.save(out)
    spend = router.expected_cost(log.primary.scores, log.primary.mask)
    record = router.summary() | {"calls": spend.calls, "candidates": spend.candidates, "cost": spend.cost}
    if guardian is not None:
        record |= {"realised_risk": _measured(router, log)["realised_risk"]}
    if as_json:
        _print(record | {"out": str(out)})
        return
    typer.echo(f"lam {router.lam_:.6g} from {router.n_} queries, {record['distinct_gaps']} distinct gaps")
    typer.echo(f"{router.risk} risk on them {router.empirical_risk_:.4f}, allowed {router.alpha:g}")
    if "realised_risk" in record:
        typer.echo(f"risk of what is returned, with the Guardian's own errors, on them {record['realised_risk']:.4f}")
    typer.echo(f"the Guardian is called for {spend.calls:.1%} of queries; mean cost {spend.cost:.4g} {unit}".rstrip())
    typer.echo(_promise(router))
    typer.echo(f"saved {out}")


@app.command()
def frontier(
    scores: Scores,
    test: Annotated[Path | None, typer.Option(help="Another log to test on; by default a part of SCORES.")] = None,
    split: Annotated[float, typer.Option(help="Share of SCORES to calibrate on, without --test.")] = 0.5,
    alphas: Annotated[str, typer.Option(help="Allowed risks, separated by commas.")] = "0.02,0.05,0.1,0.15,0.2,0.3,0.4",
    budget: Annotated[float | None, typer.Option(help="Mean cost of a query: also the smallest alpha for it.")] = None,
    risk: Risk = "candidate",
    bound: Bound = 1.0,
    normalise: Normalise = "none",
    delta: Delta = 0.1,
    cost_primary: PriceFirst = 1.0,
    cost_guardian: PriceSecond = 20.0,
    cost_option: PriceOption = 0.0,
    unit: Unit = "",
    out: Annotated[Path | None, typer.Option("--out", help="Folder: frontier.csv and frontier.png.")] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """What each allowed risk costs and comes to, beside random routing at the same cost."""
    from touchstone.decisions.conformal_arbitrage.tracing import halves, traced
    from touchstone.evidence import finite

    if out is not None and out.exists():
        raise InputError(f"--out {out}: already exists; nothing was written")
    log = _log(scores)
    known, tested = (log, _log(test)) if test is not None else halves(log, split, seed)
    wanted = [_number(text) for text in alphas.split(",")]
    costs = _costs(cost_primary, cost_guardian, cost_option, unit)
    router = _router(max(wanted), risk, bound, normalise, costs, delta)
    with _spoken():
        frame = traced(router, known, tested, wanted)
    affordable = None if budget is None else router.alpha_for(budget)
    if out is not None:
        from touchstone.decisions.conformal_arbitrage import figures
        from touchstone.files import written_folder

        with written_folder(out) as folder:
            frame.to_csv(folder / "frontier.csv", index=False)
            (folder / "frontier.png").write_bytes(figures.frontier(frame, unit).png)
    if as_json:
        rows = [row | {"lam": "inf" if row["lam"] == math.inf else row["lam"]} for row in frame.to_dict("records")]
        _print(finite({"frontier": rows, "alpha_for_budget": affordable, "test_queries": len(tested)}))
        return
    typer.echo(frame.round(4).to_string(index=False))
    typer.echo(f"calibrated on {len(known)} queries, measured on {len(tested)} others")
    if affordable is not None:
        typer.echo(f"a mean cost of {budget:g} allows alpha {affordable:.4g}")
    typer.echo("an alpha that is chosen from this table needs queries that it was not chosen on to be calibrated")


@app.command()
def decide(
    router_file: RouterFile,
    scores: Scores,
    out: Annotated[Path | None, typer.Option("--out", help="Decision log to write.")] = None,
    normalise: Annotated[str | None, typer.Option(help="If given, checked against the router's.")] = None,
    as_json: Json = False,
) -> None:
    """Decide logged queries; with labels in the log, say what that came to."""
    from touchstone.decisions.conformal_arbitrage.arbitrage import ConformalArbitrage
    from touchstone.decisions.conformal_arbitrage.log import decided, write_decisions

    if out is not None and out.exists():
        raise InputError(f"--out {out}: already exists; nothing was written")
    log = _log(scores)
    router = ConformalArbitrage.load(router_file, normalise=normalise, reduce=log.reduce)
    log.need("guardian")
    with _spoken():
        made = router.decide(log.primary.scores, log.guardian, mask=log.primary.mask)  # type: ignore[arg-type]
    if out is not None:
        write_decisions(out, router, log, made)
    numbers: dict[str, float] = {"calls": float(made.deferred.mean()), "cost": float(made.cost.mean())}
    if log.guard is not None and _whole(log):
        numbers |= _measured(router, log)
    if as_json:
        from touchstone.evidence import finite

        _print(finite({"summary": numbers, "decisions": decided(router, log, made)}))
        return
    typer.echo(f"{len(log)} queries, Guardian called for {int(made.deferred.sum())}, mean cost {numbers['cost']:.4g}")
    if "guard" in numbers:
        typer.echo(
            f"risk of the candidates {numbers['candidate_risk']:.4f}, "
            f"of what is returned {numbers['realised_risk']:.4f}; allowed {router.alpha:g} for {router.risk}"
        )
    if out is not None:
        typer.echo(f"saved {out}")


@app.command()
def score(
    questions: Annotated[
        Path, typer.Argument(metavar="QUESTIONS.jsonl", help="Lines with id, prompt, options, maybe label.")
    ],
    primary: Primary,
    out: Annotated[Path, typer.Option("--out", help="Log of scores to write; an interrupted one is continued.")],
    guardian: Annotated[str, typer.Option("--guardian", help="The same, or queue:FILE for people; optional.")] = "",
    timeout: Timeout = 600.0,
    as_json: Json = False,
) -> None:
    """Ask two parties for the scores of all options: the log that `calibrate` and `frontier` read."""
    from touchstone.decisions.conformal_arbitrage.parties import party
    from touchstone.decisions.conformal_arbitrage.scoring import score_file
    from touchstone.progress import Bars

    first = party(primary, timeout=timeout)
    second = party(guardian, timeout=timeout) if guardian else None
    count = score_file(questions, out, first, second, progress=Bars())
    if as_json:
        _print({"queries": count, "out": str(out)})
        return
    typer.echo(f"saved {out}: {count} queries")


@app.command()
def serve(
    router_file: RouterFile,
    primary: Primary,
    guardian: Guardian,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8080,
    log: Annotated[Path | None, typer.Option(help="Decision log to append to.")] = None,
    shadow: Annotated[bool, typer.Option("--shadow", help="Answer by the Primary, log what would be done.")] = False,
    on_missing: Annotated[
        str, typer.Option(help="When the Guardian does not answer: error, or primary (no promise).")
    ] = "error",
    votes: Annotated[int, typer.Option(min=2, help="Replies that are sampled for a query without options.")] = 5,
    false_alarm_every: Annotated[int, typer.Option(min=2, help="Queries from one false alarm to the next.")] = 10_000,
    timeout: Timeout = 60.0,
    key_variable: Annotated[str, typer.Option(help="Environment variable with the key that clients send.")] = "",
) -> None:
    """An OpenAI-compatible endpoint in front of two parties; stop it with Ctrl-C."""
    import os

    from touchstone.decisions.conformal_arbitrage.arbitrage import ConformalArbitrage
    from touchstone.decisions.conformal_arbitrage.parties import party
    from touchstone.decisions.conformal_arbitrage.router import Router
    from touchstone.decisions.conformal_arbitrage.server import RouterServer

    key = os.environ.get(key_variable) if key_variable else None
    if key_variable and not key:
        raise InputError(f"--key-variable {key_variable}: not set; expected the key that clients send")
    router = Router(
        ConformalArbitrage.load(router_file),
        party(primary, timeout=timeout),
        party(guardian, timeout=timeout),
        log=log,
        shadow=shadow,
        on_missing=on_missing,  # type: ignore[arg-type]
        votes=votes,
        false_alarm_every=false_alarm_every,
    )
    with RouterServer(router, host, port, key=key) as server:
        if key is None and host not in ("127.0.0.1", "localhost", "::1"):
            typer.echo("warning: anyone who reaches this address can use it; see --key-variable", err=True)
        typer.echo(f"serving {server.url}, alpha {router.arbitrage.alpha:g}, lam {router.arbitrage.lam_:.6g}", err=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            stats = router.stats()
            typer.echo(f"stopped after {stats['queries']} queries, {stats['deferred']} deferred", err=True)


@app.command()
def review(
    queue: Annotated[Path, typer.Argument(metavar="QUEUE.jsonl", help="Queue file of a router.")],
) -> None:
    """Answer the open questions of a queue file, one after the other."""
    import time

    from touchstone.decisions.conformal_arbitrage.parties import text_of
    from touchstone.decisions.conformal_arbitrage.queue import answer, open_questions

    todo = open_questions(queue)
    for place, question in enumerate(todo, start=1):
        typer.echo(f"\n[{place}/{len(todo)}] {text_of(question['prompt'])}")
        for number, option in enumerate(question["options"], start=1):
            typer.echo(f"  {number}. {option}")
        began = time.monotonic()
        chosen = typer.prompt("number, 0 to leave it", type=int)
        while not 0 <= chosen <= len(question["options"]):
            chosen = typer.prompt(f"expected 0 to {len(question['options'])}", type=int)
        if chosen:
            answer(queue, question["key"], chosen - 1, minutes=(time.monotonic() - began) / 60)
    typer.echo(f"{len(open_questions(queue))} open questions")


def _log(path: Path) -> ScoreLog:
    from touchstone.decisions.conformal_arbitrage.log import ScoreLog

    return ScoreLog.read(path)


def _whole(log: ScoreLog) -> bool:
    """Whether the Guardian scored every option, so that its errors can be measured."""
    import numpy as np

    return log.guardian is not None and bool(np.isfinite(log.guardian[log.primary.mask]).all())


def _costs(primary: float, guardian: float, option: float, unit: str) -> Costs:
    from touchstone.decisions.conformal_arbitrage.costs import Costs

    return Costs(primary=primary, guardian=guardian, per_option=option, unit=unit)


def _router(
    alpha: float, risk: str, bound: float, normalise: str, costs: Costs, delta: float
) -> ConformalArbitrage:  # fmt: skip
    from touchstone.decisions.conformal_arbitrage.arbitrage import ConformalArbitrage

    return ConformalArbitrage(alpha, risk, bound, normalise, costs, delta=delta)  # type: ignore[arg-type]


def _measured(router: ConformalArbitrage, log: ScoreLog) -> dict[str, float]:
    from touchstone.decisions.conformal_arbitrage.baselines import measure

    return measure(router, log.primary.scores, log.guardian, log.guard, log.primary.mask)  # type: ignore[arg-type]


def _promise(router: ConformalArbitrage) -> str:
    if router.risk == "realised_ltt":
        return f"promised with probability {1 - router.delta:g} over calibration sets, for queries like these"
    return "promised on average over calibration sets and queries, for queries like these; not for each of them"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--alphas: {text!r} is no number") from None


def _spoken() -> Any:
    """Warnings as one line on stderr, for they are for the person at the terminal."""
    import warnings
    from contextlib import contextmanager

    @contextmanager
    def caught() -> Any:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", UserWarning)
            yield
        for one in found:
            typer.echo(f"warning: {one.message}", err=True)

    return caught()


def _print(record: dict[str, Any]) -> None:
    plain = {key: "inf" if value == math.inf else value for key, value in record.items()}
    typer.echo(json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False))
