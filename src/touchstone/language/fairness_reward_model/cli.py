"""``touchstone language fair-reasoning``: label steps, train a reward model, weigh chains, report fairness."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from touchstone.errors import InputError
from touchstone.language.options import Json, Seed

if TYPE_CHECKING:
    from touchstone.language.fairness_reward_model.chains import Case
    from touchstone.language.fairness_reward_model.reward import FairnessRewardModel

__all__ = ["app"]

app = typer.Typer(
    name="fair-reasoning",
    help="Decide by reasoning chains of which fair ones weigh more, and report accuracy and gaps between groups.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Chains = Annotated[
    Path, typer.Argument(help="JSONL with case_id, and text or steps; answer, question, label, group if known.")
]
Reward = Annotated[Path, typer.Option("--reward", help="Reward model of `train`.")]
Encoder = Annotated[str, typer.Option(help="Model whose states the reward model reads, if it reads any.")]
Tau = Annotated[float, typer.Option(help="Temperature of the vote; inf is a plain majority.")]
Split = Annotated[str, typer.Option(help="Steps of a text end at: blank, header or sentence.")]
Pattern = Annotated[str, typer.Option(help="Regular expression whose group is the answer.")]
_BOXED = r"\\boxed\{([^{}]*)\}"


@app.command()
def label(
    steps: Annotated[Path, typer.Argument(help="JSONL with text, and question if known.")],
    out: Annotated[Path, typer.Option("--out", help="JSONL with label: 1 unbiased, 0 biased, null unknown.")],
    judge: Annotated[str, typer.Option(help="Model that judges; rules over a lexicon if left out.")] = "",
    endpoint: Annotated[str, typer.Option(help="URL of an OpenAI-compatible server that serves --judge.")] = "",
    as_json: Json = False,
) -> None:
    """Label steps of reasoning as biased or unbiased."""
    from touchstone.files import read_jsonl, write_jsonl
    from touchstone.language.fairness_reward_model.labels import JudgeLabeler, RuleLabeler, StepLabeler

    if endpoint and not judge:
        raise InputError("--endpoint: needs --judge, the name it serves the model by")
    rows = read_jsonl(steps, "steps", texts=["text"])
    labeler: StepLabeler = JudgeLabeler(_asker(judge, endpoint)) if judge else RuleLabeler()
    found: list[int | None] = [None] * len(rows)
    for question in dict.fromkeys(str(row.get("question", "")) for row in rows):
        places = [i for i, row in enumerate(rows) if str(row.get("question", "")) == question]
        for i, value in zip(places, labeler.label(question, [rows[i]["text"] for i in places]), strict=True):
            found[i] = value
    write_jsonl(out, [row | {"label": value} for row, value in zip(rows, found, strict=True)])
    unknown, biased = found.count(None), found.count(0)
    record = {"out": str(out), "steps": len(rows), "biased": biased, "unknown": unknown}
    typer.echo(
        json.dumps(record, indent=2)
        if as_json
        else f"saved {out}: {len(rows)} steps, {biased} biased, {unknown} without a readable label"
    )


@app.command()
def train(
    out: Annotated[Path, typer.Option("--out", help="File of the reward model (safetensors).")],
    steps: Annotated[
        Path | None, typer.Argument(help="JSONL with text and label; the built-in corpora if left out.")
    ] = None,
    backend: Annotated[str, typer.Option(help="linear or lm.")] = "linear",
    encoder: Encoder = "",
    context: Annotated[str, typer.Option(help="Question in front of: first, all or none of the steps.")] = "first",
    balanced: Annotated[bool, typer.Option("--balanced", help="Weigh both labels alike.")] = False,
    epochs: Annotated[int, typer.Option(min=1, help="Of the lm backend.")] = 2,
    checkpoint: Annotated[Path | None, typer.Option(help="File from which an interrupted lm training goes on.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Train a reward model on labelled steps; steps without a label are left out."""
    from touchstone.files import read_jsonl
    from touchstone.language.fairness_reward_model.chains import Chain, texts_of
    from touchstone.language.fairness_reward_model.lm import Training
    from touchstone.language.fairness_reward_model.reward import FairnessRewardModel
    from touchstone.language.fairness_reward_model.simulation import corpus
    from touchstone.progress import Bars

    if steps is None:
        learnt = corpus(seed=seed)
        texts, labels, dropped, context = list(learnt.steps), learnt.labels.tolist(), 0, "none"
    else:
        rows = read_jsonl(steps, "steps", texts=["text"])
        known = [row for row in rows if row.get("label") is not None]
        dropped, labels = len(rows) - len(known), [row["label"] for row in known]
        texts = [_read(row, context, Chain, texts_of) for row in known]
    bars = Bars()
    model = FairnessRewardModel(
        backend,  # type: ignore[arg-type]
        _encoder(encoder, device),
        context=context,  # type: ignore[arg-type]
        balanced=balanced,
        training=Training(epochs=epochs),
        seed=seed,
    )
    with bars.bar("learning from steps", epochs * len(texts) if backend == "lm" else 1) as advance:
        model.fit(texts, labels, checkpoint=checkpoint, progress=advance)
        if backend != "lm":
            advance()
    model.save(out)
    scores = model.score_steps(texts)
    right = float(sum((s >= 0.5) == bool(y) for s, y in zip(scores, labels, strict=True)) / len(labels))
    record = {"out": str(out), "steps": len(texts), "without_label": dropped, "training_accuracy": right}
    typer.echo(
        json.dumps(record, indent=2)
        if as_json
        else f"saved {out}: learnt from {len(texts)} steps ({dropped} without a label), {right:.3f} of them right"
    )


