"""Closed-form transfer and fine-tuning over subsets of weights, also of text encoders that read tokens."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nearkin as nk
from nearkin.core.errors import OptionError
from nearkin.core.events import finish
from nearkin.core.rng import derived_seed
from nearkin.nets.functional import view
from nearkin.nets.heads import SCALE_SAMPLES, with_start
from nearkin.nets.lora import merge_lora, with_lora
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import build
from nearkin.nets.training_loop import fit
from nearkin.tasks.examples import Examples
from nearkin.tasks.rows import Values
from nearkin.tasks.sources import task
from nearkin.tasks.task import Task
from nearkin.transfer.closed_form import closed_form
from nearkin.transfer.finetune import ALL_WEIGHTS, START, all_weights, fine_tuned, run_baselines
from nearkin.transfer.linearized import MOST_OUTPUTS, Linearized, linearize, transfer_source
from nearkin.zoo.transfer import TransferOptions, with_shots
from nearkin.zoo.zoo import Zoo

WORDS, LENGTH = 21, 7
SUBSETS = ("head", "norm", "lora?r=2", "all")


class TextEncoder(nn.Module):
    """Embeddings, one layer of torch's transformer with dropout, the mean over words, batch normalisation, a head."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 8, padding_idx=0), nn.Parameter(torch.randn(LENGTH, 8) / 4)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.batch, self.head = nn.BatchNorm1d(8), nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.batch(self.layer(self.words(x) + self.places).mean(1)))


class TiedEncoder(nn.Module):
    """Attention written by hand, whose keys and queries share their weights, and a layer that is called twice."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, 8), nn.LayerNorm(8)
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.key.weight = self.query.weight
        self.mix, self.drop, self.head = nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.words(x))
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 8**0.5
        x = x + self.drop(scores.softmax(2) @ self.value(x))
        return self.head(self.mix(self.mix(x).relu()).mean(1))


ENCODERS: dict[str, Callable[[], nn.Module]] = {"transformer": TextEncoder, "tied": TiedEncoder}


def count_task(name: str, seeds: tuple[int, int], edges: tuple[int, ...], sizes: tuple[int, int] = (80, 200)) -> Task:
    """Tokens `[N, L]`; the class is the number of small tokens, in ranges that begin at these edges."""
    sets = []
    for seed, size in zip(seeds, sizes, strict=True):
        x = torch.randint(1, WORDS, (size, LENGTH), generator=torch.Generator().manual_seed(seed))
        y = torch.bucketize((x <= WORDS // 2).sum(1), torch.tensor(edges), right=True)
        sets.append(Examples(Values(x), Values(y)))
    classes = tuple(str(number) for number in range(len(edges) + 1))
    return Task(name, *sets, likelihood="categorical", classes=classes, input_shape=(LENGTH,))


@pytest.fixture(scope="module")
def text() -> Task:
    """Whether more than half of seven words are small: half of the texts."""
    return count_task("text", (0, 1), (4,))


@pytest.fixture(scope="module")
def encoders() -> dict[str, nn.Module]:
    """Encoders trained to tell few small words from some and from many."""
    source, trained = count_task("source", (2, 3), (3, 5), (400, 100)), {}
    for name, kind in ENCODERS.items():
        torch.manual_seed(0)
        trained[name] = kind()
        assert fit(trained[name], source, Recipe(steps=300, learning_rate=0.01)).scores.metric > 0.85
    return trained


@pytest.fixture(params=ENCODERS)
def encoder(request: pytest.FixtureRequest, encoders: dict[str, nn.Module]) -> nn.Module:
    return copy.deepcopy(encoders[request.param])


def tokens(seed: int, count: int) -> Tensor:
    return count_task("some", (seed, 9), (4,), (count, 2)).train.all().x


def dense_kernel(flat: Linearized, x: Tensor) -> Tensor:
    """The mean over outputs of J Jᵀ, by autograd, one sample at a time."""
    model, rows = flat.model, []
    params = [dict(model.named_parameters())[name].requires_grad_(True) for name in flat.names]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for sample in x:
            outputs = model(sample[None])[0]
            gradients = [torch.autograd.grad(value, params, retain_graph=True, allow_unused=True) for value in outputs]
            full = [[torch.zeros_like(p) if g is None else g for g, p in zip(own, params, strict=True)]
                    for own in gradients]  # fmt: skip
            rows.append(torch.stack([torch.cat([g.flatten() for g in own]) for own in full]))
    j = torch.stack(rows).detach()
    return torch.einsum("ncp,mcp->nm", j, j) / j.shape[1]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("weights", [*SUBSETS, ["lora?r=3&alpha=1.5", "norm"], ".*bias"])
def test_kernels_of_text_encoders_equal_dense_jacobians(encoder: nn.Module, weights: str | list[str]) -> None:
    x = tokens(2, 7)
    flat = linearize(encoder, weights, x=x[:1])
    assert torch.allclose(flat.kernel(x), dense_kernel(flat, x), rtol=1e-8, atol=1e-10)
    with torch.no_grad():
        assert torch.allclose(flat.mean(x), copy.deepcopy(encoder).double().eval()(x))


class NamedInputs(nn.Module):
    """A network with named inputs, packed as `[N, 2 L]`: tokens, and a mask of the words that count."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        ids, mask = x.chunk(2, 1)
        outputs = self.network(input_ids=ids, attention_mask=mask)
        return outputs if isinstance(outputs, Tensor) else outputs.logits


class MaskedEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, 8), nn.LayerNorm(8)
        self.mix, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, *, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.mix(self.norm(self.words(input_ids))).tanh() * attention_mask[:, :, None]
        return self.head(hidden.sum(1) / attention_mask.sum(1, keepdim=True))


def bert() -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    options = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=LENGTH, num_labels=3,
    )  # fmt: skip
    network: nn.Module = transformers.BertForSequenceClassification(options)
    return network


@pytest.mark.thinned(3)
@pytest.mark.parametrize("make", [MaskedEncoder, bert])
@pytest.mark.parametrize("weights", SUBSETS)
def test_kernels_of_networks_with_named_inputs(make: Callable[[], nn.Module], weights: str) -> None:
    torch.manual_seed(0)
    net, ids = NamedInputs(make()).eval(), tokens(2, 5)
    mask = (torch.arange(LENGTH) < torch.tensor([3, 7, 5, 2, 6])[:, None]).long()
    x = torch.cat([ids * mask, mask], 1)
    flat = linearize(net, weights, x=x[:1])
    assert torch.allclose(flat.kernel(x), dense_kernel(flat, x), rtol=1e-8, atol=1e-10)
    labels = torch.arange(5) % 2
    few = Task("named", Examples(Values(x), Values(labels)), Examples(Values(x), Values(labels)),
               likelihood="categorical", classes=("a", "b"), input_shape=(2 * LENGTH,))  # fmt: skip
    assert finish(fine_tuned(net, few, 3, 0, weights)).nll > 0


def test_linearized_lora_moves_b_only_and_a_does_not_matter(encoder: nn.Module) -> None:
    """A new adapter has B = 0, so the derivative by A is zero."""
    x = tokens(2, 5)
    flat = linearize(encoder, "lora?r=2", x=x)
    assert not any("down" in name for name in flat.names)
    assert any(name.endswith("up.weight") for name in flat.names)
    downs = [name for name, _ in flat.model.named_parameters() if name.endswith("down.weight")]
    assert downs
    assert float(flat.kernel(x, names=downs).abs().max()) == 0.0


