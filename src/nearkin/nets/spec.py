"""Network strings `NAME[?option=value&option=value]`: one canonical form for every network.

A name is one of nearkin's own networks or the import path of a user's: `package.module:Name`, `path/to/file.py:Name`.
"""

import difflib
import inspect
import re
from dataclasses import dataclass, replace
from typing import TypeAlias

from torch import nn

from nearkin.core.errors import DataError, require
from nearkin.core.opening import local_path
from nearkin.nets.autoencoder import Autoencoder
from nearkin.nets.cnn import CNN
from nearkin.nets.deep import VGG16, DenseNet121, ResNet18
from nearkin.nets.recurrent import RecurrentLanguageModel
from nearkin.nets.small import MLP, LeNet
from nearkin.nets.trusted_code import absolute

Value: TypeAlias = bool | int | float | str | tuple[int, ...]

WEIGHT_FILES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
MAX_DIGITS = 400  # of a number; the largest float has 309

NETWORKS: dict[str, type[nn.Module]] = {
    "autoencoder": Autoencoder,
    "cnn": CNN,
    "densenet121": DenseNet121,
    "lenet": LeNet,
    "mlp": MLP,
    "recurrent": RecurrentLanguageModel,
    "resnet18": ResNet18,
    "vgg16": VGG16,
}


def value_of(text: str) -> Value:
    """Parse an option's value: a whole or real number, true or false, sizes `a-b-c`, otherwise text.

    A number with more than `MAX_DIGITS` characters is text: no option is so large.

    >>> value_of("3"), value_of("1e-3"), value_of("true"), value_of("512-256"), value_of("gru")
    (3, 0.001, True, (512, 256), 'gru')
    """
    if max(map(len, text.split("-"))) > MAX_DIGITS:
        return text
    if re.fullmatch(r"[+-]?[0-9]+", text):
        return int(text)
    if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", text, re.IGNORECASE):
        return float(text)
    if re.fullmatch(r"[0-9]+(-[0-9]+)+", text):
        return tuple(int(size) for size in text.split("-"))
    return {"true": True, "false": False}.get(text, text)


def text_of(value: Value) -> str:
    """The inverse of `value_of`.

    >>> text_of((512, 256)), text_of(False), text_of(0.5)
    ('512-256', 'false', '0.5')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True)
class NetworkSpec:
    """A network's name and options in one canonical form: equal networks give equal values and strings.

    Options of nearkin's own networks get the type of their default; options that equal the default are left out.

    >>> str(NetworkSpec.parse("resnet18?width=.5"))
    'resnet18?width=0.5'
    >>> str(NetworkSpec.parse("recurrent?layers=1&hidden=128&cell=gru"))
    'recurrent?cell=gru&hidden=128'
    >>> NetworkSpec.parse("lenet?depth=3")
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: lenet has no option 'depth'; it has width
    """

    name: str
    options: tuple[tuple[str, Value], ...] = ()

    def __post_init__(self) -> None:
        names = [option for option, _ in self.options]
        twice = sorted({option for option in names if names.count(option) > 1})
        require(not twice, f"{self.name}: option {', '.join(twice)} is given twice; give it once")
        options = _writable(self) if ":" in self.name else _canonical(self)
        object.__setattr__(self, "options", tuple(sorted(options)))

    @classmethod
    def parse(cls, text: str) -> "NetworkSpec":
        """Read a network string."""
        name, _, rest = text.strip().partition("?")
        pairs = [item.partition("=") for item in rest.split("&") if item]
        for option, equals, _ in pairs:
            require(bool(option and equals), f"{text}: options are written name=value, got {option!r}")
        return cls(name, tuple((option, value_of(value)) for option, _, value in pairs))

    def anchored(self) -> "NetworkSpec":
        """The same network with the absolute path of its file, so that it can be built from any folder.

        >>> NetworkSpec("lenet").anchored()
        NetworkSpec(name='lenet', options=())
        """
        return replace(self, name=absolute(self.name)) if ":" in self.name else self

    def __str__(self) -> str:
        rest = "&".join(f"{option}={text_of(value)}" for option, value in self.options)
        return f"{self.name}?{rest}" if rest else self.name


def _writable(spec: NetworkSpec) -> list[tuple[str, Value]]:
    """Options of a user's network; each must be the same after it is written and read."""
    for option, value in spec.options:
        text = text_of(value)
        same = (type(value_of(text)), value_of(text)) == (type(value), value)
        require(
            option.isidentifier() and same and not re.search(r"[&=?\s]", text),
            f"{spec.name}: option {option}={value!r} cannot be written in a network string; use numbers, true or "
            f"false, sizes such as 64-32, or plain text",
        )
    return list(spec.options)


def _canonical(spec: NetworkSpec) -> list[tuple[str, Value]]:
    """Options of one of nearkin's own networks that differ from the defaults."""
    if spec.name and spec.name not in NETWORKS:
        _require_no_file(spec.name)
    near = difflib.get_close_matches(spec.name.lower(), NETWORKS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? The networks are" if near else "choose one of"
    require(
        spec.name in NETWORKS,
        f"unknown network {spec.name!r}; {hint} {', '.join(NETWORKS)}, or your own as package.module:Name or "
        f"path/to/file.py:Name",
    )
    parameters = inspect.signature(NETWORKS[spec.name]).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    for option, _ in spec.options:
        require(option in defaults, f"{spec.name} has no option {option!r}; it has {', '.join(defaults)}")
    options = [(option, _as_default(spec.name, option, value, defaults[option])) for option, value in spec.options]
    return [(option, value) for option, value in options if value != defaults[option]]


def _require_no_file(name: str) -> None:
    """Refuse a folder, a file of weights or a name on the Hugging Face hub in place of a network; say what to do."""
    try:
        path = local_path(name)
    except DataError:
        return
    lacks = "" if (path / "config.json").is_file() else "without config.json"
    require(
        not path.is_dir(),
        f"got the folder {name} {lacks or 'of a model'}, expected a network; "
        + (f"fetch all its files, or give --weights {name}" if lacks else f"adopt it first: nearkin adopt NAME {name}"),
    )
    require(
        not (path.is_file() and path.suffix in WEIGHT_FILES),
        f"got the file of weights {name}, expected a network; give its network string, and --weights {name}",
    )
    require(
        not re.fullmatch(r"[\w.-]+/[\w.-]+", name),
        f"there is no folder {name}, and nothing is fetched; if it is a model of the Hugging Face hub, fetch it first: "
        f"hf download {name} --local-dir FOLDER",
    )


def _as_default(name: str, option: str, value: Value, default: Value) -> Value:
    """The value in the type of its default: a whole number may be a real number or a list of one size."""
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if isinstance(default, tuple) and (value == "" or type(value) is int):
        return (value,) if isinstance(value, int) else ()
    written = f"{option}={text_of(value)}"
    require(type(value) is type(default), f"{name} cannot read {written}; write it as {option}={text_of(default)}")
    return value