@app.command()
def score(
    chains: Chains,
    reward: Reward,
    encoder: Encoder = "",
    split: Split = "blank",
    pattern: Pattern = _BOXED,
    out: Annotated[Path | None, typer.Option("--out", help="JSONL of chains with score and lowest steps.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    as_json: Json = False,
) -> None:
    """Score chains, and show the steps that cost them."""
    from touchstone.files import write_jsonl

    cases, model = _cases(chains, split, pattern), _model(reward, encoder, device)
    flat = [(case, chain) for case in cases for chain in case.chains]
    scores = model.score_chains([chain for _, chain in flat])
    rows: list[dict[str, Any]] = [
        {
            "case_id": case.case_id,
            "answer": chain.answer,
            "score": None if math.isnan(value) else float(value),
            "lowest": [{"step": step, "score": s} for step, s in model.explain(chain)[:3]],
        }
        for (case, chain), value in zip(flat, scores, strict=True)
    ]
    if out is not None:
        write_jsonl(out, rows)
    if as_json:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    for row in rows:
        first: dict[str, Any] = row["lowest"][0] if row["lowest"] else {"step": "(no step)", "score": math.nan}
        value = math.nan if row["score"] is None else row["score"]
        typer.echo(
            f"{row['case_id']}  {value:.3f}  {row['answer'] or '-'}  lowest {first['score']:.2f}: {first['step'][:80]}"
        )


@app.command()
def vote(
    chains: Chains,
    reward: Reward,
    tau: Tau = 0.2,
    encoder: Encoder = "",
    split: Split = "blank",
    pattern: Pattern = _BOXED,
    out: Annotated[Path, typer.Option("--out", help="JSONL of decisions.")] = Path("decisions.jsonl"),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    as_json: Json = False,
) -> None:
    """Decide every case by its chains; the record holds weights, and what a plain vote would have said."""
    from touchstone.files import write_jsonl
    from touchstone.language.fairness_reward_model.voting import FairVote

    cases, model = _cases(chains, split, pattern), _model(reward, encoder, device)
    flat = iter(model.score_chains([chain for case in cases for chain in case.chains]))
    scores = [[float(next(flat)) for _ in case.chains] for case in cases]
    groups = [case.chains for case in cases]
    fair = FairVote(tau, model.aggregate).decide_many(groups, scores)
    plain = FairVote(math.inf, model.aggregate).decide_many(groups, scores)
    rows = [
        {
            "case_id": case.case_id,
            "arm": "fairness-weighted",
            "tau": None if math.isinf(tau) else tau,
            "answer": one.answer,
            "share": one.share,
            "n_valid": one.n_valid,
            "tie": one.tie,
            "weights": list(one.weights),
            "majority": other.answer,
            "label": case.label,
            "group": case.group,
        }
        for case, one, other in zip(cases, fair, plain, strict=True)
    ]
    write_jsonl(out, rows)
    changed = sum(row["answer"] != row["majority"] for row in rows)
    empty = sum(row["answer"] is None for row in rows)
    record = {"out": str(out), "cases": len(rows), "changed": changed, "without_answer": empty}
    typer.echo(
        json.dumps(record, indent=2)
        if as_json
        else f"saved {out}: {len(rows)} cases, {changed} decided unlike a majority, {empty} without an answer"
    )


@app.command()
def report(
    decisions: Annotated[Path, typer.Argument(help="JSONL with answer, label and group, such as of `vote`.")],
    positive: Annotated[str, typer.Option(help="The answer whose rates are compared between groups.")],
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Accuracy and gaps between groups with intervals; beside the majority where the file holds it."""
    from touchstone.files import read_jsonl
    from touchstone.language.fairness_reward_model.fairness import GAPS, group_fairness_report

    rows = read_jsonl(decisions, "decisions")
    for number, row in enumerate(rows, start=1):
        missing = [
            key for key in ("answer", "label", "group") if key not in row or (key != "answer" and row[key] is None)
        ]
        if missing:
            raise InputError(f"decisions {decisions}, record {number}: has no {missing[0]}")
    truth, group = [str(row["label"]) for row in rows], [str(row["group"]) for row in rows]
    if positive not in truth:
        raise InputError(f"--positive {positive!r}: no case has this label; they have {', '.join(sorted(set(truth)))}")
    arms = {"decision": "answer"} | ({"majority": "majority"} if all("majority" in row for row in rows) else {})
    shown: dict[str, Any] = {}
    for arm, key in arms.items():
        said: Any = [None if row[key] is None else str(row[key]) for row in rows]
        found = group_fairness_report(truth, said, group, positive=positive, seed=seed)
        numbers = {n: getattr(found, n) for n in ("accuracy", *GAPS)}
        shown[arm] = {
            n: {"value": None if m.value != m.value else m.value, "low": m.low, "high": m.high}
            for n, m in numbers.items()
        } | {"groups": json.loads(found.groups.to_json(orient="records"))}
    if as_json:
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    for arm, numbers in shown.items():
        typer.echo(arm)
        for name, m in numbers.items():
            if name != "groups":
                value = "not known" if m["value"] is None else f"{m['value']:.3f} [{m['low']:.3f}, {m['high']:.3f}]"
                typer.echo(f"  {name:12s} {value}")
        for g in numbers["groups"]:
            typer.echo("  " + "  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in g.items()))


def _read(row: dict[str, Any], context: str, chain: Any, texts_of: Any) -> str:
    first = int(row.get("step_index", 0)) == 0
    ask = str(row.get("question", "")) if context == "all" or (context == "first" and first) else ""
    return str(texts_of(chain((row["text"],), None, ask), "all")[0])


def _cases(path: Path, split: str, pattern: str) -> list[Case]:
    import re

    from touchstone.language.fairness_reward_model.chains import read_cases

    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise InputError(f"--pattern: not a regular expression ({error})") from None
    if groups < 1:
        raise InputError("--pattern: expected a group in parentheses, which is the answer")
    return read_cases(path, mode=split, pattern=pattern)  # type: ignore[arg-type]


def _encoder(name: str, device: str) -> Any:
    if not name:
        return None
    from touchstone.language import LanguageModel

    return LanguageModel.load(name, device=device)


def _model(path: Path, encoder: str, device: str) -> FairnessRewardModel:
    from touchstone.language.fairness_reward_model.reward import FairnessRewardModel

    return FairnessRewardModel.load(path, _encoder(encoder, device))


def _asker(name: str, endpoint: str) -> Any:
    if endpoint:
        from touchstone.language.endpoint import RemoteModel

        remote = RemoteModel(endpoint, name)
        return lambda question: remote.generate([question], max_new_tokens=256)[0]
    model = _encoder(name, "auto")
    return lambda question: model.generate([question], max_new_tokens=256)[0]
