"""``touchstone language unlearning-eval``: ask, calibrate, extract subgraphs, judge, report, unlearn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from touchstone.errors import InputError
from touchstone.language.options import Device, Dtype, Json, Model, Seed

if TYPE_CHECKING:
    from touchstone.language.knowledge_unlearning_eval.judging import Judge, Rules

__all__ = ["app"]

app = typer.Typer(
    name="unlearning-eval",
    help="Ask whether unlearned facts can still be inferred from what the model kept.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Graph = Annotated[Path, typer.Option("--graph", help="JSON with triples, targets and rules.")]
Template = Annotated[str, typer.Option(help="complete, relation, plain, or a text with {head}, {relation}, {tail}.")]
Hops = Annotated[int, typer.Option("--k", min=1, help="Hops of a target's neighbourhood.")]
Doubt = Annotated[float, typer.Option("--u-star", help="Most bits of doubt of a triple that counts as held.")]
Temperature = Annotated[float, typer.Option(help="From `calibrate`, of the model before.")]
Endpoint = Annotated[str, typer.Option(help="OpenAI-compatible URL of a judge; without it the rules judge.")]
JudgeModel = Annotated[str, typer.Option("--judge", help="Judge: a model here, or its name at the endpoint.")]


@app.command()
def probe(
    graph: Graph, model: Model = "default", template: Template = "complete", temperature: Temperature = 1.0,
    device: Device = "auto", dtype: Dtype = "float32", as_json: Json = False,
) -> None:  # fmt: skip
    """What a model says of every triple of the graph."""
    from touchstone.language.knowledge_unlearning_eval.probing import ANSWERS

    case, asked, _ = _open(graph, model, template, temperature, device, dtype)
    found = asked.score(case.graph.triples)
    rows = [
        {"triple": list(one), "answer": ANSWERS[a], "p_yes": float(p[0]), "entropy": float(h) if h < 99 else None}
        for one, a, p, h in zip(case.graph.triples, found.answer, found.options, found.entropy, strict=True)
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    counts = {name: sum(row["answer"] == name for row in rows) for name in ANSWERS}
    typer.echo(", ".join(f"{name}: {n}" for name, n in counts.items()))


@app.command()
def calibrate(
    graph: Graph, model: Model = "default", template: Template = "complete", n: int = 200, device: Device = "auto",
    dtype: Dtype = "float32", seed: Seed = 0, as_json: Json = False,
) -> None:  # fmt: skip
    """Fit the temperature on true and corrupted triples; use it for the model after unlearning too."""
    from dataclasses import asdict

    from touchstone.language.knowledge_unlearning_eval.calibrating import corruptions, fit_temperature

    case, asked, _ = _open(graph, model, template, 1.0, device, dtype)
    found = asdict(fit_temperature(asked, case.graph.triples[:n], corruptions(case.graph, n, seed)))
    typer.echo(json.dumps(found, indent=2) if as_json else "  ".join(f"{k} {v:.4g}" for k, v in found.items()))


@app.command()
def subgraph(
    graph: Graph,
    out: Annotated[Path, typer.Option("--out", help="JSONL to write, a subgraph a line.")],
    model: Model = "default", template: Template = "complete", temperature: Temperature = 1.0, k: Hops = 2,
    u_star: Doubt = 1.0, max_queries: int = 5000, device: Device = "auto", dtype: Dtype = "float32", seed: Seed = 0,
) -> None:  # fmt: skip
    """Extract what supports each target in one model."""
    from touchstone.files import write_jsonl
    from touchstone.language.knowledge_unlearning_eval.subgraph import SupportingSubgraph

    if out.exists():
        raise InputError(f"{out}: already exists; nothing was written")
    case, asked, bars = _open(graph, model, template, temperature, device, dtype)
    search = SupportingSubgraph(case.graph, asked, k=k, u_star=u_star, max_queries=max_queries, seed=seed)
    rows: list[dict[str, Any]] = []
    with bars.bar("extracting subgraphs", len(case.targets)) as advance:
        for target in case.targets:
            one = search.extract(target)
            edges = [[*e, h] for e, h in one.edges.items()]
            rows.append({"target": list(target), "edges": edges, "probes": one.probes, "capped": one.capped})
            advance()
    write_jsonl(out, rows)
    typer.echo(f"{out}: {len(rows)} subgraphs, {sum(len(r['edges']) for r in rows)} edges")


@app.command()
def judge(
    subgraphs: Annotated[Path, typer.Argument(help="JSONL that `subgraph` wrote.")],
    graph: Graph,
    judge: JudgeModel = "", endpoint: Endpoint = "", rounds: Annotated[int, typer.Option(min=1)] = 1,
    anonymise: bool = False,
    labels: Annotated[Path | None, typer.Option(help="JSONL with a score a line, to compare the judge with.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Score subgraphs from 0 to 5, by rules, a local model or a remote one; and compare with labels."""
    from touchstone.files import read_jsonl
    from touchstone.language.knowledge_unlearning_eval.files import read_case
    from touchstone.language.knowledge_unlearning_eval.graph import Triple
    from touchstone.language.knowledge_unlearning_eval.judging import judge_agreement
    from touchstone.language.knowledge_unlearning_eval.subgraph import Subgraph

    judging = _judge(read_case(graph).rules, judge, endpoint, rounds, anonymise)
    scores: list[float | None] = []
    for i, row in enumerate(read_jsonl(subgraphs, "subgraphs"), start=1):
        try:
            edges = {Triple(a, b, c): float(h) for a, b, c, h in row["edges"]}
            one = Subgraph(Triple(*row["target"]), edges)
        except (KeyError, TypeError, ValueError):
            raise InputError(f"subgraphs {subgraphs}, record {i}: expected target and edges") from None
        found = judging.score(one)
        scores.append(found.score)
        if not as_json:
            shown = "?" if found.score is None else f"{found.score:.1f}"
            typer.echo(f"{shown}  {' '.join(one.target)}  {found.reasoning[:90]}")
    record: dict[str, Any] = {"scores": scores}
    if labels is not None:
        truth = [float(row["score"]) for row in read_jsonl(labels, "labels")]
        pairs = [(a, b) for a, b in zip(scores, truth, strict=False) if a is not None]
        record["agreement"] = judge_agreement([a for a, _ in pairs], [b for _, b in pairs])
        if not as_json:
            typer.echo("  ".join(f"{k} {v:.3f}" for k, v in record["agreement"].items()))
    if as_json:
        typer.echo(json.dumps(record, indent=2))


