"""`train` and `evaluate`: one network from scratch into a file, and what a network is worth."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import nearkin as nk
from nearkin.cli.console import Settings, answer, escape, run, say
from nearkin.cli.zoo import Json, task_names
from nearkin.core.errors import DataError, require
from nearkin.core.lazy import Lazy
from nearkin.nets.trusted_code import trust_network

if TYPE_CHECKING:
    from nearkin.core import device as devices
    from nearkin.search import genotype as genotypes
    from nearkin.search import named
    from nearkin.search import network as skeletons
    from nearkin.zoo import modelfile
else:
    devices, genotypes, named, skeletons, modelfile = map(
        Lazy,
        (
            "nearkin.core.device",
            "nearkin.search.genotype",
            "nearkin.search.named",
            "nearkin.search.network",
            "nearkin.zoo.modelfile",
        ),
    )

MODEL_SUFFIX = ".safetensors"


def register(app: typer.Typer) -> None:
    """Hang the commands into the application."""
    app.command("train")(train)
    app.command("evaluate")(evaluate)


def train(
    context: typer.Context,
    data: Annotated[str, typer.Argument(help="Data string, such as mnist or folder:photos.")],
    out: Annotated[Path, typer.Option(help="The model file to write.")] = Path("model.safetensors"),
    network: Annotated[str | None, typer.Option(help="Network string; by default one that suits the data.")] = None,
    genotype: Annotated[
        str | None, typer.Option(help="A genotype's text instead of a network, such as search gives.")
    ] = None,
    channels: Annotated[int, typer.Option(min=2, help="Width of a genotype's cells.")] = 16,
    cells: Annotated[int, typer.Option(min=1, help="How many of them.")] = 2,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the training data.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps instead of epochs.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples of a step.")] = None,
    optimiser: Annotated[str, typer.Option(help="adam or sgd.")] = "adam",
    learning_rate: Annotated[float, typer.Option(help="Its peak.")] = 2e-3,
    schedule: Annotated[str, typer.Option(help="cosine, step or constant.")] = "cosine",
    weight_decay: Annotated[float, typer.Option(help="Strength of the pull to zero.")] = 0.0,
    clip: Annotated[float, typer.Option(help="Largest gradient norm; 0 for no limit.")] = 0.0,
    smoothing: Annotated[float, typer.Option(help="Label smoothing.")] = 0.0,
    averaging: Annotated[float, typer.Option(help="Share of the run whose weights are averaged.")] = 0.0,
    target: Annotated[float | None, typer.Option(help="Stop at this metric on held-out training data.")] = None,
    patience: Annotated[int, typer.Option(help="Stop after so many epochs without progress; 0 for never.")] = 0,
    precision: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    augment: Annotated[str, typer.Option(help="Augmentation, such as crop=2,flip.")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Go on from an interrupted run of this command.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the model file if it is there.")] = False,
    as_json: Json = False,
) -> None:
    """Train one network from scratch and write it to a file that `evaluate` and Python read."""
    settings: Settings = context.obj
    require(overwrite or not out.exists(), f"{out} is there already; choose another --out, or say --overwrite")
    require(out.suffix == MODEL_SUFFIX, f"a model file ends in {MODEL_SUFFIX}, got {out}; name it so")
    require(network is None or genotype is None, "give --network or --genotype, not both")
    task = nk.task(data)
    if genotype is not None:
        skeleton = skeletons.Skeleton.suited(task.input_shape, channels=channels, num_cells=cells)
        network = named.network_string(genotypes.Genotype.parse(genotype), skeleton)
    elif network is not None:
        trust_network(network)
    changes: dict[str, Any] = {
        "optimiser": optimiser,
        "learning_rate": learning_rate,
        "schedule": schedule,
        "weight_decay": weight_decay,
        "clip": clip,
        "smoothing": smoothing,
        "averaging": averaging,
        "target": target,
        "patience": patience,
        "precision": precision,
        "augment": augment,
        "steps": steps,
    }
    changes |= {name: value for name, value in (("epochs", epochs), ("batch_size", batch_size)) if value is not None}
    recipe = nk.Recipe.suited(task, **changes)
    work = modelfile.training(task, network, recipe, settings.seed, devices.device(settings.device), out, resume)
    solved = run(work, settings)
    done = solved.trials[0]
    facts = {
        "file": str(out),
        "data": task.source,
        "network": solved.network,
        "metric": done.scores.metric,
        "loss": done.scores.loss,
        "parameters": sum(value.numel() for value in done.params.values()),
        "steps": len(done.history.losses),
        "seconds": done.seconds,
        "reached": done.reached,
        "steps_to_half_loss": done.history.steps_to(float(done.history.losses[0]) / 2),
    }

    def show() -> None:
        say(
            f"[bold]{escape(str(out))}[/bold]: {task.form.metric} {done.scores.metric:.4f} on the test part (a blind "
            f"guess: {task.guess():.4f}), {solved.network} with {facts['parameters']:,} weights, {facts['steps']} "
            f"steps in {done.seconds:.1f} s"
        )

    answer(facts, as_json, show)


def evaluate(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A task of the zoo, or a model file.", autocompletion=task_names)],
    data: Annotated[str | None, typer.Argument(help="Data string; by default the model's own data.")] = None,
    trial: Annotated[int, typer.Option(min=0, help="Which trial of a task of the zoo.")] = 0,
    as_json: Json = False,
) -> None:
    """Measure a trained network on the test part of its own data, or of other data of the same kind."""
    settings: Settings = context.obj
    if model.endswith(MODEL_SUFFIX) or Path(model).is_file():
        solved = modelfile.loaded(Path(model))
        source = data or solved.facts["source"]
        require(
            bool(source),
            f"{model} does not say where its data came from; name it: nearkin evaluate {model} DATA",
            DataError,
        )
        task = nk.task(source)
    else:
        nk.Catalogue(Path(settings.zoo_path), create=False).close()
        with nk.Zoo(settings.zoo_path) as zoo:
            solved = zoo.solved(model)
            task = nk.task(data) if data is not None else zoo.task(model)
    scores = solved.scores_on(task, trial, devices.device(settings.device))
    facts = {"model": model, "data": task.source, "network": solved.network, "trial": trial, **scores.to_dict()}

    def show() -> None:
        say(
            f"[bold]{escape(model)}[/bold] on {escape(task.name)}: {task.form.metric} {scores.metric:.4f}, loss "
            f"{scores.loss:.4f}, {scores.count:,} samples (a blind guess: {task.guess():.4f})"
        )

    answer(facts, as_json, show)
