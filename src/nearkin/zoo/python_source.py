"""Source code of an exported model as one Python file that needs only torch and safetensors.

The file contains the classes of the network and its preprocessing, copied from the sources of this package with all
that they use, and their options as literals. Numbers, classes and encodings are in the safetensors file beside it.
"""

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from nearkin.core.state import FACTS
from nearkin.zoo import plain_inputs, predictor
from nearkin.zoo.copied_source import LINE, Definitions
from nearkin.zoo.network_source import network_code


class Preprocessing(NamedTuple):
    """Options of `Predictor` besides its network, and the kind of raw inputs: `table`, `images` or `arrays`."""

    answer: str
    axes: int
    scaled: int
    targets: int
    resize: tuple[int, ...] | None = None
    inputs: str = "arrays"


def python_source(
    network: str,
    input_shape: Sequence[int],
    num_outputs: int,
    preprocessing: Preprocessing,
    *,
    model_shape: Sequence[int] | None = None,
    notes: Sequence[str] = (),
) -> str:
    """One readable Python file with `load()`, which returns the model, and `predict(data)`.

    As a script it prints the predictions for a file, or without one the number of parameters. The weights have the
    names of `Predictor.state_dict`.

    Args:
        network: the network string.
        input_shape: shape of one raw input.
        num_outputs: width of the head.
        preprocessing: options of the predictor.
        model_shape: shape of one input of the network (default: that of a raw input).
        notes: sentences for the docstring of the file; each starts on a new line.
    """
    definitions, shape = Definitions(), tuple(input_shape)
    for name in ("torch", "nn", "Tensor"):
        definitions.include(predictor, name)
    reading = _READING[preprocessing.inputs]
    needed = [(predictor, "Predictor"), *((plain_inputs, name) for name in reading.functions)]
    for module, name in needed:
        definitions.reserve(module, name)
    definitions.taken |= {"INPUT_SHAPE", "OPERATIONS", "build", "facts", "inputs", "load", "main", "predict"}
    title, code = network_code(definitions, network, tuple(model_shape or shape), num_outputs)
    for module, name in needed:
        definitions.include(module, name)
    for name in ("csv", "json", "sys"):
        definitions.imports.add(("", name, name))
    definitions.imports |= {("pathlib", "Path", "Path"), ("typing", "Any", "Any")}
    keywords = list(zip(preprocessing._fields, preprocessing, strict=True))[:5]
    options = ", ".join(f"{name}={definitions.literal(value, 0)}" for name, value in keywords)
    about = [line for note in notes for line in textwrap.wrap(note, LINE)]
    head = "\n".join([*title, "", *about, *([""] if about else []), *_USE])
    head = head.replace("\\", r"\\").replace('"""', r"\"\"\"")  # names in the notes may be anything
    tail = _TAIL.format(
        code=code, options=options, shape=shape, facts=FACTS, read=reading.code, sources=reading.sources,
        names=reading.names, prepare=reading.prepare, dtype="" if preprocessing.axes else ", dtype=torch.int64",
    )  # fmt: skip
    body = "\n\n".join(piece.strip("\n") if piece.count("\n") < 2 else "\n" + piece.strip("\n") for piece in
                       definitions.pieces.values())  # fmt: skip
    return f'"""{head}\n"""\n\n{definitions.import_lines()}\n\n{body.strip()}\n{tail}'


_USE = (
    "load() returns the model: raw inputs [N, ...] to probabilities [N, C] or values [N, K]. predict(data)",
    "reads new data and applies it. python FILE.py DATA prints predictions as csv. It needs torch and",
    "safetensors, and Pillow for image files.",
)

