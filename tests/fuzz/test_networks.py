"""Fuzzed network strings and genotypes: read, built within a size limit, or refused in one line."""

import random
import re
from collections.abc import Callable
from urllib.parse import quote

import pytest
import torch

import nearkin.solver.simple.machines  # noqa: F401  # before a clock runs
from fuzz.mutation import INTERESTING, WORDS, FuzzCount, fuzz, mutated_text
from nearkin.core.errors import OptionError
from nearkin.nets import size_limit
from nearkin.nets.registry import build
from nearkin.nets.spec import NetworkSpec
from nearkin.nets.trusted_code import is_trusted, refusal
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.build import build_network
from nearkin.search.networks.named import decode_genotype, encode_genotype, network_string, parse_network
from nearkin.search.networks.skeleton import Skeleton
from nearkin.search.spaces.nasbench201 import nasbench201_arch, nasbench201_cell, transnas101_arch, transnas101_cell
from nearkin.search.spaces.registry import space

Count = Callable[[FuzzCount], FuzzCount]

CELLS = (
    "normal(0): 1 = conv3(0); 2 = max3(0) + conv5(1); out = 2",
    "normal(0): 1 = conv3(0); 2 = nothing; 3 = zero(0) + skip_connect(1); out = concat(1, 3)",
    "normal(0, 1): 2 = sep_conv_3x3(0) + skip_connect(1); 3 = dil_conv_5x5(0) + max_pool_3x3(2); out = sum(2, 3)",
)
DARTS = tuple(str(space("darts").at(index)) for index in (0, 12345678901, 99999999999999))
CHAINS = (
    "chain: mbconv(expansion=3, kernel=5); skip",
    "chain: mbconv(kernel=3, expansion=6); mbconv(expansion=1,kernel=7)",
)
RECURRENT = (
    "recurrent(0): 1 = tanh(0); 2 = relu(1); out = mean(1, 2)",
    "recurrent(0): 1 = sigmoid(0); 2 = identity(0); 3 = tanh(2); out = mean(3)",
)
GENOTYPES = {"cells": CELLS, "DARTS cells": DARTS, "chains": CHAINS, "recurrent cells": RECURRENT}

SKELETON = Skeleton(channels=4, num_cells=2, stages=(1, 1))
SEARCHED = tuple(network_string(Genotype.parse(text), SKELETON) for text in (*CELLS, DARTS[0], *CHAINS, *RECURRENT))
BUILT_IN = (
    "mlp?hidden=8-4",
    "lenet?width=0.5",
    "resnet18?width=0.0625",
    "vgg16?width=0.0625",
    "autoencoder?width=0.0625",
    "recurrent?cell=gru&hidden=5&layers=2&embedding=5&tied=true&dropout=0.1",
)
MACHINES = (
    "nearkin.solve.simple.machines:linear_machine",
    "nearkin.solve.simple.machines:kernel_machine?vectors=7",
    "nearkin.solve.simple.machines:boosted_trees?depth=2&nodes=7&trees=3",
    "nearkin.solve.simple.machines:averaged_trees?depth=2&log=true&nodes=7&trees=3",
    f"nearkin.transfer.machine:tangent_machine?network={quote('mlp?hidden=4', safe='')}&outputs=2&points=3",
)
FOREIGN = ("package.module:Net?depth=3&sizes=4-5", "path/to/file.py:Net?flag=true", "os:system?command=date")
SHAPES = ((1, 8, 8), (6,))


