"""``touchstone language over-refusal``: find false alarms, see what sets them off, and train them away."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from touchstone.errors import InputError
from touchstone.language.evorefuse import cli_options
from touchstone.language.evorefuse.cli_options import (
    Endpoint,
    JudgeName,
    Model,
    Replace,
    System,
    Tokens,
)
from touchstone.language.options import Device, Json, Seed

__all__ = ["app"]

app = typer.Typer(
    name="over-refusal",
    help="Find harmless requests that a model refuses, see what sets it off, and teach it not to.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def search(
    seeds: Annotated[
        Path | None, typer.Argument(help="File with one instruction a line; built-in ones if left out.")
    ] = None,
    model: Model = "default",
    endpoint: Endpoint = "",
    system: System = None,
    out: Annotated[Path, typer.Option("--out", help="JSONL of the best instruction of every seed.")] = Path(
        "found.jsonl"
    ),
    keep_all: Annotated[
        Path | None,
        typer.Option("--all-out", help="JSONL of all candidates within --within nats of the best: for `align`."),
    ] = None,
    within: Annotated[float, typer.Option(help="For --all-out, nats below the best fitness.")] = 2.0,
    vouch: Annotated[
        bool,
        typer.Option("--vouch", help="You vouch that your instructions are harmless: rules may then dress them up."),
    ] = False,
    writer: Annotated[str, typer.Option(help="Model that rewrites, in place of rules; give --judge with it.")] = "",
    judge: Annotated[
        list[str] | None, typer.Option(help="Model that judges harmlessness; repeat it for a second.")
    ] = None,
    helper_endpoint: Annotated[str, typer.Option("--helper-endpoint", help="Server of --writer and --judge.")] = "",
    fitness: Annotated[
        str, typer.Option(help="prefix_mass (needs weights) or elbo; auto takes the first if it can.")
    ] = "auto",
    refusal_judge: JudgeName = "tfidf",
    replies: Annotated[int, typer.Option("--replies", help="Sampled replies a candidate, for elbo.")] = 10,
    rounds: Annotated[int, typer.Option(help="Rounds of the search.")] = 5,
    mutants: Annotated[
        int | None, typer.Option(help="Mutators a round, drawn at random; all nine if left out.")
    ] = None,
    budget: Annotated[int | None, typer.Option(help="Most texts scored a seed.")] = None,
    drift: Annotated[bool, typer.Option(help="With built-in seeds: may the search move on to other requests?")] = False,
    max_new_tokens: Tokens = 50,
    checkpoint: Annotated[
        Path | None, typer.Option(help="JSON file of the state after every round, to go on from.")
    ] = None,
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Evolve harmless instructions towards those that the model refuses."""
    from touchstone.language.evorefuse.search import EvoRefuse
    from touchstone.language.prompt import read_prompts

    given = None if seeds is None else read_prompts(seeds, "seeds")
    if given is not None and not vouch and not writer:
        raise InputError(
            "seeds: rules cannot judge free text; pass --vouch if all are harmless, or --writer and --judge"
        )
    bars = cli_options.bars()
    target = cli_options.load(model, endpoint, device, bars)
    starts, writers = cli_options.writers(
        given, writer, judge or [], helper_endpoint, device, bars, drift=drift, seed=seed
    )
    kind = fitness if fitness != "auto" else "elbo" if endpoint else "prefix_mass"
    chosen: dict[str, Any] = {"fitness": kind, "k": replies, "rounds": rounds, "mutants": mutants, "budget": budget}
    if endpoint:
        chosen["lam"] = 0.0
    hunt = EvoRefuse(
        target,
        **writers,
        **chosen,
        refusal=cli_options.judge(refusal_judge),
        system=system,
        max_new_tokens=max_new_tokens,
        seed=seed,
    )
    with bars.bar("rounds", rounds) as advance:
        found = hunt.run(starts, checkpoint=checkpoint, progress=advance)
    found.to_jsonl(out)
    if keep_all is not None and found.candidates:
        found.to_jsonl(keep_all, at_least=found.candidates[0].fitness - within)
    if as_json:
        shown = asdict(found) | {"candidates": len(found.candidates), "out": str(out)}
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    for one in found.best:
        typer.echo(f"{one.fitness:8.2f}  {one.instruction}")
    typer.echo(
        f"saved {out}: {len(found.best)} instructions, {found.n_calls} texts scored, {found.n_samples} replies drawn"
    )
    for note in (*found.notes, *cli_options.remarks(found)):
        typer.echo(note, err=True)


