"""``touchstone language test-awareness``: build pairs, fit a probe, edit a model, watch a benchmark, run the
pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from touchstone.errors import InputError
from touchstone.language.options import Device, Dtype, Json, Model, Seed

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel
    from touchstone.language.test_awareness.edit import GateEdit
    from touchstone.language.test_awareness.labels import Judge
    from touchstone.language.test_awareness.pairs import PairTemplate
    from touchstone.progress import Bars

__all__ = ["app"]

_HELP = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    name="test-awareness",
    help="Find out whether a model behaves differently when it senses a test.",
    no_args_is_help=True,
    context_settings=_HELP,
)
edit = typer.Typer(
    name="edit", help="Raise or lower test awareness in the weights.", no_args_is_help=True, context_settings=_HELP
)
app.add_typer(edit)

Replace = Annotated[bool, typer.Option("--replace", help="Replace what is in --out.")]
Probe = Annotated[Path, typer.Argument(help="File written by `test-awareness probe`.")]
Strength = Annotated[float, typer.Option(help="Size of the edit, in norms of the edited rows.")]
Sign = Annotated[int, typer.Option(help="1 raises awareness, -1 lowers it.")]
Rows = Annotated[int, typer.Option("--k", help="Rows to edit; 0 is the paper's share of all gate rows.")]
Rank = Annotated[str, typer.Option(help="global (best rows anywhere) or layer (as many in each).")]


@app.command()
def pairs(
    file: Annotated[Path | None, typer.Argument(help="Pairs to look at; built anew if none is given.")] = None,
    templates: Annotated[
        Path | None, typer.Option(help="JSON list of {text, real, hypothetical, name, tool}; built-in ones if none.")
    ] = None,
    n: Annotated[int, typer.Option("--n", help="Number of pairs.")] = 60,
    max_gap: Annotated[int, typer.Option(help="Largest difference in length between the two sides, in tokens.")] = 2,
    grid: Annotated[bool, typer.Option("--grid", help="Write the 2 × 2 of cue and format instead.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="JSON file to write.")] = None,
    model: Model = "default",
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Build trigger pairs, real-looking against made-up, or look whether a file of them is in order."""
    from dataclasses import asdict

    from touchstone.files import write_text
    from touchstone.language.test_awareness.features import build_grid
    from touchstone.language.test_awareness.pairs import SCHEMA, build_pairs, check_lengths, load_pairs
    from touchstone.language.test_awareness.templates import FORMATS

    given = None if file is None else load_pairs(file)
    kinds = None if templates is None else _templates(templates)
    loaded = _load(model, device)
    tokenise = loaded.encode_continuation
    if given is not None:
        check_lengths(given, tokenise, max_gap)
    found = given or build_pairs(kinds, n, seed, tokenise=tokenise, max_gap=max_gap)
    content: Any = {"schema": SCHEMA, "pairs": [asdict(pair) for pair in found]}
    if grid:
        content = [asdict(cell) for cell in build_grid(found, FORMATS)]
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    if out is not None:
        write_text(out, text)
    if as_json:
        typer.echo(text, nl=False)
        return
    groups = len({pair.group for pair in found})
    typer.echo(f"{len(found)} pairs in {groups} groups, lengths within {max_gap} tokens{_written(out)}")
    if out is None:
        for pair in found[:5]:
            typer.echo(f"  {pair.id}\n    real     {pair.real}\n    made up  {pair.hypothetical}")


