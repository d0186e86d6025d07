"""Model card: the `README.md` of a pushed model, with the front matter that the Hugging Face hub reads.

Names, licences and all other texts come from users or files. In the front matter they are quoted as JSON strings on one
line, and in the text characters with a meaning in Markdown or HTML are escaped.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from nearkin.core.text import brief, counted, fact_text, number, plain
from nearkin.nets.adopted_spec import AdoptedSpec, adopted_spec
from nearkin.tasks.likelihood import likelihood
from nearkin.tasks.metrics import metric_title
from nearkin.tasks.network_inputs import NETWORK_INPUTS
from nearkin.zoo.pushed_files import EXTRA, KinFacts, PushedFacts

LICENCES = """
afl-3.0 agpl-3.0 apache-2.0 artistic-2.0 bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsl-1.0 cc cc-by-2.0
cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-4.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0
cc-by-sa-4.0 cc0-1.0 creativeml-openrail-m ecl-2.0 epl-2.0 eupl-1.1 gemma gpl gpl-2.0 gpl-3.0 isc lgpl lgpl-2.1
lgpl-3.0 llama2 llama3 mit mpl-2.0 ms-pl odbl ofl-1.1 openrail openrail++ osl-3.0 postgresql unlicense wtfpl zlib
"""
"""Identifiers of licences that the hub knows; all others are `other` with a name."""

SHOWN = 20  # names of classes
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#+!|~$&^-])")


def escaped(text: str) -> str:
    r"""Text on one line in which no character has a meaning in Markdown or HTML.

    >>> print(escaped("a_b <i>\n# c"))
    a\_b \<i\> \# c
    """
    return _SPECIAL.sub(r"\\\1", plain(text))


def quoted_scalar(text: str) -> str:
    r"""Text as a YAML scalar in double quotes on one line.

    >>> print(quoted_scalar('mit"\ntags: [evil]'))
    "mit\" tags: [evil]"
    """
    return json.dumps(plain(text), ensure_ascii=False)


def pipeline_tag(facts: PushedFacts) -> str:
    """The hub's name for what the model does; empty if it is not known."""
    task, measured = facts["task"], facts["fit"]["count"] > 0
    inputs = task.get(NETWORK_INPUTS) or {}
    shape, form = inputs.get("shape", task["input_shape"]), task["likelihood"]
    if form in ("dense", "language"):
        return {"dense": "image-to-image", "language": "text-generation"}[form]
    if "tokenizer" in inputs:
        return "text-classification" if measured and form == "categorical" else "feature-extraction"
    if len(shape) == 3:
        return "image-classification" if measured and form == "categorical" else "image-feature-extraction"
    if len(shape) == 1 and measured:
        return "tabular-classification" if form == "categorical" else "tabular-regression"
    return ""


def model_card(facts: PushedFacts, recipe: Mapping[str, Any] | None) -> str:
    """The content of `README.md`.

    Args:
        facts: of the pushed model.
        recipe: of its training; None for a model that was trained elsewhere.
    """
    spec = adopted_spec(facts["network"])
    sections = {
        "What it is": _description(facts, spec),
        "How it was trained": _training(facts, recipe),
        "Measured figures": _figures(facts),
        "Kin": _kin(facts["kin"]),
        "How to use it": _use(facts, spec),
        "Licence and origin": _licence(facts),
    }
    text = "\n\n".join(f"## {title}\n\n{section}" for title, section in sections.items())
    return f"{_front_matter(facts, spec)}\n# {escaped(facts['name'])}\n\n{text}\n"


def _front_matter(facts: PushedFacts, spec: AdoptedSpec | None) -> str:
    licence = facts["licence"].strip()
    lines = ["---"]
    if licence.lower() in LICENCES.split():
        lines.append(f"license: {licence.lower()}")
    elif licence:
        lines += ["license: other", f"license_name: {quoted_scalar(licence)}"]
    lines.append(f"library_name: {'transformers' if _of_transformers(spec) else 'nearkin'}")
    lines += ["tags:", "- nearkin"]
    if tag := pipeline_tag(facts):
        lines.append(f"pipeline_tag: {tag}")
    return "\n".join([*lines, "---", ""])


def _of_transformers(spec: AdoptedSpec | None) -> bool:
    return spec is not None and spec.config is not None


