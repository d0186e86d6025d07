"""The command `nearkin`: global options, list of commands, exit codes."""

import io
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated

import typer
from click.core import ParameterSource

import nearkin
from nearkin.cli import (
    adopt,
    complexity,
    connect,
    demo,
    doctor,
    forecast,
    hub,
    interleave,
    jobs,
    models,
    near,
    predict,
    search,
    serve,
    solve,
    transfer,
    zoo,
)
from nearkin.cli.console import Interrupted, Settings, raise_interrupted, stop_signals
from nearkin.cli.parallel import error_stream, leave, prefix, refuse_parallel, silence_others
from nearkin.core.addresses import is_shared
from nearkin.core.errors import NearkinError, StoppedError
from nearkin.core.memory import out_of_memory
from nearkin.core.opening import VARIABLE, parsed_limit
from nearkin.nets import trusted_code

app = typer.Typer(
    name="nearkin",
    help="Keep a zoo of solved learning tasks. For a new task, find related ones and start from them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo.demo,
    "add": zoo.add,
    "adopt": adopt.adopt,
    "rank": adopt.rank,
    "list": zoo.list_,
    "show": zoo.show,
    "remove": zoo.remove,
    "export": zoo.export,
    "import": zoo.import_,
    "push": hub.push,
    "pull": hub.pull,
    "near": near.near,
    "matrix": near.matrix,
    "map": near.map_,
    "complexity": complexity.complexity,
    "forecast": forecast.forecast,
    "transfer": transfer.transfer,
    "connect": connect.connect,
    "solve": solve.solve,
    "predict": predict.predict,
    "search": search.search,
    "interleave": interleave.interleave,
    "export-model": search.export_model,
    "train": models.train,
    "evaluate": models.evaluate,
    "worker": jobs.worker,
    "jobs": jobs.jobs,
    "serve": serve.serve,
    "doctor": doctor.doctor,
}
HELP_CLASSES = {
    "near": near.MeasureHelp,
    "search": search.MethodHelp,
    "interleave": interleave.InterleaveHelp,
}
for name, command in COMMANDS.items():
    app.command(name, cls=HELP_CLASSES.get(name))(command)
zoo_app = typer.Typer(help="Maintenance of the zoo.", no_args_is_help=True)
zoo_app.command("upgrade")(zoo.upgrade)
app.add_typer(zoo_app, name="zoo")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"nearkin {nearkin.__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    zoo: Annotated[
        str,
        typer.Option(
            envvar="NEARKIN_ZOO", metavar="PATH_OR_URL", help="Folder of the zoo, or postgresql://… of a shared one."
        ),
    ] = "nearkin-zoo",
    blobs: Annotated[
        str,
        typer.Option(
            envvar="NEARKIN_BLOBS", metavar="URL", help="Place of the files of a shared zoo; needed to create it."
        ),
    ] = "",
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of everything random.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    runner: Annotated[
        str,
        typer.Option(
            metavar="RUNNER", help="Who starts workers: local (processes), ray, ray://HOST:PORT, or slurm?OPTION=VALUE."
        ),
    ] = "local",
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Workers for the jobs of a command (default: 1; with ray and slurm: 2)."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of one network (default: 1, or $OMP_NUM_THREADS).")
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Largest memory of one data set, such as 500MB (default: 4GiB, or $NEARKIN_MAX_BYTES).",
        ),
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Allow networks of this package, module or .py file; may be repeated."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only warnings.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    """Global options, before the command."""
    refuse_parallel(context.invoked_subcommand)
    if threads is not None:  # torch reads it when it is imported
        os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if max_bytes is not None:
        os.environ[VARIABLE] = str(parsed_limit(max_bytes, "--max-bytes"))
    trusted_code.trust(*(trust or ()))
    if context.get_parameter_source("blobs") == ParameterSource.ENVIRONMENT and not is_shared(zoo):
        blobs = ""  # the variable is for shared zoos
    context.obj = Settings(zoo, seed, device, quiet, debug, workers or (1 if runner == "local" else 2), blobs, runner)


def main() -> None:
    """Run the command line; exit 0 done, 1 an error, 2 wrong usage, 130 interrupted."""
    debug = "--debug" in sys.argv
    silence_others()
    for number in stop_signals():
        signal.signal(number, raise_interrupted)
    with suppress(OSError):  # the stream may be a closed pipe
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal without ε shows ?
    try:
        app()
    except (Interrupted, StoppedError) as stopped:
        saved = "finished work is saved; run the same command again to continue"
        reason = saved if isinstance(stopped, StoppedError) else str(stopped) or saved
        sys.exit(_print_error(f"interrupted: {reason}", 130))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except NearkinError as error:
        if debug:
            raise
        sys.exit(_print_error(f"error: {prefix()}{error}", 1))
    except OSError as error:
        if debug:
            raise
        sys.exit(
            _print_error(
                f"error: {error.filename or 'a file'}: {error.strerror or error}; check the path and permissions", 1
            )
        )
    except Exception as error:
        if debug:
            raise
        if out_of_memory(error):
            advice = "use a smaller batch, network or input size, or fewer samples (?limit=1000 in the data string)"
            sys.exit(_print_error(f"error: out of memory: {str(error)[-150:] or 'no memory left'}; {advice}", 1))
        reason = f"unexpected {type(error).__name__}: {error}"
        sys.exit(_print_error(f"error: {prefix()}{reason}; run nearkin --debug … for the traceback", 1))
    finally:
        leave()


def _print_error(text: str, code: int) -> int:
    with suppress(OSError):  # the terminal may be gone
        if (stream := error_stream()) is not None:
            print(" ".join(text.split()), file=stream, flush=True)
    return code
