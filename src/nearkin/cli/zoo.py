"""`add`, `list`, `show`, `remove`, `export`, `import`, `zoo upgrade`: the tasks of a zoo."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import nearkin as nk
from nearkin.cli.console import Restart, Settings, answer, baseline_text, escape, named_values, run, say, table
from nearkin.cli.parallel import join
from nearkin.cli.recipe import recipe_options
from nearkin.core.addresses import is_shared
from nearkin.core.errors import NearkinError, require
from nearkin.core.lazy import Lazy
from nearkin.core.text import byte_text, counted, duration
from nearkin.nets.adopted_spec import ADOPTED_FACTS, network_label
from nearkin.nets.trusted_code import is_trusted, refusal
from nearkin.tasks.metrics import metric_title

if TYPE_CHECKING:
    from nearkin.core import budget as budgets
    from nearkin.search import registry as methods
    from nearkin.search.networks import build as network_of
    from nearkin.store import bundle, places
    from nearkin.store import database as databases
    from nearkin.store.records import TaskRecord
    from nearkin.zoo import trials as zoo_trials
else:
    budgets, methods, network_of, bundle, databases, places, zoo_trials = map(
        Lazy,
        (
            "nearkin.core.budget",
            "nearkin.search.registry",
            "nearkin.search.networks.build",
            "nearkin.store.bundle",
            "nearkin.store.database",
            "nearkin.store.places",
            "nearkin.zoo.trials",
        ),
    )

NOT_TRUSTED = "not trusted"
FEW, PAGE = 1000, 100  # a longer list is shown in pages
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def task_names(context: typer.Context, incomplete: str) -> list[str]:
    """Names of tasks that start with the typed text, for shell completion."""
    parent = context.parent
    path = str(parent.params.get("zoo")) if parent else "nearkin-zoo"
    try:
        with nk.Catalogue(path, create=False) as catalogue:
            return [name for name in catalogue.names() if name.startswith(incomplete)]
    except NearkinError:
        return []


Name = Annotated[str, typer.Argument(help="A task of the zoo.", autocompletion=task_names)]


@recipe_options()
def add(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the task.")],
    data: Annotated[str, typer.Argument(help="Data string, such as 'digits?detect=0' or npz:mine.npz.")],
    network: Annotated[str | None, typer.Option(help="Network string, such as lenet or 'resnet18?width=0.25'.")] = None,
    trials: Annotated[int, typer.Option(min=1, help="Independent trainings.")] = 3,
    epsilon: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Stop a trial when its metric on held-out training data is 1 − ε."),
    ] = None,
    cell: Annotated[
        bool, typer.Option("--cell", help="Also search its best cells, from which searches for related tasks start.")
    ] = False,
    cell_evaluations: Annotated[int, typer.Option(min=1, help="Number of cells that --cell evaluates.")] = 24,
    cell_channels: Annotated[int, typer.Option(min=2, help="Width of these cells.")] = 8,
    cell_method: Annotated[str, typer.Option(help="Search method of --cell; see nearkin search --help.")] = "evolution",
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Option of that method, such as population=5; see nearkin search --options."
        ),
    ] = None,
    restart: Restart = False,
    as_json: Json = False,
    *,
    recipe: dict[str, Any],
) -> None:
    """Train a network for a task in several trials, and store it in the zoo.

    After an interruption the same command continues. torchrun -m nearkin add … uses several processes for each trial.
    """
    settings: Settings = context.obj
    parallel = join()
    require(
        parallel.size == 1 or (settings.workers == 1 and not cell),
        f"got --workers or --cell in {parallel.size} processes of torchrun, which train one network together; drop "
        f"the option, or start without torchrun",
    )
    task = nk.task(data, name=name)  # before a zoo is created: bad data changes nothing
    if not parallel.first:
        suited, device = nk.Recipe.suited(task, **_with_target(recipe, epsilon)), parallel.device(settings.device)
        run(zoo_trials.help_train(task, network, trials, suited, settings.seed, device, parallel), settings)
        return
    exists = False
    if cell and zoo_exists(settings):
        with settings.open_catalogue(create=False) as catalogue:
            exists = _without_cells(catalogue, task)
            if not exists:
                catalogue.claimable(name)  # cells that are stored are not replaced
    suited = nk.Recipe.suited(task, **_with_target(recipe, epsilon))
    if cell:  # before anything is trained
        searched = {"method": cell_method, "options": methods.checked(cell_method, task, named_values(option))}
    with settings.open_zoo() as zoo:
        work = zoo.add.work(
            task, network, trials=trials, recipe=suited, seed=settings.seed, device=settings.device, restart=restart,
            parallel=parallel,
        )  # fmt: skip
        record = zoo.record(name) if exists else run(work, settings)
        facts = _facts(record)
        if cell:
            skeleton = network_of.Skeleton.of_task(task, channels=cell_channels, num_cells=2, between="pool")
            budget = budgets.Budget(evaluations=cell_evaluations)
            cells = zoo.search_cells.work(name, skeleton, budget, seed=settings.seed, restart=restart, **searched)
            facts["cells"] = run(cells, settings).to_dict()
    answer(facts, as_json, lambda: _say_added(record, facts.get("cells")))


def _with_target(recipe: dict[str, Any], epsilon: float | None) -> dict[str, Any]:
    """The options of a recipe with the target that `--epsilon` gives."""
    require(
        epsilon is None or "target" not in recipe,
        "got --epsilon and --target; give one of them (--epsilon E is --target 1 − E)",
    )
    return recipe if epsilon is None else {**recipe, "target": 1 - epsilon}


def _without_cells(catalogue: "nk.Catalogue", task: "nk.Task") -> bool:
    """Whether this task is in the zoo without its cells, as after an interrupted `add --cell`."""
    if not catalogue.has(task.name) or catalogue.task(task.name).fingerprint != task.fingerprint():
        return False
    return not catalogue.artifacts(task.name, kind="cells")


def zoo_exists(settings: Settings) -> bool:
    """Whether there is something at the place of the zoo; a shared zoo is asked itself."""
    if is_shared(settings.zoo_path):
        try:
            settings.open_catalogue(create=False).close()
        except databases.NoZooError:
            return False
        return True
    path = Path(settings.zoo_path)
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def list_(
    context: typer.Context,
    limit: Annotated[
        int | None, typer.Option(min=1, help=f"Number of tasks (default: all, of more than {FEW:,} the first {PAGE}).")
    ] = None,
    after: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only tasks that were added after this one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the tasks of the zoo, in the order in which they were added."""
    settings: Settings = context.obj
    with settings.open_catalogue(create=False) as catalogue:
        total = catalogue.count()
        if limit is None and not as_json and total > FEW:
            limit = PAGE
        records = catalogue.tasks(limit, None if after is None else catalogue.task(after).id)
        more = bool(records) and bool(catalogue.tasks(1, records[-1].id))

    def show_table() -> None:
        if not total:
            say(f"The zoo {escape(settings.zoo_name)} is empty; add a task with nearkin add NAME DATA.")
            return
        head = ["name", "data", "network", "metric", "trials", "weights", "seconds"]
        adopted = any(ADOPTED_FACTS in record.facts for record in records)
        rows = [_row(record) + ([_licence(record)] if adopted else []) for record in records]
        table(head + (["licence"] if adopted else []), rows, right=head[3:])
        if more:
            last = escape(shlex.quote(records[-1].name))
            say(f"{counted(len(records))} of {counted(total, 'task')}; the next: nearkin list --after {last}")

    facts = {"zoo": settings.zoo_name, "total": total, "tasks": [_facts(record) for record in records]}
    answer(facts, as_json, show_table)


