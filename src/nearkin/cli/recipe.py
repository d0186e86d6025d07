"""Options of a training recipe on the command line: one definition for every command that trains."""

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any, NamedTuple

import typer

from nearkin.core.errors import require


class Flag(NamedTuple):
    """One field of `nearkin.nets.recipe.Recipe` as an option."""

    name: str
    kind: type
    help: str
    also: str = ""
    least: float | None = None

    def parameter(self) -> inspect.Parameter:
        """As a parameter of a command; None where it is not given."""
        names = [f"--{self.name.replace('_', '-')}", *filter(None, [self.also])]
        option = typer.Option(*names, help=self.help, min=self.least)
        hint = Annotated[self.kind | None, option]  # type: ignore[name-defined]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)


FLAGS = (
    Flag("epochs", int, "Passes over the training data; by default what suits its size.", least=1),
    Flag("steps", int, "Steps of training instead of epochs.", least=1),
    Flag("batch_size", int, "Samples in one step.", "--batch", least=1),
    Flag("optimiser", str, "adam or sgd (default: adam).", "--optimizer"),
    Flag("learning_rate", float, "Peak learning rate (default: 0.002).", "--rate"),
    Flag("momentum", float, "Momentum of sgd (default: 0.9)."),
    Flag("weight_decay", float, "Weight decay (default: 0)."),
    Flag("schedule", str, "cosine, step or constant (default: cosine)."),
    Flag("milestones", str, "Shares of the run at which schedule step decays (default: 0.5,0.75)."),
    Flag("decay", float, "Factor of schedule step (default: 0.1)."),
    Flag("warmup", float, "Share of the run in which the learning rate rises (default: 0.05)."),
    Flag("clip", float, "Largest norm of the gradient; 0 for no limit (default: 0)."),
    Flag("smoothing", float, "Label smoothing (default: 0)."),
    Flag("averaging", float, "Share of the run, from its end, whose weights are averaged (default: 0)."),
    Flag("target", float, "Stop at this metric on held-out training data."),
    Flag("patience", int, "Stop after so many epochs without a better validation loss; 0 for never (default: 0)."),
    Flag("validation", float, "Share of the training data held out for target and patience (default: 0.1)."),
    Flag("precision", str, "auto, float32, bfloat16 or float16 (default: auto)."),
    Flag("augment", str, "Augmentation, such as crop=2,flip."),
)


def recipe_options(without: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that gives a command the options of a recipe.

    The command has a parameter `recipe`, a dictionary of those that were given.

    Args:
        without: options that the command does not have.
    """
    flags = [flag for flag in FLAGS if flag.name not in without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(**values: Any) -> None:
            given = {flag.name: value for flag in flags if (value := values.pop(flag.name)) is not None}
            if "milestones" in given:
                given["milestones"] = _shares(given["milestones"])
            command(**values, recipe=given)

        own = [one for one in inspect.signature(command).parameters.values() if one.name != "recipe"]
        shown = [*own, *(flag.parameter() for flag in flags)]
        called.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in shown}
        return called

    return decorate


def _shares(text: str) -> tuple[float, ...]:
    """Numbers between commas.

    >>> _shares("0.5,0.75")
    (0.5, 0.75)
    """
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    require(
        bool(found) and all(0 < share < 1 for share in found),
        f"milestones are shares of the run between 0 and 1, such as 0.5,0.75; got {text!r}",
    )
    return found
