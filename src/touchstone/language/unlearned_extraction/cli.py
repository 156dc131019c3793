"""``touchstone language extraction``: rebuild deleted text from two checkpoints, and decide whether to release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from touchstone.errors import InputError
from touchstone.language.options import Device, Dtype, Json, Seed

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel
    from touchstone.language.unlearned_extraction.splitting import Query

__all__ = ["app"]

app = typer.Typer(
    name="extraction",
    help="Audit unlearning: what can be rebuilt of deleted text by who kept the old checkpoint or its logits.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Pre = Annotated[str, typer.Option("--pre", help="The model before unlearning: a folder, .gguf file or id.")]
Post = Annotated[str, typer.Option("--post", help="The model after it.")]
Data = Annotated[Path, typer.Option("--data", help="JSONL file of deleted records.")]
PrefixField = Annotated[
    str, typer.Option("--prefix-field", help="half_words, half_tokens, a number of tokens, or a field.")
]
AnswerField = Annotated[str, typer.Option("--answer-field", help="Field of the true continuation.")]
Gamma = Annotated[float, typer.Option("--gamma", help="Filter: least share of the old model's top probability.")]
Tokens = Annotated[int, typer.Option("--max-new-tokens", min=1, help="Length of a continuation.")]
Batch = Annotated[int, typer.Option("--batch-size", min=1, help="Prefixes at once.")]


@app.command()
def extract(
    pre: Pre,
    post: Post,
    data: Data,
    prefix_field: PrefixField = "half_words",
    answer_field: AnswerField = "answer",
    slot: Annotated[list[str] | None, typer.Option(help="Field scored as a value of its own; repeat.")] = None,
    w: Annotated[str, typer.Option("--w", help="Guidance, or 'auto': chosen without the truth.")] = "1.4",
    gamma: Gamma = 1e-5,
    max_new_tokens: Tokens = 64,
    batch_size: Batch = 16,
    out: Annotated[Path | None, typer.Option("--out", help="JSONL to write with every extracted text.")] = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Extract deleted records by the new model, the old one, and guidance; rates with intervals."""
    from touchstone.files import write_jsonl
    from touchstone.language.unlearned_extraction.choosing import choose_w
    from touchstone.language.unlearned_extraction.evaluation import evaluate
    from touchstone.language.unlearned_extraction.extractor import GuidedExtractor

    wanted = _guidance(w)
    if out is not None and out.exists():
        raise InputError(f"{out}: already exists; nothing was written")
    old, new, bars = _load(pre, post, device, dtype)
    asked = _asked(new, data, prefix_field, answer_field, slot or [])
    attacker = GuidedExtractor(old, new, w=1.0 if wanted is None else wanted, gamma=gamma)
    if wanted is None:
        bars.say("choosing the guidance without the truth")
        prefixes = [query.prefix for query in asked]
        attacker = attacker.at(w=choose_w(attacker, prefixes, max_new_tokens=max_new_tokens, batch_size=batch_size).w)
    with bars.bar("extracting", 3 * len(asked)) as advance:
        report = evaluate(
            attacker, asked, max_new_tokens=max_new_tokens, batch_size=batch_size, seed=seed, progress=advance
        )
    if out is not None:
        write_jsonl(out, [{str(k): v for k, v in row.items()} for row in _plain(report.rows).to_dict("records")])
    if as_json:
        typer.echo(report.to_json())
        return
    table = report.summary().pivot(index="metric", columns="generator", values="value")
    typer.echo(table[report.generators].round(3).to_string())
    gain = report.gain()
    typer.echo(f"\nw = {attacker.w:g}. ROUGE-L, guided over pre: {gain.value:+.3f} [{gain.low}, {gain.high}]")


@app.command()
def candidates(
    pre: Pre,
    post: Post,
    data: Annotated[Path, typer.Option("--data", help="JSONL file of candidate texts (field text).")],
    top: Annotated[int, typer.Option(min=1, help="Candidates to show.")] = 20,
    batch_size: Batch = 16,
    device: Device = "auto",
    dtype: Dtype = "float32",
    as_json: Json = False,
) -> None:
    """Rank texts by how much likelier the old model finds them: was this deleted?"""
    from touchstone.files import read_jsonl
    from touchstone.language.unlearned_extraction.diverging import rank_candidates

    texts = [row["text"] for row in read_jsonl(data, "candidates", texts=["text"])]
    old, new, _ = _load(pre, post, device, dtype)
    table = rank_candidates(old, new, texts, batch_size=batch_size)
    if as_json:
        typer.echo(json.dumps(table.to_dict("records"), indent=2, ensure_ascii=False))
        return
    for row in table.head(top).itertuples():
        typer.echo(f"{row.total:9.2f} nats  {row.mean:7.3f} a token  {str(row.text)[:80]}")


