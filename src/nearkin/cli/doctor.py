"""`doctor`: versions, devices, data sets found, and integrity of the zoo."""

import importlib.util
import platform
from typing import TYPE_CHECKING, Annotated, Any

import typer

import nearkin as nk
from nearkin.cli.console import Settings, answer, escape, run, say, table
from nearkin.cli.zoo import NOT_TRUSTED, Json, zoo_exists
from nearkin.core.lazy import Lazy
from nearkin.core.text import counted
from nearkin.nets.trusted_code import is_trusted

if TYPE_CHECKING:
    import torch

    from nearkin.store import integrity as check
    from nearkin.tasks import builtin
else:
    torch, builtin, check = Lazy("torch"), Lazy("nearkin.tasks.builtin"), Lazy("nearkin.store.integrity")

EXTRAS = {
    "datasets": "hf",
    "PIL": "vision",
    "kornia": "vision",
    "onnx": "export",
    "ray": "ray",
    "psycopg": "postgres",
    "fsspec": "remote",
    "starlette": "web",
    "tensorboard": "track",
}


def doctor(
    context: typer.Context,
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove orphaned and temporary files older than an hour.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show versions, data sets found and the integrity of the zoo; exit 1 if the zoo is damaged."""
    settings: Settings = context.obj
    facts: dict[str, Any] = {**_machine(), "zoo": settings.zoo_name, "health": None, "untrusted": []}
    exists = zoo_exists(settings)
    if exists:
        with settings.open_catalogue(create=False) as catalogue:
            if clean:
                run(check.clean.work(catalogue), settings, at_once=True)
            health = run(check.examine.work(catalogue), settings, at_once=True)
            untrusted = (
                [] if health.problems else [task.name for task in catalogue.tasks() if not is_trusted(task.network)]
            )
        facts |= {"health": health.to_dict(), "untrusted": untrusted}

    def show() -> None:
        table(["", ""], [(name, str(value)) for name, value in facts["versions"].items()])
        say("")
        table(["data", "found in"], [(name, folder or "not found") for name, folder in facts["data"].items()])
        say("")
        if not exists:
            say(f"There is no zoo at {settings.zoo_name}; nearkin add creates one.")
            return
        _say_health(health, settings.zoo_name)
        if untrusted:
            say(f"  {NOT_TRUSTED}: {escape(', '.join(untrusted))} (see nearkin show NAME)")

    answer(facts, as_json, show)
    if exists and not health.sound:
        raise typer.Exit(1)


def _machine() -> dict[str, Any]:
    """Versions, extras, device and data sets found."""
    versions = {"nearkin": nk.__version__, "python": platform.python_version(), "torch": torch.__version__}
    cuda = torch.cuda.is_available()
    versions["device"] = torch.cuda.get_device_name() if cuda else f"cpu, {torch.get_num_threads()} threads"
    extras = {extra: importlib.util.find_spec(module) is not None for module, extra in EXTRAS.items()}
    versions["extras"] = ", ".join(sorted(name for name, installed in extras.items() if installed)) or "none"
    folders = {name: builtin.find_dataset(name) for name in builtin.PATTERNS}
    data = {"digits": "scikit-learn", **{name: str(folder) if folder else None for name, folder in folders.items()}}
    return {"versions": versions, "data": data}


def _say_health(health: "check.Health", zoo: str) -> None:
    """Print the integrity of the zoo, damage first."""
    verdict = "[green]sound[/green]" if health.sound else "[red]damaged[/red]"
    say(f"The zoo {escape(zoo)} is {verdict}: {counted(health.tasks, 'task')}, {counted(health.blobs, 'blob')}.")
    for word, damages in (("missing", health.missing), ("altered", health.altered)):
        for damage in damages:
            tasks = escape(", ".join(damage.tasks))
            say(f"  {word}: blob {damage.digest[:16]}… of {tasks}; restore it, or remove the task and add it again")
    for problem in health.problems:
        say(f"  database: {escape(problem)}")
    for word, names, advice in (
        ("orphan", health.orphans, "no task uses it; nearkin doctor --clean removes it"),
        ("leftover", health.leftovers, "of a running or killed process; nearkin doctor --clean removes it"),
        ("unfinished", health.unfinished, "the same command continues it"),
    ):
        for name in names:
            say(f"  {word}: {escape(name)} ({advice})")