def mutations(texts: tuple[str, ...]) -> Callable[[random.Random], str]:
    """Half of them are changed anywhere, half keep their form and have another number or word somewhere."""

    def make(rng: random.Random) -> str:
        text = rng.choice(texts)
        tokens = list(re.finditer(r"[0-9]+|[a-z_]+[a-z0-9_]*", text))
        if rng.random() < 0.5:
            return mutated_text(text, rng)
        token, number = rng.choice(tokens), rng.choice((rng.randint(0, 9), rng.choice(INTERESTING)))
        other = rng.choice((str(number), rng.choice(WORDS), rng.choice(tokens)[0]))
        return text[: token.start()] + other + text[token.end() :]

    return make


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that leaves the tests fast."""
    monkeypatch.setattr(size_limit, "MAX_NUMBERS", 2**20)
    monkeypatch.setattr(size_limit, "MAX_LAYERS", 1000)


@pytest.mark.parametrize("kind", GENOTYPES)
def test_genotypes(count_inputs: Count, kind: str) -> None:
    def read(text: object) -> None:
        genotype = Genotype.parse(str(text))
        assert Genotype.parse(str(genotype)) == genotype
        assert decode_genotype(encode_genotype(genotype)) == genotype
        genotype.canonical(fold_identities=True)

    count_inputs(fuzz(f"genotypes, {kind}", mutations(GENOTYPES[kind]), read))


@pytest.mark.parametrize(
    "text",
    [
        "normal(0): " + "".join(f"{node} = a(0); " for node in range(1, 64)) + "out = 1",
        "recurrent(0): " + "".join(f"{node} = tanh(0); " for node in range(1, 64)) + "out = mean(1)",
        "chain: " + "skip; " * 10_000 + "skip",
    ],
    ids=["cells", "recurrent", "chain"],
)
def test_absurd_genotypes_are_refused_before_work_is_spent_on_them(text: str) -> None:
    with pytest.raises(OptionError, match="at most"):
        Genotype.parse(text)


def test_table_cells(count_inputs: Count) -> None:
    nasbench = "|avg_pool_3x3~0|+|nor_conv_1x1~0|skip_connect~1|+|nor_conv_1x1~0|none~1|nor_conv_3x3~2|"

    def read(text: object) -> None:
        if "|" in str(text):
            nasbench201_arch(nasbench201_cell(str(text)))
        else:
            transnas101_arch(transnas101_cell(str(text)))

    count_inputs(fuzz("genotypes, table cells", mutations((nasbench, "64-41414-1_02_103")), read))


def test_network_strings(count_inputs: Count) -> None:
    """Read as text: equal after writing, and nothing outside nearkin is trusted."""

    def read(text: object) -> None:
        refusal(str(text))
        trusted, spec = is_trusted(str(text)), NetworkSpec.parse(str(text))
        assert NetworkSpec.parse(str(spec)) == spec
        assert spec.anchored().options == spec.options
        assert trusted == is_trusted(str(spec))
        assert not trusted or ":" not in spec.name or spec.name.startswith("nearkin.")

    texts = (*BUILT_IN, *MACHINES, *SEARCHED, *FOREIGN)
    count_inputs(fuzz("network strings, parsed", mutations(texts), read))


def test_searched_network_strings(count_inputs: Count) -> None:
    def read(text: object) -> None:
        genotype, skeleton = parse_network(str(text))
        assert parse_network(network_string(genotype, skeleton)) == (genotype, skeleton)

    count_inputs(fuzz("network strings, searched", mutations(SEARCHED), read))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", ["built-in", "machines", "searched"])
def test_built_networks(count_inputs: Count, kind: str) -> None:
    texts = {"built-in": BUILT_IN, "machines": MACHINES, "searched": SEARCHED}[kind]

    def read(text: object) -> None:
        shape = SHAPES["recurrent" in str(text)]
        model = build(str(text), shape, 3, seed=0)
        assert all(value.device.type == "cpu" for value in (*model.parameters(), *model.buffers()))

    count_inputs(fuzz(f"networks, {kind}", mutations(texts), read))


@pytest.mark.usefixtures("small")
def test_networks_of_genotypes(count_inputs: Count) -> None:
    """`build_network` on what a file may say: text of a genotype and plain values of a skeleton."""

    def make(rng: random.Random) -> tuple[str, dict[str, object]]:
        facts: dict[str, object] = SKELETON.to_dict()
        values: tuple[object, ...] = (0, 1, -1, 2**31, 2**63, 1.5, float("nan"), None, "x", True, [], [1, 10**9], {})
        for name in rng.sample(sorted(facts), rng.randint(0, 2)):
            facts[name] = rng.choice(values)
        text = rng.choice((*CELLS, *CHAINS, *RECURRENT))
        return mutated_text(text, rng) if rng.random() < 0.5 else text, facts

    def read(made: object) -> None:
        text, facts = made  # type: ignore[misc]
        shape = SHAPES[text.startswith("recurrent")]
        model = build_network(Genotype.parse(text), Skeleton.from_dict(facts), shape, 3)
        x = torch.zeros(2, *shape, dtype=torch.int64 if len(shape) == 1 else None)
        assert torch.isfinite(model.eval()(x)).all()

    count_inputs(fuzz("networks, genotypes", make, read))
