r"""Regression tasks on random sine curves: $y = A \sin(\omega x + b) + \varepsilon$.

Maddox et al. (2019) draw their few-shot tasks like Bayesian MAML (Kim et al. 2018). Their appendix states
$x \sim N(0, 1)$, $\omega \sim U(0, 2\pi)$ and no distribution of $b$; the published code draws $x \sim U(-5, 5)$,
$\omega \sim U(0.5, 2)$, $b \sim U(0, 2\pi)$ and noise of *standard deviation* $0.01 A$. The default, `narrow`, is the
distribution of the code; `frequency=wide` has the frequencies of the appendix, `frequency=wide&inputs=normal` also its
inputs. Half of the wide curves are too fast for ten points on [-5, 5] (one point per unit resolves ω up to π).

Inputs and targets are not standardised: a scaling from ten points would change the frequency of every task.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Generator, Tensor

from nearkin.core.errors import OptionError, require
from nearkin.core.numbers import quoted, real_number
from nearkin.core.opening import require_bytes
from nearkin.core.rng import Streams
from nearkin.tasks.datastring import DataString, one_of, whole
from nearkin.tasks.examples import Examples
from nearkin.tasks.rows import Values
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ("seed", "task", "frequency", "amplitude", "phase", "noise", "points", "test", "inputs")

FREQUENCIES = {"narrow": (0.5, 2.0), "wide": (0.0, 2 * math.pi)}
INPUTS = ("uniform", "normal")
EDGE = 5.0  # uniform inputs lie in [-EDGE, EDGE]


@dataclass(frozen=True)
class Sinusoid:
    r"""One curve $A \sin(\omega x + b)$.

    >>> Sinusoid(amplitude=2.0, frequency=1.0, phase=0.0)(torch.tensor([[math.pi / 2]]))
    tensor([[2.]])
    """

    amplitude: float
    frequency: float
    phase: float

    def __call__(self, x: Tensor) -> Tensor:
        """Values without noise, of the shape of `x`."""
        return self.amplitude * torch.sin(self.frequency * x + self.phase)


@dataclass(frozen=True, kw_only=True)
class Sinusoids:
    """The distribution of curves and points.

    Attributes:
        frequency: bounds of ω, uniform; `FREQUENCIES` has narrow and wide bounds.
        amplitude: bounds of A, uniform.
        phase: bounds of b, uniform.
        noise: standard deviation of the noise in units of the curve's amplitude.
        points: training points of a task.
        test: test points of a task, from the same distribution, with noise.
        inputs: `uniform` on [-5, 5], or `normal`.

    >>> Sinusoids().curve(Streams(0)) == Sinusoids(points=50).curve(Streams(0))
    True
    """

    frequency: tuple[float, float] = FREQUENCIES["narrow"]
    amplitude: tuple[float, float] = (0.1, 5.0)
    phase: tuple[float, float] = (0.0, 2 * math.pi)
    noise: float = 0.01
    points: int = 10
    test: int = 100
    inputs: str = "uniform"

    def __post_init__(self) -> None:
        for name in ("frequency", "amplitude", "phase"):
            low, high = getattr(self, name)
            ordered = math.isfinite(low) and math.isfinite(high) and low <= high
            require(ordered, f"{name} must be two rising numbers, as in {name}=0.5,2; got {low:g},{high:g}")
        require(0 <= self.noise < math.inf, f"noise must be 0 or more, got {self.noise}")
        for name in ("points", "test"):
            require(getattr(self, name) >= 1, f"{name} must be 1 or more, got {getattr(self, name)}")
        one_of(self.inputs, "inputs", INPUTS)

    def curve(self, streams: Streams) -> Sinusoid:
        """A random curve, independent of the number of points."""
        low, high = np.array([self.amplitude, self.frequency, self.phase]).T
        amplitude, frequency, phase = (low + (high - low) * streams.numpy("curve").random(3)).tolist()
        return Sinusoid(amplitude, frequency, phase)

    def examples(self, curve: Sinusoid, count: int, rng: Generator) -> Examples:
        """Inputs `[count, 1]` in rising order, and noisy values `[count, 1]`."""
        if self.inputs == "normal":
            x = torch.randn(count, 1, generator=rng, dtype=torch.float64)
        else:
            x = EDGE * (2 * torch.rand(count, 1, generator=rng, dtype=torch.float64) - 1)
        x = x.sort(dim=0).values
        noise = torch.randn(count, 1, generator=rng, dtype=torch.float64)
        y = curve(x) + self.noise * curve.amplitude * noise
        return Examples(Values(x.to(torch.float32)), Values(y.to(torch.float32)))

    def draw(self, seed: int, number: int) -> tuple[Task, Sinusoid]:
        """Task `number` of a seed, and its curve."""
        require_bytes(64 * (self.points + self.test), f"{self.points + self.test} points of a curve")
        streams = Streams(seed).child("sinusoid", number)
        curve = self.curve(streams)
        train = self.examples(curve, self.points, streams.at("train"))
        test = self.examples(curve, self.test, streams.at("test"))
        options = {**self._options(), "seed": str(seed), "task": str(number)}
        source = str(DataString("sinusoids", options=tuple(sorted(options.items()))))
        task = Task.of(source, train, test, likelihood="gaussian", classes=("y",), source=source, standardise=False)
        return task, curve

    def _options(self) -> dict[str, str]:
        """Options of the data string, without those that have their default."""
        changed = {name: value for name, value in asdict(self).items() if value != getattr(Sinusoids, name)}
        if self.frequency == FREQUENCIES["wide"]:
            changed["frequency"] = "wide"
        return {name: ",".join(map(repr, v)) if isinstance(v, tuple) else str(v) for name, v in changed.items()}


def sinusoid_tasks(count: int, seed: int = 0, law: Sinusoids | None = None) -> list[Task]:
    """Tasks 0 … `count` − 1 of a seed; the data string of each reads it again.

    >>> tasks = sinusoid_tasks(3, law=Sinusoids(frequency=FREQUENCIES["wide"], points=5))
    >>> tasks[2].source, len(tasks[2].train), tasks[2].input_shape
    ('sinusoids?frequency=wide&points=5&seed=0&task=2', 5, (1,))
    """
    require(count >= 1, f"count must be 1 or more, got {count}")
    law = law or Sinusoids()
    return [law.draw(seed, number)[0] for number in range(count)]


def read(options: Mapping[str, str]) -> Task:
    """One task, without a file.

    Args:
        options: `seed=0` and `task=0` choose the draw; `frequency=narrow` (0.5 to 2), `wide` (0 to 2π), one number or
            `low,high`; `amplitude=0.1,5`; `phase=0,6.28`; `noise=0.01` of the amplitude; `points=10` for training;
            `test=100` for the test; `inputs=uniform` or `normal`.

    >>> read({"seed": "7"}).train.all().x.shape
    torch.Size([10, 1])
    """
    seed, number = (whole(options.get(name) or "0", name) for name in ("seed", "task"))
    law: dict[str, tuple[float, float] | float | int | str] = {}
    for name in ("frequency", "amplitude", "phase"):
        if name in options:
            named = FREQUENCIES.get(options[name]) if name == "frequency" else None
            law[name] = named or _bounds(options[name], name)
    for name in ("points", "test"):
        if name in options:
            law[name] = whole(options[name], name, least=1)
    if "noise" in options:
        law["noise"] = _number(options["noise"], "noise", "noise=0.01")
    if "inputs" in options:
        law["inputs"] = options["inputs"]
    return Sinusoids(**law).draw(seed, number)[0]  # type: ignore[arg-type]


def _bounds(value: str, name: str) -> tuple[float, float]:
    """`low,high`, or one number for both.

    >>> _bounds("0.5,2", "frequency"), _bounds("1", "amplitude")
    ((0.5, 2.0), (1.0, 1.0))
    """
    example = f"{name}=narrow, {name}=wide or {name}=0.5,2" if name == "frequency" else f"{name}=0.5,2"
    words = value.split(",")
    require(len(words) <= 2, f"{name} must be one number or two, as in {example}; got {value!r}")
    numbers = [_number(word, name, example) for word in words]
    return numbers[0], numbers[-1]


def _number(value: str, name: str, example: str) -> float:
    number = real_number(value.strip())
    if number is None:
        raise OptionError(f"{name} must be a number, as in {example}; got {quoted(value)}")
    return number