def upgrade(context: typer.Context, as_json: Json = False) -> None:
    """Migrate the tables of the zoo to the version of this nearkin; of a folder, the old database is kept as a copy."""
    settings: Settings = context.obj
    before, version = places.upgrade_zoo(settings.zoo_path)
    done = f"has version {version} already" if before == version else f"is migrated from version {before} to {version}"
    answer(
        {"zoo": settings.zoo_name, "before": before, "version": version},
        as_json,
        lambda: say(f"The zoo {escape(settings.zoo_name)} {done}."),
    )


def show(context: typer.Context, name: Name, as_json: Json = False) -> None:
    """Show one task and everything stored with it."""
    settings: Settings = context.obj
    with settings.open_catalogue(create=False) as catalogue:
        record = catalogue.task(name)
        artifacts = catalogue.artifacts(name)
        stored = [
            {
                "kind": item.kind,
                "trial": item.trial,
                "bytes": item.size,
                "digest": item.digest,
                **item.facts,
                **({"metric": None, "loss": None} if item.facts.get("count") == 0 else {}),
            }
            for item in artifacts
        ]
    facts = {**_facts(record), **record.facts, "artifacts": stored}

    def show_table() -> None:
        took = "" if ADOPTED_FACTS in facts else " of training"
        classes = ", ".join(facts["classes"][:12]) + (" …" if len(facts["classes"]) > 12 else "")
        named = record.trials or facts["classes"] != [str(number) for number in range(record.num_classes)]
        rows = [
            ("data", _data_text(record)),
            ("likelihood", record.likelihood),
            *([("classes", f"{record.num_classes}: {classes}")] if named else []),
            ("input", "×".join(map(str, record.input_shape))),
            *(
                [("samples", f"{counted(facts['num_train'])} for training, {counted(facts['num_test'])} for testing")]
                if record.trials
                else []
            ),
            ("network", f"{network_label(record.network)}, {counted(record.parameters, 'weight')}"),
            *_adopted_rows(record),
            *([] if facts["trusted"] else [("", f"{NOT_TRUSTED}: {refusal(record.network)}")]),
            *(_metric_rows(record) if record.trials else []),
            ("seed", str(record.seed)),
            ("added", f"{record.created}, {duration(record.seconds)}{took}"),
        ]
        say(f"[bold]{escape(record.name)}[/bold]")
        table(["", ""], rows)
        say("")
        table(
            ["stored", "trial", "metric", "steps", "seconds", "size"],
            [
                (
                    item["kind"],
                    str(item["trial"]),
                    "–" if item.get("count") == 0 else _figure(item.get("metric"), ".4f"),
                    str(item.get("steps", "")),
                    _figure(item.get("seconds"), ".1f"),
                    byte_text(item["bytes"]),
                )
                for item in stored
            ],
            right=["trial", "metric", "steps", "seconds", "size"],
        )

    answer(facts, as_json, show_table)


