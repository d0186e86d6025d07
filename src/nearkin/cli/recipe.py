"""Options that several commands share, and the options of a training recipe."""

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, NamedTuple

import typer

from nearkin.core.errors import require


class Flag(NamedTuple):
    """A field of `nearkin.nets.recipe.Recipe` as a command-line option."""

    name: str
    kind: type
    help: str
    also: str = ""
    least: float | None = None

    def parameter(self) -> inspect.Parameter:
        """Parameter of a command; None if the option is absent."""
        names = [f"--{self.name.replace('_', '-')}", *filter(None, [self.also])]
        option = typer.Option(*names, help=self.help, min=self.least)
        hint = Annotated[self.kind | None, option]  # type: ignore[name-defined]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)


FLAGS = (
    Flag("epochs", int, "Passes over the training data (default: by the number of samples).", least=1),
    Flag("steps", int, "Training steps, instead of epochs.", least=1),
    Flag("seconds", float, "Time limit; the schedule ends with it (default: none)."),
    Flag("batch_size", int, "Samples in one step.", "--batch", least=1),
    Flag("optimiser", str, "adam, adam-l2 or sgd (default: adam).", "--optimizer"),
    Flag("learning_rate", float, "Peak learning rate (default: 0.002).", "--rate"),
    Flag("momentum", float, "Momentum of sgd (default: 0.9)."),
    Flag("weight_decay", float, "Weight decay (default: 0)."),
    Flag("schedule", str, "cosine, step or constant (default: cosine)."),
    Flag("milestones", str, "Shares of the run at which schedule step decays (default: 0.5,0.75)."),
    Flag("decay", float, "Factor of schedule step (default: 0.1)."),
    Flag("warmup", float, "Share of the run with rising learning rate (default: 0.05)."),
    Flag("clip", float, "Largest gradient norm; 0: no limit (default: 0)."),
    Flag("smoothing", float, "Label smoothing (default: 0)."),
    Flag("averaging", float, "Share of the run, at its end, over which weights are averaged (default: 0)."),
    Flag("target", float, "Stop at this metric on held-out training data."),
    Flag("patience", int, "Stop after this many epochs without a better validation loss; 0: never (default: 0)."),
    Flag("validation", float, "Share of the training data held out for target and patience (default: 0.1)."),
    Flag("precision", str, "auto, float32, bfloat16 or float16 (default: auto)."),
    Flag("augment", str, "Augmentation, such as crop=2,flip."),
    Flag("frozen_statistics", bool, "Normalisation layers keep their running statistics."),
)


def shared_options(
    name: str, parameters: Sequence[inspect.Parameter], build: Callable[[dict[str, Any]], Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator that adds options to a command.

    Args:
        name: argument of the command that receives the built value.
        parameters: the added options.
        build: makes that value from a dict of the options that were given.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            received = {option.name: values.pop(option.name) for option in parameters}
            command(**values, **{name: build({key: value for key, value in received.items() if value is not None})})

        own = [option for option in inspect.signature(command).parameters.values() if option.name != name]
        shown = [*own, *parameters]
        wrapper.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {option.name: option.annotation for option in shown}
        return wrapper

    return decorate


def recipe_options(without: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator that adds the options of a recipe; the command receives a dict `recipe`.

    Args:
        without: options that the command does not have.
    """

    def build(values: dict[str, Any]) -> dict[str, Any]:
        return {key: _shares(value) if key == "milestones" else value for key, value in values.items()}

    return shared_options("recipe", [flag.parameter() for flag in FLAGS if flag.name not in without], build)


def _shares(text: str) -> tuple[float, ...]:
    """Numbers separated by commas.

    >>> _shares("0.5,0.75")
    (0.5, 0.75)
    """
    try:
        shares = tuple(float(item) for item in text.split(","))
    except ValueError:
        shares = ()
    require(
        bool(shares) and all(0 < share < 1 for share in shares),
        f"got milestones {text!r}, expected shares of the run between 0 and 1, such as 0.5,0.75",
    )
    return shares
