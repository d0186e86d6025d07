"""`train` and `evaluate`: train one network from scratch, and measure a trained network."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import nearkin as nk
from nearkin.cli.console import Restart, Resume, Settings, answer, baseline_text, escape, note_resume, run, say
from nearkin.cli.parallel import join
from nearkin.cli.recipe import recipe_options
from nearkin.cli.zoo import Json, task_names
from nearkin.core.errors import DataError, require
from nearkin.core.lazy import Lazy
from nearkin.core.text import counted, duration
from nearkin.nets.trusted_code import trust_network
from nearkin.tasks.metrics import metric_title

if TYPE_CHECKING:
    from nearkin.core import device as devices
    from nearkin.search.genotypes import genotype as genotypes
    from nearkin.search.networks import build as skeletons
    from nearkin.search.networks import named
    from nearkin.zoo import model_file as modelfile
else:
    devices, genotypes, named, skeletons, modelfile = map(
        Lazy,
        (
            "nearkin.core.device",
            "nearkin.search.genotypes.genotype",
            "nearkin.search.networks.named",
            "nearkin.search.networks.build",
            "nearkin.zoo.model_file",
        ),
    )

MODEL_SUFFIX = ".safetensors"


@recipe_options()
def train(
    context: typer.Context,
    data: Annotated[str, typer.Argument(help="Data string, such as mnist or folder:photos.")],
    out: Annotated[Path, typer.Option(help="The model file to write.")] = Path("model.safetensors"),
    network: Annotated[str | None, typer.Option(help="Network string (default: chosen by the data).")] = None,
    genotype: Annotated[str | None, typer.Option(help="A genotype, as search prints it, instead of a network.")] = None,
    channels: Annotated[int, typer.Option(min=2, help="Width of a genotype's cells.")] = 16,
    cells: Annotated[int, typer.Option(min=1, help="Number of cells.")] = 2,
    dropout: Annotated[float, typer.Option(min=0, max=0.99, help="Dropout rate of a genotype's network.")] = 0.0,
    weight_drop: Annotated[
        float, typer.Option(min=0, max=0.99, help="Share of recurrent weights that a training step drops.")
    ] = 0.0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the model file when the new one is complete.")
    ] = False,
    restart: Restart = False,
    resume: Resume = False,
    as_json: Json = False,
    *,
    recipe: dict[str, Any],
) -> None:
    """Train one network from scratch and write it to a file that `evaluate` and Python read.

    After an interruption the same command continues. torchrun -m nearkin train … uses several processes.
    """
    settings: Settings = context.obj
    note_resume(resume)
    parallel = join()
    taken = parallel.first and not overwrite and out.exists()
    require(not taken, f"{out} exists; choose another --out, or use --overwrite")
    require(out.suffix == MODEL_SUFFIX, f"got --out {out}, expected a file name that ends in {MODEL_SUFFIX}")
    require(network is None or genotype is None, "got --network and --genotype; give one of them")
    task = nk.task(data)
    if genotype is not None:
        rates = {"dropout": dropout, "weight_drop": weight_drop}
        skeleton = skeletons.Skeleton.of_task(task, channels=channels, num_cells=cells, **rates)
        network = named.network_string(genotypes.Genotype.parse(genotype), skeleton)
    elif network is not None:
        trust_network(network)
    suited, device = nk.Recipe.suited(task, **recipe), parallel.device(settings.device)
    work = modelfile.train.work(task, network, suited, settings.seed, device, out, restart, parallel)
    solved = run(work, settings)
    done = solved.trials[0]
    facts: dict[str, Any] = {
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
            f"[bold]{escape(str(out))}[/bold]: {metric_title(task.form.metric)} {done.scores.metric:.4f} on the test "
            f"set ({baseline_text(task.form.metric, task.majority_baseline())}), {solved.network} with "
            f"{counted(facts['parameters'], 'weight')}, {facts['steps']} steps in {duration(done.seconds)}"
        )

    answer(facts, as_json, show)


def evaluate(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A task of the zoo, or a model file.", autocompletion=task_names)],
    data: Annotated[str | None, typer.Argument(help="Data string (default: the data of the model).")] = None,
    trial: Annotated[int, typer.Option(min=0, help="Which trial of a task of the zoo.")] = 0,
    as_json: Json = False,
) -> None:
    """Measure a trained network on the test set of its own data, or of other data of the same kind."""
    settings: Settings = context.obj
    if model.endswith(MODEL_SUFFIX) or Path(model).is_file():
        solved = modelfile.loaded(Path(model))
        source = data or solved.facts["source"]
        require(
            bool(source),
            f"{model} stores no data string; give one: nearkin evaluate {model} DATA",
            DataError,
        )
        task = nk.task(source)
    else:
        with settings.open_zoo(create=False) as zoo:
            solved = zoo.solved(model)
            task = nk.task(data) if data is not None else zoo.task(model)
    scores = solved.scores_on(task, trial, devices.device(settings.device))
    facts = {"model": model, "data": task.source, "network": solved.network, "trial": trial, **scores.to_dict()}

    def show() -> None:
        say(
            f"[bold]{escape(model)}[/bold] on {escape(task.name)}: {metric_title(task.form.metric)} "
            f"{scores.metric:.4f}, loss {scores.loss:.4f}, {counted(scores.count, 'sample')} "
            f"({baseline_text(task.form.metric, task.majority_baseline())})"
        )

    answer(facts, as_json, show)
