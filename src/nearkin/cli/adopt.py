"""`adopt` and `rank`: store trained models without training, and rank trained models for a data set."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import nearkin as nk
from nearkin.cli.console import Settings, answer, escape, run, say, table
from nearkin.cli.near import task_of
from nearkin.cli.new_zoo import zoo_or_new
from nearkin.cli.zoo import Json, task_names, zoo_exists
from nearkin.core.errors import require
from nearkin.core.lazy import Lazy
from nearkin.core.text import counted, duration
from nearkin.nets.adopted_spec import ADOPTED_FACTS

if TYPE_CHECKING:
    from nearkin.distance.candidate_ranking import CandidateRanking
    from nearkin.store.records import TaskRecord
    from nearkin.zoo import candidate_names, model_ranking
else:
    candidate_names, model_ranking = Lazy("nearkin.zoo.candidate_names"), Lazy("nearkin.zoo.model_ranking")

Preprocessing = Annotated[
    str | None,
    typer.Option(
        metavar="KEY=VALUE&…",
        help="Preprocessing of raw inputs: size, mean, std, order, channels, shape, tokenizer, length; such as "
        "'size=224&mean=0.5&std=0.5'.",
    ),
]


def adopt(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the model in the zoo.")],
    network: Annotated[
        str,
        typer.Argument(
            help="Network string, such as 'package.module:factory?width=2', or a folder with config.json and "
            "model.safetensors."
        ),
    ],
    weights: Annotated[
        Path | None, typer.Option(help="File or folder of the weights: safetensors or torch.save.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Data string of the task it was trained on.")] = None,
    head: Annotated[
        str | None, typer.Option(help="Name of the last linear layer; new if the model returns features.")
    ] = None,
    preprocess: Preprocessing = None,
    output: Annotated[str, typer.Option(help="Name or position of the output, if there are several.")] = "",
    pool: Annotated[str, typer.Option(help="Pooling of a sequence of outputs: mean, first or max.")] = "",
    licence: Annotated[str, typer.Option(help="Licence, such as apache-2.0.")] = "",
    source: Annotated[str, typer.Option(help="Where the model comes from.")] = "",
    as_json: Json = False,
) -> None:
    """Store an already trained model in the zoo, without training.

    With its task it takes part in all comparisons; without, in rank.
    """
    settings: Settings = context.obj
    known = None if task is None else nk.task(task, name=name)
    with zoo_or_new(settings) as zoo:
        record = run(
            zoo.adopt.work(
                name, network, weights=weights, head=head, task=known, preprocess=preprocess, output=output, pool=pool,
                licence=licence, source=source,
            ),
            settings,
            at_once=True,
        )  # fmt: skip
    answer(adopted_facts(record), as_json, lambda: say_adopted(record))


def adopted_facts(record: "TaskRecord") -> dict[str, Any]:
    """The answer of `adopt` and `pull` as plain JSON values."""
    about = record.facts[ADOPTED_FACTS]
    return {
        "name": record.name,
        "network": about["label"],
        "parameters": record.parameters,
        "features": about["features"],
        "licence": about["licence"],
        "source": about["source"],
        "task": record.data if record.trials else None,
        "metric": record.metric if record.trials else None,
        "seconds": record.seconds,
    }


def say_adopted(record: "TaskRecord") -> None:
    """The same for a terminal."""
    about = record.facts[ADOPTED_FACTS]
    say(
        f"[bold]{escape(record.name)}[/bold]: {escape(about['label'])} with {counted(record.parameters, 'weight')} and "
        f"{counted(about['features'], 'feature')}, licence {escape(about['licence'] or 'not stated')}"
    )
    if record.trials:
        say(f"  {record.facts['metric_name']} {record.metric:.4f} on the test set of its task")
    else:
        say("  without a task: it takes part in nearkin rank, transfer and predict")


def rank(
    context: typer.Context,
    data: Annotated[str, typer.Argument(help="A data string, or a task of the zoo.", autocompletion=task_names)],
    candidates: Annotated[
        list[str] | None,
        typer.Argument(
            help="Networks of the zoo, model files, network strings, or pixels (default: all of the zoo, and pixels).",
            autocompletion=task_names,
        ),
    ] = None,
    question: Annotated[
        str, typer.Option("--for", metavar="QUESTION", help="final (accuracy after fine-tuning) or speed.")
    ] = "final",
    measure: Annotated[
        str | None, typer.Option(metavar="NAME", help="One measure of features instead, such as logme or knn.")
    ] = None,
    sample: Annotated[int, typer.Option(min=10, help="Number of training samples.")] = 1000,
    preprocess: Preprocessing = None,
    fisher: Annotated[
        bool,
        typer.Option("--fisher", help="Also compare networks of one architecture by Fisher information; this trains."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Rank trained models for a data set by their features: which one should be fine-tuned?"""
    settings: Settings = context.obj
    how: dict[str, Any] = {
        "sample": sample, "question": question, "measure": measure, "preprocess": preprocess, "fisher": fisher,
    }  # fmt: skip
    if not zoo_exists(settings):
        require(bool(candidates), "there is no zoo; name candidates, such as model files, or add to a zoo first")
        ranking = run(model_ranking.rank.work(nk.task(data), list(candidates or ()), **how), settings, at_once=True)
    else:
        with settings.open_zoo(create=False) as zoo:
            task = zoo.task(data) if data in zoo else task_of(data, zoo)
            others = (f"{candidate_names.ZOO}{name}" for name in zoo.names() if name != task.name)
            named = candidates or [*others, candidate_names.PIXELS]
            work = model_ranking.rank.work(task, named, zoo=zoo, **how)
            ranking = run(work, settings, at_once=True)
    answer(ranking.to_dict(), as_json, lambda: _show(ranking))


def _show(ranking: "CandidateRanking") -> None:
    head, rows = ranking.table()
    table(head, rows, right=[title for title in head if title not in ("candidate", "network")])
    for name, reason in ranking.refused.items():
        say(f"  left out '{escape(name)}': {escape(reason)}")
    say(
        f"{counted(ranking.samples)} training samples, {duration(ranking.seconds)}; scores are larger for better "
        f"candidates, ± is the standard error over samples. The last three columns do not look at the data."
    )