@app.command()
def report(
    graph: Graph,
    before: Annotated[str, typer.Option("--before", help="The model before unlearning.")],
    after: Annotated[str, typer.Option("--after", help="The model after it.")],
    template: Template = "complete", temperature: Temperature = 1.0, k: Hops = 2, u_star: Doubt = 1.0,
    judge: JudgeModel = "", endpoint: Endpoint = "", loc: int = 2000, device: Device = "auto",
    dtype: Dtype = "float32", seed: Seed = 0, as_json: Json = False,
) -> None:  # fmt: skip
    """Unlearning effect by subgraphs and by targets alone, edges kept, neighbours unchanged, with intervals."""
    from touchstone.evidence import finite
    from touchstone.language.knowledge_unlearning_eval.evaluation import evaluate_unlearning, targets_for_precision

    case, first, bars = _open(graph, before, template, temperature, device, dtype)
    _, second, _ = _open(graph, after, template, temperature, device, dtype)
    judging = _judge(case.rules, judge, endpoint, 1, False)
    with bars.bar("comparing targets", len(case.targets)) as advance:
        found = evaluate_unlearning(
            first, second, case.targets, case.graph, judging, k=k, u_star=u_star, loc_triples=loc, seed=seed,
            progress=advance,
        )  # fmt: skip
    names = (
        "ues_graph",
        "ues_instance",
        "gap",
        "overestimation",
        "score_drop",
        "recall",
        "hidden",
        "locality",
        "other",
    )
    measured = {name: getattr(found, name) for name in names}
    if as_json:
        record = {name: [one.value, one.low, one.high, one.n] for name, one in measured.items()}
        extra = {"dropped": found.dropped, "unread": found.unread, "targets_for_0.05": targets_for_precision(found)}
        targets = found.per_target.to_dict("records")
        typer.echo(json.dumps(finite({**record, **extra, "targets": targets}), indent=2, ensure_ascii=False))
        return
    for name, one in measured.items():
        ends = "" if one.low is None else f" [{one.low:.3f}, {one.high:.3f}]"
        typer.echo(f"{name:15} {one.value:7.3f}{ends}")
    typer.echo(f"{found.dropped} targets were not held before; {targets_for_precision(found)} would give ±0.05")


