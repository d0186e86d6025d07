"""`push` and `pull`: a model as a folder in the layout of the Hugging Face hub."""

from pathlib import Path
from typing import Annotated

import typer

import nearkin as nk
from nearkin.cli.adopt import adopted_facts, say_adopted
from nearkin.cli.console import Settings, answer, escape, run, say
from nearkin.cli.new_zoo import zoo_or_new
from nearkin.cli.zoo import Json, task_names
from nearkin.core.text import byte_text, counted


def push(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A task or model of the zoo.", autocompletion=task_names)],
    folder: Annotated[str, typer.Argument(help="The folder to write; it must be empty or absent.")],
    trial: Annotated[int, typer.Option(min=0, help="Which trial of a task.")] = 0,
    licence: Annotated[str, typer.Option(help="Licence, such as apache-2.0 (default: the stored one).")] = "",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the files of a model in the folder; other files stay.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a trained network to a folder in the layout of the Hugging Face hub: weights, configuration, model card.

    transformers reads a folder of one of its models with from_pretrained; nearkin pull reads every folder. Nothing is
    uploaded: use the client of the hub for that.
    """
    settings: Settings = context.obj
    with settings.open_zoo(create=False) as zoo:
        work = zoo.push.work(name, folder, trial=trial, overwrite=overwrite, licence=licence)
        pushed = run(work, settings, at_once=True)

    def show() -> None:
        say(
            f"[bold]{escape(str(pushed.folder))}[/bold]: {counted(len(pushed.files), 'file')}, "
            f"{byte_text(pushed.bytes)}, licence {escape(pushed.licence or 'not stated')}"
        )
        if pushed.library == "transformers":
            say("  transformers reads it with from_pretrained")

    answer(pushed.to_dict(), as_json, show)


def pull(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="A folder written by `push`.")],
    name: Annotated[str | None, typer.Argument(help="Name of the model (default: that in the folder).")] = None,
    task: Annotated[str | None, typer.Option(help="Data string of the task it was trained on.")] = None,
    code: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="Module or .py file of its class, if the folder names another one; it is trusted."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Store the model of a folder that `push` wrote, without training and with the same weights.

    Without --task it takes part in rank, transfer and predict; with it in all comparisons.
    """
    settings: Settings = context.obj
    known = None if task is None else nk.task(task, name=name or "the task")
    with zoo_or_new(settings) as zoo:
        record = run(zoo.pull.work(folder, name, task=known, code=code), settings, at_once=True)
    answer(adopted_facts(record), as_json, lambda: say_adopted(record))