_TAIL = '''

INPUT_SHAPE = {shape}


def build() -> Predictor:
    """The model with new weights."""
    network = {code}
    return Predictor(network, {options})


def facts(path: Any = None) -> dict[str, Any]:
    """Classes, encoding of columns and notes, from the .safetensors file (default: the one beside this file)."""
    from safetensors import safe_open

    with safe_open(path or Path(__file__).with_suffix(".safetensors"), "pt") as file:
        known: dict[str, Any] = json.loads(file.metadata()["{facts}"])
    return known


def load(path: Any = None) -> Predictor:
    """The model with the weights of a .safetensors file (default: the one beside this file)."""
    from safetensors.torch import load_file

    model = build()
    model.load_state_dict(load_file(path or Path(__file__).with_suffix(".safetensors")))
    return model.eval()


def inputs(data: Any, path: Any = None) -> Tensor:
    """Raw inputs of the model, from a tensor, an array{sources}."""
{read}    if isinstance(data, str | Path):
        import numpy

        data = numpy.load(data, allow_pickle=False)
    x = torch.as_tensor(data)
    return x[:, None] if x.dim() == 3 and len(INPUT_SHAPE) == 3 else x


@torch.no_grad()
def predict(data: Any, path: Any = None) -> Tensor:
    """Probabilities [N, C], or values [N, K] in the units of the data."""
    model, x = load(path), inputs(data, path)
    if tuple(x.shape[1:]) != INPUT_SHAPE:
        raise ValueError(f"got inputs of shape {{tuple(x.shape[1:])}}, expected {{INPUT_SHAPE}}")
    return torch.cat([model(block) for block in x.split(256)])


def main(files: list[str]) -> None:
    """Print predictions for files as csv; without files, the size of the model after a test with zeros."""
    if not files:
        model = load() if Path(__file__).with_suffix(".safetensors").exists() else build().eval()
        with torch.no_grad():
            outputs = model(torch.zeros(2, *INPUT_SHAPE{dtype}))
        if not torch.isfinite(outputs).all():
            sys.exit("the outputs are not finite")
        print(f"{{sum(weight.numel() for weight in model.parameters())}} parameters, outputs {{list(outputs.shape)}}")
        return
    known, data = facts(), files[0] if len(files) == 1 else files
    try:
{prepare}        answers = predict(data)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {{error}}")
    writer = csv.writer(sys.stdout, lineterminator="\\n")
    classes = known["task"]["classes"]
    probable = known["answer"] == "probabilities"
    writer.writerow(["row", *(["prediction", "probability"] if probable else []), *classes])
    for row, line in zip({names}, answers.flatten(1).tolist()):
        best = max(range(len(line)), key=line.__getitem__)
        first = [classes[best], f"{{line[best]:.6g}}"] if probable else []
        writer.writerow([row, *first, *(f"{{number:.6g}}" for number in line)])


if __name__ == "__main__":
    main(sys.argv[1:])
'''


class _Reading(NamedTuple):
    """How an exported file reads new data.

    Attributes:
        functions: names of the functions that it needs.
        code: reads data that are no arrays.
        sources: what it reads besides arrays.
        names: expression for the names of rows that the script prints.
        prepare: code of the script before it predicts.
    """

    functions: tuple[str, ...]
    code: str
    sources: str
    names: str = "range(len(answers))"
    prepare: str = ""


_READING = {
    "table": _Reading(
        ("table_rows", "encode_table"),
        """    if not isinstance(data, Tensor) and not hasattr(data, "dtype") and not str(data).endswith(".npy"):
        return encode_table(table_rows(data), facts(path)["task"]["preprocessing"]["table"]["columns"])
""",
        ", a csv file, a list of dicts or a DataFrame",
    ),
    "images": _Reading(
        ("image_files", "readable_images", "image_pixels"),
        """    if isinstance(data, list | tuple) or (isinstance(data, str | Path) and not str(data).endswith(".npy")):
        return image_pixels(image_files(data), INPUT_SHAPE, facts(path)["invert"])
""",
        ", a folder of images, image files or PIL images",
        "data if isinstance(data, list) else range(len(answers))",
        """        if not str(data).endswith(".npy"):
            data = readable_images(image_files(data))
""",
    ),
    "arrays": _Reading((), "", " or an npy file"),
}