@app.command()
def report(
    harmless: Annotated[Path, typer.Argument(help="JSONL of `search`, or a file with one harmless prompt a line.")],
    unsafe: Annotated[
        Path | None, typer.Option(help="File with one prompt a line that must be refused; yours.")
    ] = None,
    model: Model = "default",
    endpoint: Endpoint = "",
    adapter: Annotated[
        Path | None, typer.Option(help="Adapter of `mitigate`: compares the model with and without it.")
    ] = None,
    before: Annotated[str, typer.Option(help="The model before a change, to compare with.")] = "",
    system: System = None,
    refusal_judge: JudgeName = "tfidf",
    margin: Annotated[float, typer.Option(help="Loss of true refusals that is still called none.")] = 0.05,
    max_new_tokens: Tokens = 64,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for Evidence and report.html.")] = None,
    replace: Replace = False,
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Refusals of harmless prompts beside refusals of unsafe ones."""
    from touchstone.language.evorefuse.two_sided import two_sided_report
    from touchstone.language.prompt import read_prompts
    from touchstone.run import Run

    if adapter is not None and before:
        raise InputError("--adapter, --before: expected one of them")
    if out is not None and out.exists() and not replace:
        raise InputError(f"--out {out}: already exists; choose another or pass --replace")
    prompts = cli_options.prompts(harmless)
    dangerous = [] if unsafe is None else read_prompts(unsafe, "unsafe prompts")
    bars, run = cli_options.bars(), Run(seed=seed, device=device)
    now = cli_options.load(model, endpoint, device, bars)
    earlier = cli_options.load(before, endpoint, device, bars) if before else None
    if adapter is not None:
        from touchstone.language.evorefuse.mitigation import load_adapter

        now, earlier = load_adapter(cli_options.local(now, "--adapter"), adapter), now
    bars.say(f"asking {len(prompts)} harmless and {len(dangerous)} unsafe prompts")
    both = two_sided_report(
        now, prompts, dangerous, cli_options.judge(refusal_judge), before=earlier, margin=margin, system=system,
        max_new_tokens=max_new_tokens,
    )  # fmt: skip
    evidence = run.evidence(
        f"Both sides of refusing: {now.source}", "evorefuse", "check", both.findings, tables=[both.table],
        device=str(getattr(now, "device", "remote")),
    )  # fmt: skip
    if out is not None:
        from touchstone.report import write_report

        evidence.save(out, replace=replace)
        write_report(out, evidence.title, [evidence])
    if as_json:
        typer.echo(evidence.to_json())
        return
    from touchstone.report import render_terminal

    cli_options.console().print(render_terminal([evidence], None))


@app.command()
def trigger(
    prompts: Annotated[list[str], typer.Argument(help="Refused prompts, or one JSONL file of `search`.")],
    lose: Annotated[float, typer.Option(help="Nats of the log mass of refusal openers that may be lost.")] = 0.5,
    model: Model = "default",
    system: System = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Take words away while the refusal stays, and find the nearest wording that is refused less."""
    from touchstone.language.evorefuse.grammar import default_grammar
    from touchstone.language.evorefuse.rules import reworded
    from touchstone.language.evorefuse.targets import ModelTarget
    from touchstone.language.evorefuse.trigger import minimal_trigger, paired_contrast, units_of, word_ranking

    if lose < 0:
        raise InputError(f"--lose {lose}: expected 0 or more")
    texts = cli_options.prompts(Path(prompts[0])) if len(prompts) == 1 and prompts[0].endswith(".jsonl") else prompts
    if not all(text.strip() for text in texts):
        raise InputError("prompts: one is empty")
    bars, grammar = cli_options.bars(), default_grammar()
    target = ModelTarget(cli_options.load(model, "", device, bars), system)
    found, pairs = [], []
    with bars.bar("taking words away", len(texts)) as advance:
        for text in texts:
            least = float(target.prefix_mass([text])[0]) - lose
            found.append(minimal_trigger(text, target.prefix_mass, threshold=least, units=units_of(text, grammar)))
            pairs += paired_contrast(
                [text], target.prefix_mass, threshold=least, rewordings=lambda one: reworded(grammar, one)
            )
            advance()
    ranking = word_ranking(found)
    if as_json:
        shown = {
            "triggers": [asdict(one) for one in found],
            "contrasts": [asdict(pair) for pair in pairs],
            "words": ranking.to_dict("records"),
        }
        from touchstone.evidence import finite

        typer.echo(json.dumps(finite(shown), indent=2, ensure_ascii=False))
        return
    nearest = {pair.refused: pair for pair in pairs}
    for one in found:
        typer.echo(
            f"{one.prompt}\n  trigger   {one.text}   ({one.before:.2f} -> {one.score:.2f} nats, {one.calls} texts)"
        )
        if one.prompt in nearest:
            pair = nearest[one.prompt]
            typer.echo(f"  calmer    {pair.answered}   ({pair.answered_score:.2f} nats)")
    typer.echo("\nwords that are left most often\n" + ranking.head(15).to_string(index=False))


@app.command()
def attribute(
    prompt: Annotated[str, typer.Argument(help="A prompt.")],
    opener: Annotated[str, typer.Option(help="How a refusal begins; its first token is looked at.")] = "I'm sorry",
    layer: Annotated[int | None, typer.Option(help="Information flow at this block, in place of gradients.")] = None,
    model: Model = "default",
    system: System = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Show which words of a prompt set off a refusal."""
    from touchstone.language.evorefuse.influence import attribution

    if not prompt.strip():
        raise InputError("prompt: empty")
    found = attribution(cli_options.load(model, "", device, cli_options.bars()), prompt, opener, layer, system=system)
    if as_json:
        shown = {"loss": found.loss, "layer": layer, "tokens": found.table().to_dict("records")}
        typer.echo(json.dumps(shown | {"words": found.words().to_dict("records")}, indent=2, ensure_ascii=False))
        return
    for word, score in found.words().itertuples(index=False, name=None):
        typer.echo(f"{score:6.3f}  {'█' * round(24 * score):24s}  {word}")


@app.command()
def align(
    found: Annotated[Path, typer.Argument(help="JSONL of `search`, best that of --all-out.")],
    out: Annotated[Path, typer.Option("--out", help="JSONL of prompt, chosen and rejected.")] = Path("align.jsonl"),
    answerer: Annotated[str, typer.Option("--answerer", help="Model that answers helpfully.")] = "default",
    endpoint: Endpoint = "",
    calm: Annotated[bool, typer.Option(help="Answer built-in requests as if they were asked calmly.")] = True,
    system: System = None,
    refusal_judge: JudgeName = "tfidf",
    max_new_tokens: Tokens = 200,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Pair every false alarm with a helpful answer and a refusal."""
    from touchstone.files import read_jsonl
    from touchstone.language.evorefuse.align import answers_of, build_align
    from touchstone.language.evorefuse.grammar import default_grammar
    from touchstone.language.evorefuse.result import Found
    from touchstone.language.evorefuse.rules import calmed

    records = [Found.of(row) for row in read_jsonl(found, texts=["instruction"])]
    judge = cli_options.judge(refusal_judge)
    bars, grammar = cli_options.bars(), default_grammar()
    rewording = partial(calmed, grammar) if calm else None
    answers = answers_of(
        cli_options.load(answerer, endpoint, device, bars),
        rewording=rewording,
        system=system,
        max_new_tokens=max_new_tokens,
    )
    bars.say(f"answering {len(records)} instructions")
    built = build_align(records, answers, judge=judge)
    if not built.records:
        raise InputError("answerer: refused or garbled every instruction; take another model")
    built.to_jsonl(out)
    if as_json:
        typer.echo(json.dumps({"out": str(out), "records": len(built.records), "dropped": built.dropped}, indent=2))
    else:
        typer.echo(f"saved {out}: {len(built.records)} records; {len(built.dropped)} dropped, whose answer was none")


@app.command()
def mitigate(
    records: Annotated[Path, typer.Argument(help="JSONL of `align`.")],
    benign: Annotated[Path, typer.Option(help="Plain harmless prompts: JSONL with prompt and chosen, or one a line.")],
    unsafe: Annotated[Path, typer.Option(help="One prompt a line that must go on being refused; yours.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the adapter.")] = Path("adapter"),
    method: Annotated[str, typer.Option(help="sft or dpo.")] = "sft",
    model: Model = "default",
    system: System = None,
    epochs: Annotated[float, typer.Option(help="Passes over the records.")] = 5.0,
    rate: Annotated[
        float | None, typer.Option(help="Learning rate; 2e-5 for sft and 1e-5 for dpo if left out.")
    ] = None,
    max_new_tokens: Tokens = 128,
    replace: Replace = False,
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Train a LoRA adapter that refuses less, on the records mixed with plain and unsafe prompts."""
    from dataclasses import replace as changed

    from touchstone.language.evorefuse.align import read_align, unsafe_pairs
    from touchstone.language.evorefuse.mitigation import Recipe
    from touchstone.language.evorefuse.mitigation import mitigate as train
    from touchstone.language.prompt import read_prompts

    recipe = changed(Recipe.of(method), epochs=epochs)
    recipe = recipe if rate is None else changed(recipe, rate=rate)
    if out.exists() and not replace:
        raise InputError(f"--out {out}: already exists; choose another or pass --replace")
    false_alarms, dangerous = read_align(records), read_prompts(unsafe, "unsafe prompts")
    bars = cli_options.bars()
    loaded = cli_options.load(model, "", device, bars)
    plain = cli_options.benign(benign, loaded, system, max_new_tokens, bars)
    bars.say(f"training on {len(false_alarms)} false alarms, {len(plain)} plain and {len(dangerous)} unsafe prompts")
    done = train(
        loaded, false_alarms, "dpo" if method == "dpo" else "sft", benign=plain, unsafe=unsafe_pairs(dangerous),
        recipe=recipe, system=system, out=out, replace=replace, seed=seed,
    )  # fmt: skip
    losses = [entry["eval_loss"] for entry in done.history if "eval_loss" in entry]
    if as_json:
        typer.echo(json.dumps({"out": str(out), "records": done.records, "eval_loss": losses}, indent=2))
    else:
        course = " -> ".join(f"{loss:.3f}" for loss in losses)
        typer.echo(
            f"saved {out}: held-out loss {course}; see both sides with `report … --adapter {out} --unsafe {unsafe}`"
        )
