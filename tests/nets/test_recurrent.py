import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jvp, vmap

from nearkin.core.errors import OptionError
from nearkin.core.rng import seeded
from nearkin.nets.functional import num_parameters, view
from nearkin.nets.recurrent import Recurrence, RecurrentLanguageModel

ORACLES = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


@pytest.mark.parametrize("cell", ORACLES)
def test_a_layer_is_torchs_own(cell: str) -> None:
    with seeded(0):
        layer, oracle, x = Recurrence(5, 4, cell), ORACLES[cell](5, 4, batch_first=True), torch.randn(3, 6, 5)
    with torch.no_grad():
        oracle.weight_ih_l0.copy_(layer.input.weight)
        oracle.bias_ih_l0.copy_(layer.input.bias)
        oracle.weight_hh_l0.copy_(layer.recur.weight)
        oracle.bias_hh_l0.zero_()
        assert torch.allclose(layer(x), oracle(x)[0], atol=1e-6)


@pytest.mark.parametrize("cell", ORACLES)
def test_a_prediction_sees_no_later_token(cell: str) -> None:
    model = RecurrentLanguageModel(11, embedding=6, hidden=5, layers=2, cell=cell)
    tokens = torch.randint(11, (2, 7))
    changed = tokens.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % 11
    before, after = model(tokens), model(changed)
    assert before.shape == (2, 7, 11)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("cell", ORACLES)
def test_per_sample_gradients_by_vmap_are_those_of_single_samples(cell: str) -> None:
    model = RecurrentLanguageModel(7, embedding=4, hidden=4, tied=True, cell=cell)
    v, tokens = view(model), torch.randint(7, (3, 5))

    def loss(params: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        return v.f(params, v.buffers, row[None]).log_softmax(-1)[..., 0].sum()

    together = vmap(grad(loss), in_dims=(None, 0))(v.params, tokens)
    for number, row in enumerate(tokens):
        alone = grad(loss)(v.params, row)
        assert all(torch.allclose(together[name][number], alone[name], atol=1e-5) for name in alone)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, at its first forward derivative
def test_forward_derivative_is_the_finite_difference() -> None:
    model = RecurrentLanguageModel(7, embedding=4, hidden=4).double()
    params, tokens = view(model).params, torch.randint(7, (2, 3))
    direction = {name: torch.randn_like(value) for name, value in params.items()}

    def f(params: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional_call(model, params, (tokens,))

    _, slope = jvp(f, (params,), (direction,))
    step = 1e-6
    ahead, behind = (f({n: params[n] + s * direction[n] for n in params}) for s in (step, -step))
    assert torch.allclose(slope, (ahead - behind) / (2 * step), atol=1e-7)


def test_a_tied_head_is_the_embedding() -> None:
    tied = RecurrentLanguageModel(30, embedding=8, hidden=8, tied=True)
    free = RecurrentLanguageModel(30, embedding=8, hidden=8)
    assert tied.head.weight is tied.embedding.weight
    assert num_parameters(free) - num_parameters(tied) == 30 * 8


def test_dropout_acts_in_training_alone() -> None:
    model = RecurrentLanguageModel(9, embedding=16, hidden=16, dropout=0.5)
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_learns_a_cycle_of_words() -> None:
    tokens = (torch.arange(12)[None] + torch.arange(5)[:, None]) % 5
    with seeded(0):
        model = RecurrentLanguageModel(5, embedding=16, hidden=16)
        optimiser = torch.optim.Adam(model.parameters(), 0.02)
        for _ in range(60):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
            optimiser.step()
    assert (model(tokens[:, :-1]).argmax(-1) == tokens[:, 1:]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": "elman"}, "choose one of lstm, gru, rnn"),
        ({"tied": True, "hidden": 100}, "embedding = hidden"),
        ({"layers": 0}, "1 to 1000 layers"),
        ({"dropout": 1.0}, "fraction in"),
        ({"hidden": 0}, "sizes are >= 1"),
    ],
)
def test_options_are_checked_at_birth(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        RecurrentLanguageModel(10, **options)