@app.command()
def unlearn(
    graph: Graph,
    out: Annotated[Path, typer.Option("--out", help="Folder for the model after unlearning.")],
    method: Annotated[str, typer.Option(help="ga, ga+gd, ga+kl, npo, npo+gd, npo+kl, rl, neggrad+ or scrub.")] = "npo",
    epochs: Annotated[int, typer.Option(min=1)] = 5,
    lr: float = 1e-5, trainable: Annotated[str, typer.Option(help="all, last:N or lora.")] = "lora",
    template: Template = "complete", model: Model = "default", device: Device = "auto", dtype: Dtype = "float32",
    seed: Seed = 0,
) -> None:  # fmt: skip
    """Unlearn the targets, question and answer, keeping the graph's other triples; checkpoints, and resumes."""
    from touchstone.files import written_folder
    from touchstone.language.knowledge_unlearning_eval.probing import TEMPLATES
    from touchstone.language.loading import save
    from touchstone.language.unlearning import Training, examples
    from touchstone.language.unlearning import unlearn as train

    if out.exists():
        raise InputError(f"{out}: already exists; nothing was written")
    case, asked, bars = _open(graph, model, template, 1.0, device, dtype)
    gap = "" if TEMPLATES.get(template) == TEMPLATES["plain"] else " "
    kept = [one for one in case.graph.triples if one not in set(case.targets)]
    forget, retain = (
        examples(asked.model, [(text, f"{gap}Yes") for text in asked.prompts(some)], end=False)
        for some in (case.targets, kept)
    )
    training = Training(epochs=epochs, lr=lr, batch_size=8, trainable=trainable, seed=seed)
    place = out.with_name(f"{out.name}.training.safetensors")
    with bars.bar("unlearning", epochs * -(-len(forget) // 8)) as advance:
        after = train(asked.model, method, forget, retain, training=training, checkpoint=place, progress=advance)
    with written_folder(out) as new:
        save(after.module, after.tokenizer, new)
    place.unlink(missing_ok=True)
    typer.echo(f"{out}: {len(forget)} triples unlearned by {method}")


def _open(graph: Path, model: str, template: str, temperature: float, device: str, dtype: str) -> tuple[Any, Any, Any]:
    from touchstone.language.knowledge_unlearning_eval.files import read_case
    from touchstone.language.knowledge_unlearning_eval.probing import TripleProbe
    from touchstone.language.model import LanguageModel
    from touchstone.progress import Bars

    case, bars = read_case(graph), Bars()
    loaded = LanguageModel.load(model, device=device, dtype=dtype, progress=bars.say)
    return case, TripleProbe(loaded, template, temperature, batch_size=64), bars


def _judge(rules: Rules, judge: str, endpoint: str, rounds: int, anonymise: bool) -> Judge:
    from touchstone.language.knowledge_unlearning_eval.judging import ChatJudge, RuleJudge

    if not judge:
        if endpoint:
            raise InputError("--endpoint: needs --judge, the model's name there")
        return RuleJudge(rules)
    if endpoint:
        from touchstone.language.endpoint import RemoteModel

        writer: Any = RemoteModel(endpoint, judge)
    else:
        from touchstone.language.model import LanguageModel

        writer = LanguageModel.load(judge)
    return ChatJudge(lambda prompt: str(writer.generate([prompt], max_new_tokens=400)[0]), rounds, anonymise=anonymise)
