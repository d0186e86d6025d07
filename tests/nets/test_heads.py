import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, OptionError
from nearkin.fisher.tangent import tangent_kernel
from nearkin.nets.functional import blank, view
from nearkin.nets.heads import (
    HEAD_START,
    HEAD_STARTS,
    features,
    head_name,
    padded_head,
    split,
    with_fewer_outputs,
    with_head,
    with_start,
)
from nearkin.nets.recurrent import RecurrentLanguageModel
from nearkin.nets.registry import NETWORKS, build

HEADED = {
    "mlp": ("mlp?hidden=8", (6,)),
    "recurrent": ("recurrent?embedding=6&hidden=6&tied=true", (5,)),
    **{n: (f"{n}?width=0.0625", (1, 8, 8)) for n in ("densenet121", "lenet", "resnet18", "vgg16")},
}


class Nested(nn.Module):
    """A head in the manner of `classifier.6`, registered before the trunk, with a linear layer off to the side."""

    def __init__(self, log_softmax: bool = False) -> None:
        super().__init__()
        self.classifier = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 3, bias=False))
        self.trunk = nn.Sequential(nn.Linear(5, 4), nn.Tanh())
        self.unused = nn.Linear(4, 3)
        self.log_softmax = log_softmax

    def forward(self, x: Tensor) -> Tensor:
        logits = self.classifier(self.trunk(x))
        return F.log_softmax(logits, -1) if self.log_softmax else logits


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("name", HEADED)
def test_the_houses_networks_call_it_head(name: str) -> None:
    spec, shape = HEADED[name]
    model = build(spec, shape, 4, seed=0)
    assert head_name(model, blank(model, shape)) == "head"
    assert hooks(model) == 0
    assert model.training


@pytest.mark.parametrize("log_softmax", [False, True])
def test_a_nested_head_is_found_wherever_it_is_registered(log_softmax: bool) -> None:
    assert head_name(Nested(log_softmax), torch.randn(2, 5)) == "classifier.3"


def test_a_linear_layer_is_its_own_head() -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    assert head_name(model, x) == ""
    encoder, head = split(view(model).params, "")
    assert (encoder, set(head)) == ({}, {"weight", "bias"})
    assert torch.equal(features(model, x, ""), x)
    assert with_head(model, 5, seed=0)(x).shape == (4, 5)


def test_a_network_without_a_head_says_so() -> None:
    with pytest.raises(MismatchError, match="no final linear layer"):
        head_name(NETWORKS["autoencoder"]((1, 8, 8), 3, width=0.1), torch.zeros(2, 1, 8, 8))
    with pytest.raises(MismatchError, match="no linear layer"):
        with_head(nn.Conv2d(1, 1, 3), 2, seed=0)


@pytest.mark.parametrize("name", HEADED)
def test_the_head_on_the_features_is_the_network(name: str) -> None:
    spec, shape = HEADED[name]
    model = build(spec, shape, 4, seed=0).eval()
    x = blank(model, shape, 3)
    found = features(model, x, "head")
    assert found.dim() == 2
    assert torch.allclose(model.head(found).view(model(x).shape), model(x), atol=1e-6)
    assert hooks(model) == 0


def test_features_carry_gradients_and_leave_no_hook_after_an_error() -> None:
    model = Nested().eval()
    features(model, torch.randn(2, 5), "classifier.3").sum().backward()
    assert model.trunk[0].weight.grad is not None
    with pytest.raises(RuntimeError):
        features(model, torch.randn(2, 7), "classifier.3")
    with pytest.raises(MismatchError, match="ran 0 times"):
        features(model, torch.randn(2, 5), "unused")
    with pytest.raises(MismatchError, match="no linear layer 'nowhere'"):
        features(model, torch.randn(2, 5), "nowhere")
    assert hooks(model) == 0


def test_split_parts_join_to_the_whole() -> None:
    params = view(Nested()).params
    encoder, head = split(params, "classifier.3")
    assert set(head) == {"classifier.3.weight"}
    assert not set(encoder) & set(head)
    assert {**encoder, **head} == params


def test_a_name_that_begins_alike_is_not_the_head() -> None:
    encoder, head = split({"head.weight": torch.ones(1), "header.weight": torch.ones(1)}, "head")
    assert (list(encoder), list(head)) == (["header.weight"], ["head.weight"])


@pytest.mark.parametrize("outputs", [1, 3, 9])
def test_surgery_leaves_the_encoder_and_the_original_untouched(outputs: int) -> None:
    model, x = Nested().double().eval(), torch.randn(2, 5, dtype=torch.float64)
    before, answers = view(model).params, model(x)
    made = with_head(model, outputs, seed=3, head="classifier.3")
    assert made(x).shape == (2, outputs)
    assert made.classifier[3].bias is None
    assert not made.classifier[3].training
    encoder, _ = split(view(made).params, "classifier.3")
    assert all(torch.equal(value, before[name]) for name, value in encoder.items())
    with torch.no_grad():
        made.trunk[0].weight.zero_()
    assert torch.equal(model(x), answers)