def test_full_rank_is_the_kernel_of_the_weights_themselves() -> None:
    net, x = build("lenet?width=0.5", (1, 12, 12), 3, seed=0), torch.rand(5, 1, 12, 12)
    layers = [name for name, module in net.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    names = [f"{name}.weight" for name in layers] + [f"{layers[-1]}.bias"]
    assert torch.allclose(
        linearize(net, "lora?r=100000", x=x).kernel(x), linearize(net, names, x=x).kernel(x), rtol=1e-8
    )


def test_a_linearized_network_predicts_what_small_steps_do(encoder: nn.Module) -> None:
    x = tokens(2, 4)
    flat = linearize(encoder, "lora?r=2", x=x)
    step = {name: 1e-5 * torch.randn_like(value) for name, value in flat.params.items()}
    moved = copy.deepcopy(flat.model)
    with torch.no_grad():
        for name, value in moved.named_parameters():
            value.add_(step.get(name, 0.0))
    assert torch.allclose(flat.at(step, x) - flat.mean(x), moved(x) - flat.mean(x), atol=1e-8)
    assert not torch.allclose(moved(x), flat.mean(x), atol=1e-7)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("weights", SUBSETS)
def test_both_ways_learn_text_and_leave_the_source_as_it_was(encoder: nn.Module, text: Task, weights: str) -> None:
    before = view(encoder)
    solved = finish(closed_form(encoder, text, weights=weights))
    trained = finish(fine_tuned(encoder, text, 300, 0, weights))
    for scores in (solved, trained):
        assert scores.metric > 0.8, scores.name
    after = view(encoder)
    assert all(torch.equal(value, after.params[name]) for name, value in before.params.items())
    assert all(torch.equal(value, after.buffers[name]) for name, value in before.buffers.items())


@pytest.mark.thinned(2)
@pytest.mark.parametrize("weights", ["lora?r=2", "all"])
def test_estimators_read_tokens(encoder: nn.Module, text: Task, weights: str) -> None:
    x, y, new, truth = (values.numpy() for part in (text.train, text.test) for values in part.all())
    found = nk.LinearizedClassifier(encoder, weights=weights).fit(x, y)
    assert found.score(new, truth) > 0.8
    regressor = nk.LinearizedRegressor(encoder, weights=weights).fit(x, y.astype(float))
    assert np.mean((regressor.predict(new) > 0.5) == truth) > 0.8
    assert found.partial_fit(new[:5], truth[:5]).classified_.num_points == 85


def test_all_weights_is_fine_tuning_of_all(encoder: nn.Module, text: Task) -> None:
    one, other = finish(all_weights(encoder, text, 5, 1)), finish(fine_tuned(encoder, text, 5, 1, "all"))
    assert (one.name, one.nll) == (other.name, other.nll) == ("all weights", one.nll)


@pytest.mark.parametrize("weights", ["norm", "lora?r=2"])
def test_fine_tuning_is_a_new_head_and_a_fit_of_the_subset(encoder: nn.Module, text: Task, weights: str) -> None:
    x = text.train.first(SCALE_SAMPLES).x
    network = with_start(encoder, 2, derived_seed(3, ALL_WEIGHTS), x, START)
    done = fit(network, text, Recipe(steps=20), seed=3, weights=weights)
    found = finish(fine_tuned(encoder, text, 20, 3, weights))
    assert found.metric == done.scores.metric
    assert found.nll == pytest.approx(done.scores.loss, rel=1e-4)
    assert found.nll != pytest.approx(finish(all_weights(encoder, text, 20, 3)).nll, rel=1e-3)


def test_fine_tuning_of_the_head_is_the_same_on_fixed_features(text: Task) -> None:
    """Without dropout a frozen encoder gives the same features in every step."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(WORDS, 4), nn.Flatten(), nn.BatchNorm1d(28), nn.Tanh(), nn.Linear(28, 2))
    for _ in range(3):
        net(text.train.first(40).x)
    head = copy.deepcopy(net[4])
    features = [net[:4].eval()(part.all().x).detach() for part in (text.train, text.test)]
    shown = Task.from_arrays("features", features[0], text.train.all().y, features[1], text.test.all().y,
                             standardise=False)  # fmt: skip
    fit(net, text, Recipe(steps=20), weights="head")
    fit(head, shown, Recipe(steps=20))
    assert torch.allclose(net[4].weight, head.weight, atol=1e-5)


def test_a_subset_is_one_more_baseline(text: Task, encoder: nn.Module) -> None:
    names = [scores.name for scores in finish(run_baselines(encoder, text, 5, weights="lora?r=2"))]
    assert names == ["linear head", "last layer", "Bayesian last layer", "all weights", "fine-tuned lora?r=2"]
    both = finish(run_baselines(encoder, text, 5, weights=["head", "layer"] if hasattr(encoder, "layer") else "norm"))
    assert both[-1].name in ("fine-tuned head + layer", "fine-tuned norm")


def test_merged_adapters_keep_predictions_of_text(encoder: nn.Module) -> None:
    x = tokens(3, 9)
    adapted = with_lora(encoder.double().eval(), skip=["head"])
    for name, value in adapted.named_parameters():
        if name.endswith("up.weight"):
            value.data.normal_(generator=torch.Generator().manual_seed(0))
    merged = merge_lora(adapted)
    assert torch.allclose(merged(x), adapted(x))
    assert not torch.allclose(merged(x), encoder(x))
    assert merged.state_dict().keys() == encoder.state_dict().keys()


@pytest.mark.parametrize(("weights", "count"), [("head", 1), ("all", MOST_OUTPUTS)])
def test_a_source_of_many_outputs_is_linearized_with_few(text: Task, weights: str, count: int) -> None:
    torch.manual_seed(0)
    x, many = text.train.all().x, TextEncoder(100).eval()
    assert transfer_source(many, x, 100, weights) is many
    few = transfer_source(many, x, 3, weights).eval()
    assert few(x[:1]).shape == (1, count)
    if weights == "head":
        wanted, kernel = linearize(many, weights, x=x).kernel(x[:6]), linearize(few, weights, x=x).kernel(x[:6])
        assert torch.allclose(kernel, wanted)
    assert transfer_source(TextEncoder(4).eval(), x, 3, weights)(x[:1]).shape == (1, 4)


def test_a_head_of_zeros_does_not_hide_the_other_weights(text: Task) -> None:
    x, model = text.train.all().x, TextEncoder(1).eval()
    for value in model.head.parameters():
        nn.init.zeros_(value)
    source = transfer_source(model, x, 3)
    kernels = linearize(source).layer_kernels(x[:6])
    assert all(bool(kernel.any()) for layer, kernel in kernels.items() if layer != "layer.self_attn")
    assert not bool(model.head.weight.any())


def test_a_zoo_transfers_over_a_subset(tmp_path: Path) -> None:
    low, high = (task(f"digits?classes={names}&rest=drop", name=names) for names in ("0,1,2,3,4", "5,6,7,8,9"))
    with Zoo(tmp_path / "zoo") as zoo:
        zoo.add(replace(low, name="low"), "lenet", trials=1, recipe=Recipe(steps=150))
        found = zoo.transfer("low", high, 10, weights="lora?r=4", samples=300, steps=100)
    told = json.loads(json.dumps(found.to_dict()))
    assert told["made"]["weights"] == "lora?r=4"
    assert found.baselines[-1].name == "fine-tuned lora?r=4"
    assert found.metric > 0.8
    assert found.baselines[-1].metric > 0.7
    with pytest.raises(OptionError, match="no option 'rank'"):
        TransferOptions(weights="lora?rank=4")


def test_more_free_weights_help_on_new_digits() -> None:
    """Adapters are better than the head alone, over three draws of labels."""
    low, high = (task(f"digits?classes={names}&rest=drop") for names in ("0,1,2,3,4", "5,6,7,8,9"))
    source = build("lenet", low.input_shape, 5, seed=0)
    fit(source, low, Recipe(steps=250))
    accuracy = {
        weights: fmean(finish(closed_form(source, with_shots(high, 10, s), weights=weights)).metric for s in range(3))
        for weights in ("head", "lora?r=4")
    }
    assert accuracy["lora?r=4"] > accuracy["head"] + 0.02