def remove(context: typer.Context, name: Name, as_json: Json = False) -> None:
    """Remove a task, and the files that no other task uses."""
    settings: Settings = context.obj
    with settings.open_catalogue(create=False) as catalogue:
        catalogue.remove(name)
    answer({"removed": name}, as_json, lambda: say(f"removed '{escape(name)}'"))


def export(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    names: Annotated[list[str] | None, typer.Argument(help="Tasks (default: all).", autocompletion=task_names)] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    as_json: Json = False,
) -> None:
    """Write the zoo, or some of its tasks, as one file that `import` reads."""
    settings: Settings = context.obj
    with settings.open_catalogue(create=False) as catalogue:
        written = run(
            bundle.export_bundle.work(catalogue, file, names or None, overwrite=overwrite), settings, at_once=True
        )
    size = file.stat().st_size
    answer(
        {"file": str(file), "tasks": written, "bytes": size},
        as_json,
        lambda: say(f"wrote {counted(len(written), 'task')}, {size / 1e6:.1f} MB, to {escape(str(file))}"),
    )


def import_(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="A file written by `export`.")],
    as_json: Json = False,
) -> None:
    """Import the tasks of an exported zoo; all of them, or none if there is any error."""
    settings: Settings = context.obj
    with settings.open_catalogue() as catalogue:
        imported = run(bundle.import_bundle.work(catalogue, file), settings, at_once=True)
        records = [catalogue.task(name) for name in imported]
    untrusted = [record.name for record in records if not is_trusted(record.network)]

    def show_names() -> None:
        say(f"imported {escape(', '.join(imported)) or 'no task'}")
        if untrusted:
            names = escape(", ".join(untrusted))
            say(f"  {NOT_TRUSTED}: the networks of {names} need code that is not trusted yet; see nearkin show NAME")

    answer({"file": str(file), "tasks": imported, "untrusted": untrusted}, as_json, show_names)