def test_a_head_depends_on_its_seed_alone() -> None:
    model = NETWORKS["lenet"]((1, 8, 8), 10, width=0.5)
    state = torch.get_rng_state()
    one, same, other = (with_head(model, 4, seed=seed, head="head") for seed in (1, 1, 2))
    assert torch.equal(one.head.weight, same.head.weight)
    assert not torch.equal(one.head.weight, other.head.weight)
    assert torch.equal(torch.get_rng_state(), state)


def test_without_a_name_the_last_registered_layer_is_replaced() -> None:
    made = with_head(NETWORKS["mlp"]((4,), 3, hidden=(8,)), 6, seed=0)
    assert made.head.out_features == 6


def test_surgery_unties_a_tied_head() -> None:
    model = RecurrentLanguageModel(10, embedding=4, hidden=4, tied=True)
    made = with_head(model, 6, seed=0, head="head")
    assert made(torch.zeros(2, 3, dtype=torch.int64)).shape == (2, 3, 6)
    assert torch.equal(made.embedding.weight, model.embedding.weight)
    assert model.head.weight is model.embedding.weight


def test_a_head_has_outputs() -> None:
    with pytest.raises(OptionError, match="one output or more"):
        with_head(nn.Linear(2, 2), 0, seed=0)


def test_the_three_starts_share_their_draw() -> None:
    model, x = Nested().eval(), torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    starts = {start: with_start(model, 4, 1, x, start).classifier[3].weight for start in HEAD_STARTS}
    size = features(model, x, "classifier.3").square().mean().sqrt()
    assert not starts["zero"].any()
    assert torch.equal(starts["drawn"], with_head(model, 4, 1, "classifier.3").classifier[3].weight)
    assert torch.allclose(starts["scaled"] * size, starts["drawn"])
    assert torch.equal(with_start(model, 4, 1, x).classifier[3].weight, starts[HEAD_START])


def test_the_bias_of_a_zero_start_is_zero_and_outputs_of_a_scaled_one_do_not_grow_with_the_features() -> None:
    x = torch.rand(50, 3, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    assert not with_start(model, 4, 0, x, "zero")(x).any()
    before = with_start(model, 4, 0, x, "scaled")(x)
    with torch.no_grad():
        for value in model[0].parameters():
            value.mul_(1000)
    assert torch.allclose(with_start(model, 4, 0, x, "scaled")(x), before, atol=1e-5)


def test_a_start_leaves_statistics_modes_and_the_network_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    made = with_start(model, 4, 0, torch.randn(20, 3), "scaled")
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(made[1].running_mean, model[1].running_mean)
    assert made.training
    assert made[2].weight.requires_grad
    with pytest.raises(OptionError, match="a head's start must be one of zero, drawn, scaled, got 'ones'"):
        with_start(model, 4, 0, torch.randn(20, 3), "ones")  # type: ignore[arg-type]


def test_fewer_outputs_have_the_same_mean_kernel() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 40)).double(), torch.randn(7, 5).double()
    wanted = tangent_kernel(model, x, outputs="sum") / 40

    def kernel(count: int, seed: int) -> torch.Tensor:
        return tangent_kernel(with_fewer_outputs(model, count, seed, "2"), x, outputs="sum") / count

    assert torch.allclose(kernel(40, 0), wanted)  # a rotation
    mean = torch.stack([kernel(4, seed) for seed in range(300)]).mean(0)
    assert (mean - wanted).abs().max() < 0.05 * wanted.abs().max()
    single = tangent_kernel(with_fewer_outputs(model, 1, 0, "2"), x, outputs="sum", params=["2.weight", "2.bias"])
    assert torch.allclose(single, tangent_kernel(model, x, outputs="sum", params=["2.weight", "2.bias"]) / 40)


def test_a_padded_head_answers_as_before_and_zero_beyond() -> None:
    model = NETWORKS["lenet"]((1, 8, 8), 3, width=0.5)
    wide = with_head(model, 7, seed=0, head="head")
    x, v = torch.randn(4, 1, 8, 8), view(wide)
    padded = padded_head(view(model).params, "head", 7)
    answers = v.f(padded, v.buffers, x)
    assert torch.allclose(answers[:, :3], model(x), atol=1e-6)
    assert (answers[:, 3:] == 0).all()
    assert list(padded) == list(view(model).params)


def test_padding_to_the_same_width_changes_nothing_and_to_less_is_refused() -> None:
    params = view(nn.Sequential(nn.Linear(2, 3))).params
    assert all(torch.equal(value, params[name]) for name, value in padded_head(params, "0", 3).items())
    with pytest.raises(MismatchError, match=r"0\.weight has 3 rows, more than 2"):
        padded_head(params, "0", 2)
    with pytest.raises(MismatchError, match="no weight of a head 'head'"):
        padded_head(params, "head", 5)