def _description(facts: PushedFacts, spec: AdoptedSpec | None) -> str:
    task = facts["task"]
    inputs = task.get(NETWORK_INPUTS) or {}
    shape = fact_text(inputs.get("shape", task["input_shape"]))
    lines = [f"{escaped(facts['label'])}, a network with {counted(facts['figures']['parameters'], 'weight')}."]
    if tokenizer := inputs.get("tokenizer"):
        lines.append(f"Its inputs are texts of up to {counted(tokenizer['length'], 'token')}.")
    else:
        lines.append(f"One input has the shape {shape}.")
    if facts["channel_order"] == "bgr":
        lines.append("It reads the channels of images as blue, green, red.")
    if spec is not None and spec.width and not facts["fit"]["count"]:
        lines.append(f"It gives {counted(spec.width, 'feature')}; it has no trained head.")
    elif facts["fit"]["count"]:
        names = ", ".join(escaped(name) for name in task["classes"][:SHOWN])
        more = f" and {len(task['classes']) - SHOWN} more" if len(task["classes"]) > SHOWN else ""
        kind = "classes" if task["likelihood"] == "categorical" else "outputs"
        lines.append(f"Its {kind}: {names}{more}.")
    return "\n".join(lines)


def _training(facts: PushedFacts, recipe: Mapping[str, Any] | None) -> str:
    data = f" on {escaped(facts['data'])}" if facts["data"] else ""
    if recipe is None:
        where = f" It comes from {escaped(facts['source'])}." if facts["source"] else ""
        return f"It was trained elsewhere{data}, and adopted by nearkin without training.{where}"
    options = ", ".join(
        f"{escaped(key)} {escaped(fact_text(value))}" for key, value in recipe.items() if value not in (None, "")
    )
    return (
        f"It was trained by nearkin{data}, from initial weights of seed {facts['seed']} and trial {facts['trial']}.\n"
        f"Recipe: {options}."
    )


def _figures(facts: PushedFacts) -> str:
    figures = facts["figures"]
    rows = [("weights", counted(figures["parameters"]))]
    if facts["fit"]["count"]:
        title = metric_title(likelihood(facts["task"]["likelihood"]).metric)
        rows.append((f"{title} on {counted(facts['fit']['count'], 'test sample')}", number(facts["fit"]["metric"], 4)))
        rows.append(("test loss", number(facts["fit"]["loss"], 4)))
    if "fisher_trace" in figures and "fisher_samples" in figures:
        about = f"trace of the Fisher information, {counted(figures['fisher_samples'], 'test sample')}"
        rows.append((about, brief(figures["fisher_trace"])))
    note = "" if facts["fit"]["count"] else "\n\nIt was adopted without a task, so that no accuracy was measured."
    return "| figure | value |\n| --- | --- |\n" + "\n".join(f"| {a} | {b} |" for a, b in rows) + note


def _kin(kin: Sequence[KinFacts]) -> str:
    if not kin:
        return "The zoo has no stored distances of other tasks to its task."
    rows = "\n".join(f"| {escaped(k['name'])} | {escaped(k['measure'])} | {number(k['distance'])} |" for k in kin)
    return f"Tasks of the zoo, nearest first:\n\n| task | measure | distance |\n| --- | --- | --- |\n{rows}"


def _use(facts: PushedFacts, spec: AdoptedSpec | None) -> str:
    name = plain(facts["name"])
    lines = [
        "In the folder of this file:",
        "",
        "```bash",
        f"nearkin pull . {shlex.quote(name)}",
        "```",
        "",
        "```python",
        "import nearkin as nk",
        "",
        'with nk.Zoo("zoo") as zoo:',
        f'    zoo.pull(".", {json.dumps(name, ensure_ascii=False)})',
        f"    model = zoo.solved({json.dumps(name, ensure_ascii=False)}).model()",
        "```",
    ]
    if spec is not None and spec.config is not None:
        lines += [
            "",
            "With the library transformers:",
            "",
            "```python",
            "import transformers",
            "",
            f'model = transformers.{spec.label}.from_pretrained(".")' if spec.label.isidentifier() else "",
            "```",
        ]
        if spec.width:
            lines += ["", f"A head of nearkin is in {escaped(EXTRA)}, which transformers does not read."]
    elif code := _code(facts["network"], spec):
        lines += [
            "",
            f"It needs code that is not in this folder: {escaped(code)}. nearkin runs it only if you trust it.",
        ]
    return "\n".join(lines)


def _code(network: str, spec: AdoptedSpec | None) -> str:
    """Name of the file or module, and of the class, that a network needs; empty if it needs none."""
    name = (network if spec is None else spec.network).partition("?")[0]
    return name.rpartition("/")[2] if ":" in name and not name.startswith("nearkin.") else ""


def _licence(facts: PushedFacts) -> str:
    licence = escaped(facts["licence"]) or "not stated; ask the author before you use or share the model"
    origin = escaped(facts["source"]) or ("not stated" if facts["fit"]["count"] == 0 else "trained with nearkin")
    versions = ", ".join(f"{escaped(key)} {escaped(value)}" for key, value in sorted(facts["versions"].items()))
    return f"- Licence: {licence}\n- Origin: {origin}\n- Versions: {versions}"