@app.command()
def gate(
    pre: Pre,
    post: Post,
    data: Data,
    prefix_field: PrefixField = "half_words",
    answer_field: AnswerField = "answer",
    budget: Annotated[float, typer.Option(min=0, max=1, help="Largest share that may leak (upper 95 % end).")] = 0.05,
    metric: Annotated[str, typer.Option(help="esr_90, esr_100, exact or rouge_l.")] = "esr_90",
    treated: Annotated[
        str, typer.Option(help="How the old model is treated: 'all logits', 'top-5 logits', 'text only', 'retired', …")
    ] = "all logits",
    w: Annotated[float, typer.Option("--w", min=0, help="Guidance.")] = 1.4,
    gamma: Gamma = 1e-5,
    max_new_tokens: Tokens = 64,
    batch_size: Batch = 16,
    device: Device = "auto",
    dtype: Dtype = "float32",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Decide on a release: exit code 1 if more leaks than the budget; says which treatment of the old model is safe."""
    from touchstone.language.unlearned_extraction.gate import OPTIONS, release_gate

    if treated not in OPTIONS:
        raise InputError(f"--treated {treated!r}: expected one of {', '.join(OPTIONS)}")
    old, new, bars = _load(pre, post, device, dtype)
    asked = _asked(new, data, prefix_field, answer_field, [])
    with bars.bar("attacking under each treatment", 5 * len(asked)) as advance:
        found = release_gate(
            old, new, asked, metric=metric, budget=budget, w=w, gamma=gamma, max_new_tokens=max_new_tokens,
            batch_size=batch_size, seed=seed, progress=advance,
        )  # fmt: skip
    passes, safe = found.passes(treated), found.safest_open
    if as_json:
        record = {"metric": metric, "budget": budget, "treated": treated, "passes": passes, "mildest_safe": safe}
        typer.echo(json.dumps({**record, "options": _plain(found.table).to_dict("records")}, indent=2))
    else:
        typer.echo(found.table.round(3).to_string(index=False))
        advice = f"mildest treatment within the budget: {safe} ({OPTIONS[safe]})" if safe else "no treatment is safe"
        typer.echo(f"\n{'passes' if passes else 'FAILS'} with the old model treated as {treated!r}; {advice}")
    raise typer.Exit(0 if passes else 1)


@app.command()
def pair(
    data: Annotated[Path, typer.Option("--data", help="JSONL of all training records (field text).")],
    forget: Annotated[Path, typer.Option("--forget", help="JSONL of the records among them that are deleted.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write, with before/ and after/.")],
    model: Annotated[str, typer.Option("--model", help="The base model.")] = "default",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 3,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 1e-5,
    noise: Annotated[float, typer.Option(min=0, help="Gaussian noise in the gradients, a defence.")] = 0.0,
    trainable: Annotated[str, typer.Option(help="all, last:N or lora.")] = "all",
    batch_size: Batch = 16,
    device: Device = "auto",
    dtype: Dtype = "float32",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Train a base with all records and without the deleted ones: a pair for a rehearsal of the audit."""
    from touchstone.files import read_jsonl, written_folder
    from touchstone.language.loading import save
    from touchstone.language.unlearned_extraction.pairs import exact_unlearning_pair
    from touchstone.language.unlearning import Training

    if out.exists():
        raise InputError(f"{out}: already exists; nothing was written")
    texts = [row["text"] for row in read_jsonl(data, "data", texts=["text"])]
    gone = {row["text"] for row in read_jsonl(forget, "forget", texts=["text"])}
    unknown = gone - set(texts)
    if unknown:
        raise InputError(f"forget {forget}: a record is not among the data: {min(unknown)[:60]!r}")
    indices = [i for i, text in enumerate(texts) if text in gone]
    training = Training(epochs=epochs, lr=lr, noise=noise, trainable=trainable, batch_size=batch_size, seed=seed)
    base, bars = _one(model, device, dtype)
    steps = epochs * (-(-len(texts) // batch_size) + -(-(len(texts) - len(indices)) // batch_size))
    place = out.with_name(f"{out.name}.training")
    with bars.bar("training before and after", steps) as advance:
        found = exact_unlearning_pair(base, texts, indices, training=training, folder=place, progress=advance)
    with written_folder(out) as new:
        for name, one in (("before", found.pre), ("after", found.post)):
            (new / name).mkdir()
            save(one.module, one.tokenizer, new / name)
    import shutil

    shutil.rmtree(place, ignore_errors=True)
    record = {"out": str(out), "records": len(texts), "deleted": len(indices)}
    typer.echo(json.dumps(record, indent=2) if as_json else f"{out}: before/ and after/, {len(indices)} deleted")


def _guidance(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise InputError(f"--w {text!r}: expected a number of 0 or more, or 'auto'")
    return value


def _asked(model: LanguageModel, data: Path, prefix: str, answer: str, slots: list[str]) -> list[Query]:
    from touchstone.files import read_jsonl
    from touchstone.language.unlearned_extraction.splitting import queries

    records = read_jsonl(data, "data")
    return queries(model, records, prefix=int(prefix) if prefix.isdigit() else prefix, answer=answer, slots=slots)


def _one(model: str, device: str, dtype: str) -> tuple[LanguageModel, Any]:
    from touchstone.language.model import LanguageModel
    from touchstone.progress import Bars

    bars = Bars()
    return LanguageModel.load(model, device=device, dtype=dtype, progress=bars.say), bars


def _load(pre: str, post: str, device: str, dtype: str) -> tuple[LanguageModel, LanguageModel, Any]:
    old, bars = _one(pre, device, dtype)
    new, _ = _one(post, device, dtype)
    return old, new, bars


def _plain(table: Any) -> Any:
    return table.astype(object).where(table.notna(), None)