@app.command()
def probe(
    pairs: Annotated[Path | None, typer.Option(help="File of pairs to read cues from; built-in pairs if none.")] = None,
    labels: Annotated[
        Path | None, typer.Option(help="labels.jsonl of `test-awareness run`: read reasoning instead of cues.")
    ] = None,
    n: Annotated[int, typer.Option("--n", help="Number of built-in pairs.")] = 60,
    kind: Annotated[str, typer.Option(help="logistic, sgd (the paper's) or mean_difference.")] = "logistic",
    layer: Annotated[int, typer.Option(help="Layer to read, 0 for the best one.")] = 0,
    pooling: Annotated[str, typer.Option(help="With --labels: span, whole, last or end.")] = "span",
    rule: Annotated[
        str, typer.Option(help="With --labels: paper, or code (recognition counts as awareness).")
    ] = "paper",
    out: Annotated[Path, typer.Option("--out", help="Where to save the probe.")] = Path("awareness.safetensors"),
    model: Model = "default",
    device: Device = "auto",
    dtype: Dtype = "float32",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Fit a probe of test awareness and save it; shows its accuracy at every layer against words and shuffled
    labels."""
    from touchstone.language.test_awareness.features import cue_features, span_features
    from touchstone.language.test_awareness.labels import class_counts, load_labels
    from touchstone.language.test_awareness.pairs import build_pairs, load_pairs
    from touchstone.language.test_awareness.probe import AwarenessProbe
    from touchstone.language.test_awareness.validation import bag_of_words

    if out.suffix != ".safetensors":
        raise InputError(f"--out {out}: expected a file that ends in .safetensors")
    if pairs is not None and labels is not None:
        raise InputError("--pairs, --labels: expected one of them, not both")
    unfitted = AwarenessProbe(kind, layer=layer or "auto", seed=seed)  # type: ignore[arg-type]
    judged = None if labels is None else load_labels(labels)
    given = None if pairs is None else load_pairs(pairs)
    bars = _bars()
    loaded = _load(model, device, dtype)
    if judged is not None:
        with bars.bar("reading traces", len(judged)) as advance:
            options: Any = {"pooling": pooling, "rule": rule}
            found = span_features(loaded, judged, progress=advance, **options)
        counts = class_counts(judged).to_dict("records")
    else:
        cued = given or build_pairs(n=n, seed=seed, tokenise=loaded.encode_continuation)
        with bars.bar("reading cues", 2 * len(cued)) as advance:
            found = cue_features(loaded, cued, progress=advance)
        counts = []
    fitted = unfitted.fit(found.x, found.y, found.groups, layers=found.layers, source=loaded.source)
    fitted.save(out)
    report = fitted.report()
    words = float(bag_of_words(found.tokens, found.y, found.groups, seed=seed).mean())
    mine = report[report["layer"] == fitted.layer_].to_dict("records")[0]
    record = {
        "probe": str(out),
        "model": loaded.source,
        "layer": fitted.layer_,
        "rows": len(found),
        "words_accuracy": words,
    }
    if as_json:
        layers = report.astype(object).where(report.notna(), None).to_dict("records")
        typer.echo(json.dumps(record | {"layers": layers, "classes": counts}, indent=2))
        return
    typer.echo(report.round(3).to_string(index=False))
    for row in counts:
        typer.echo(f"rule {row['rule']}: {row['positive']} aware, {row['negative']} not, {row['neither']} neither")
    typer.echo(
        f"saved {out}: layer {fitted.layer_}, accuracy {mine['test_accuracy']:.3f} on {mine['test_rows']:.0f} held-out "
        f"rows; embedding {report['test_accuracy'].iloc[0]:.3f}, pooled words {words:.3f}"
    )


@edit.command("apply")
def edit_apply(
    probe: Probe,
    out: Annotated[Path, typer.Option("--out", help="Folder for the edited model.")],
    strength: Strength = 1.0,
    sign: Sign = 1,
    k: Rows = 0,
    rank: Rank = "global",
    replace: Replace = False,
    model: Model = "default",
    device: Device = "auto",
    dtype: Dtype = "float32",
    as_json: Json = False,
) -> None:
    """Write a copy of the model with its gate rows edited, as safetensors with its tokenizer."""
    _free(out, replace)
    made = _edit(probe, strength, sign, k, rank, model, device, dtype)
    made.save_model(out, replace=replace)
    _tell(made, out, as_json)


@edit.command("export")
def edit_export(
    probe: Probe,
    out: Annotated[Path, typer.Option("--out", help="Folder for the adapter.")],
    strength: Strength = 1.0,
    sign: Sign = 1,
    k: Rows = 0,
    rank: Rank = "global",
    base: Annotated[str | None, typer.Option(help="Name of the base model in the adapter's config.")] = None,
    replace: Replace = False,
    model: Model = "default",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Write the edit as a LoRA adapter of rank 1 in PEFT's layout."""
    _free(out, replace)
    made = _edit(probe, strength, sign, k, rank, model, device, "float32")
    made.export_lora(out, replace=replace, base=base)
    _tell(made, out, as_json)


@app.command("monitor")
def watch(
    probe: Probe,
    items: Annotated[Path, typer.Argument(help="File with one prompt of the benchmark a line.")],
    reference: Annotated[Path | None, typer.Option(help="File with everyday prompts to compare with.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many items to show.")] = 10,
    words: Annotated[int, typer.Option(min=1, help="How many tokens to name for each item.")] = 5,
    out: Annotated[Path | None, typer.Option("--out", help="CSV file to write, with all items.")] = None,
    model: Model = "default",
    device: Device = "auto",
    dtype: Dtype = "float32",
    as_json: Json = False,
) -> None:
    """List the items of a benchmark that look most like a test to the model, with the tokens that say so."""
    from touchstone.files import write_text
    from touchstone.language.prompt import read_prompts
    from touchstone.language.test_awareness.monitoring import monitor
    from touchstone.language.test_awareness.probe import AwarenessProbe

    found = AwarenessProbe.load(probe)
    texts = read_prompts(items, "items")
    everyday = [] if reference is None else read_prompts(reference, "reference")
    bars = _bars()
    loaded = _load(model, device, dtype)
    with bars.bar("reading items", len(texts) + len(everyday)) as advance:
        table = monitor(loaded, found, texts, reference=everyday, words=words, progress=advance)
    if out is not None:
        write_text(out, table.to_csv(index=False, lineterminator="\n"))
    if as_json:
        typer.echo(json.dumps(table.to_dict("records"), indent=2, ensure_ascii=False))
        return
    for row in table.head(top).to_dict("records"):
        typer.echo(f"{row['score']:+7.2f}  z {row['z']:+.1f}  {row['text'][:90]}\n{'':18s}{row['drivers']}")
    if out is not None:
        typer.echo(f"wrote {out}")


@app.command("run")
def run_all(
    pairs: Annotated[Path | None, typer.Option(help="File of trigger pairs; built-in ones if none.")] = None,
    actions: Annotated[
        Path | None, typer.Option(help="File of pairs with tools, scored in every arm; the trigger pairs if none.")
    ] = None,
    judge: Annotated[
        str, typer.Option(help="'lexicon' (offline), or the URL of an OpenAI-compatible server.")
    ] = "lexicon",
    judge_model: Annotated[str, typer.Option(help="Name by which that server knows the judge.")] = "",
    source: Annotated[
        str, typer.Option(help="traces, or cues for a model that does not say what it thinks.")
    ] = "traces",
    n: Annotated[int, typer.Option("--n", help="Number of built-in pairs.")] = 60,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length of a reply.")] = 2048,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.6,
    end: Annotated[str, typer.Option(help="Mark at which reasoning ends; empty if there is none.")] = "</think>",
    rule: Annotated[str, typer.Option(help="paper, or code (recognition counts as awareness).")] = "paper",
    kind: Annotated[str, typer.Option(help="logistic, sgd (the paper's) or mean_difference.")] = "logistic",
    strength: Strength = 1.0,
    k: Rows = 0,
    rank: Rank = "global",
    how: Annotated[str, typer.Option(help="auto, edit or residual.")] = "auto",
    randoms: Annotated[int, typer.Option(min=1, help="Random directions to compare with.")] = 5,
    batch_size: Annotated[int, typer.Option(min=1, help="Most prompts in a batch.")] = 32,
    out: Annotated[Path, typer.Option("--out", help="Folder; a run that is there goes on.")] = Path("awareness-run"),
    model: Model = "default",
    device: Device = "auto",
    dtype: Dtype = "float32",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Run the whole pipeline: traces, labels, probe, edit, and what it does against controls. Each stage is kept."""
    from touchstone.language.test_awareness.pairs import build_pairs, load_pairs
    from touchstone.language.test_awareness.pipeline import PipelineSettings, run_pipeline
    from touchstone.report import render_terminal, write_report
    from touchstone.run import Run

    _one_of("--source", source, "traces", "cues")
    _one_of("--rule", rule, "paper", "code")
    _one_of("--kind", kind, "logistic", "sgd", "mean_difference")
    _one_of("--how", how, "auto", "edit", "residual")
    _one_of("--rank", rank, "global", "layer")
    given = None if pairs is None else load_pairs(pairs)
    acted = [] if actions is None else load_pairs(actions)
    judging = _judge(judge, judge_model)
    choices: Any = {"source": source, "rule": rule, "kind": kind, "rank": rank, "how": how}
    settings = PipelineSettings(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        end=end,
        strength=strength,
        k=k,
        randoms=randoms,
        batch_size=batch_size,
        **choices,
    )
    bars = _bars()
    loaded = _load(model, device, dtype)
    chosen = given or build_pairs(n=n, seed=seed, tokenise=loaded.encode_continuation)
    work = Run(seed=seed, device=device, progress=bars)
    found = run_pipeline(loaded, chosen, judging, out, actions=acted, settings=settings, run=work, say=bars.say)
    write_report(out / "evidence", found.title, [found])
    if as_json:
        typer.echo(found.to_json(), nl=False)
        return
    from rich.console import Console

    Console(highlight=False).print(render_terminal([found], None))
    typer.echo(f"report  {out / 'evidence' / 'report.html'}")


def _bars() -> Bars:
    from touchstone.progress import Bars

    return Bars()


def _load(model: str, device: str, dtype: str = "float32") -> LanguageModel:
    from touchstone.language import LanguageModel

    return LanguageModel.load(model, device=device, dtype=dtype, progress=_bars().say)


def _edit(probe: Path, strength: float, sign: int, k: int, rank: str, model: str, device: str, dtype: str) -> GateEdit:
    from touchstone.language.test_awareness.edit import GateEdit
    from touchstone.language.test_awareness.probe import AwarenessProbe

    _one_of("--rank", rank, "global", "layer")
    # The probe first: a wrong file is found before the model takes its time.
    found = AwarenessProbe.load(probe)
    loaded = _load(model, device, dtype)
    if found.source and found.source != loaded.source:
        _bars().say(f"the probe was fitted on {found.source}, not on {loaded.source}")
    order: Any = rank
    return GateEdit(loaded, found.direction_, k=k or None, strength=strength, sign=sign, rank=order)


def _tell(made: GateEdit, out: Path, as_json: bool) -> None:
    record = made.record() | {"folder": str(out)}
    if as_json:
        typer.echo(json.dumps(record, indent=2))
        return
    blocks = [f"{block}:{count}" for block, count in enumerate(made.layer_histogram) if count]
    typer.echo(f"wrote {out}: {made.k} rows moved by {made.strength:g} of their norm (α {made.alpha:+.4g})")
    typer.echo(f"rows by block  {' '.join(blocks)}")


def _judge(name: str, model: str) -> Judge:
    from touchstone.language.test_awareness.labels import AskedJudge, LexiconJudge

    if name == "lexicon":
        return LexiconJudge()
    if not name.startswith(("http://", "https://")):
        raise InputError(f"--judge {name!r}: expected 'lexicon' or a URL such as http://localhost:8000/v1")
    if not model:
        raise InputError("--judge-model: a served judge needs the name that its server knows it by")
    from touchstone.language.endpoint import RemoteModel

    served = RemoteModel(name, model)
    return AskedJudge(lambda question: served.generate([question], max_new_tokens=2048)[0])


def _templates(path: Path) -> list[PairTemplate]:
    from touchstone.files import read_text
    from touchstone.language.test_awareness.pairs import PairTemplate

    try:
        items = json.loads(read_text(path, "templates"))
        found = [PairTemplate(**item) for item in items]
    except InputError:
        raise
    except (ValueError, TypeError) as error:
        raise InputError(f"templates {path}: expected a JSON list of {{text, real, hypothetical}} ({error})") from None
    if not found:
        raise InputError(f"templates {path}: holds none")
    return found


def _free(out: Path, replace: bool) -> None:
    if out.exists() and not replace:
        raise InputError(f"--out {out}: already exists; choose another or pass --replace")


def _one_of(name: str, value: str, *known: str) -> None:
    if value not in known:
        raise InputError(f"{name} {value!r}: expected {', '.join(known[:-1])} or {known[-1]}")


def _written(out: Path | None) -> str:
    return "" if out is None else f"; wrote {out}"