def _facts(record: "TaskRecord") -> dict[str, Any]:
    """JSON values of a task."""
    return {
        "name": record.name,
        "data": record.data,
        "network": record.network,
        "label": network_label(record.network),
        "likelihood": record.likelihood,
        "num_classes": record.num_classes,
        "metric": record.metric if record.trials else None,
        "epsilon": record.epsilon if record.trials else None,
        "trials": record.trials,
        "parameters": record.parameters,
        "seconds": record.seconds,
        "seed": record.seed,
        "created": record.created,
        "trusted": is_trusted(record.network),
        **({"licence": record.facts[ADOPTED_FACTS]["licence"]} if ADOPTED_FACTS in record.facts else {}),
    }


def _data_text(record: "TaskRecord") -> str:
    return record.data or ("arrays, stored in the zoo" if record.trials else "none: for rank and transfer only")


def _adopted_rows(record: "TaskRecord") -> list[tuple[str, str]]:
    """Licence, origin and preprocessing of an adopted model."""
    about, inputs = record.facts.get(ADOPTED_FACTS), record.facts.get("network_inputs")
    if about is None:
        return []
    rows = [("licence", about["licence"] or "not stated"), ("origin", about["source"] or "not stated"),
            ("features", counted(about["features"]))]  # fmt: skip
    if inputs is not None and inputs["mean"] is not None:
        mean, std = (", ".join(f"{value:g}" for value in inputs[key]) for key in ("mean", "std"))
        rows.append(("scaling", f"mean {mean}; standard deviation {std}; {about['channel_order']}"))
    if inputs is not None and "tokenizer" in inputs:
        rows.append(("tokenizer", f"{inputs['tokenizer']['length']} tokens of a text"))
    return rows


def _metric_rows(record: "TaskRecord") -> list[tuple[str, str]]:
    facts = record.facts
    figure = f"{record.metric:.4f} ± {facts['metric_std']:.4f} over {counted(record.trials, 'trial')}"
    return [
        (metric_title(facts["metric_name"]), f"{figure} ({baseline_text(facts['metric_name'], facts['guess'])})"),
        ("ε", f"{record.epsilon:.4f}"),
    ]


def _licence(record: "TaskRecord") -> str:
    return (record.facts[ADOPTED_FACTS]["licence"] or "not stated") if ADOPTED_FACTS in record.facts else ""


def _row(record: "TaskRecord") -> list[str]:
    return [
        record.name,
        record.data or ("(arrays)" if record.trials else "–"),
        network_label(record.network) + ("" if is_trusted(record.network) else f" ({NOT_TRUSTED})"),
        f"{record.metric:.4f}" if record.trials else "–",
        str(record.trials),
        counted(record.parameters),
        f"{record.seconds:.1f}",
    ]


def _say_added(record: "TaskRecord", cells: Mapping[str, Any] | None = None) -> None:
    say(
        f"[bold]{escape(record.name)}[/bold]: {metric_title(record.facts['metric_name'])} {record.metric:.4f} ± "
        f"{record.facts['metric_std']:.4f} on the test set "
        f"({baseline_text(record.facts['metric_name'], record.facts['guess'])}), "
        f"{record.network} with {counted(record.parameters, 'weight')}, {counted(record.trials, 'trial')}, "
        f"{duration(record.seconds)}"
    )
    if cells is not None:
        best = cells["found"][0]
        say(f"  best of {len(cells['found'])} stored cells, validation {best['score']:.4f}: {escape(best['genotype'])}")


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
