import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from nearkin.core.errors import MismatchError
from nearkin.core.rng import seeded
from nearkin.nets.autoencoder import Autoencoder
from nearkin.tasks.likelihood import Dense


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(4, 90), st.integers(4, 90), st.integers(1, 4))
def test_output_has_the_inputs_sides(channels: int, height: int, width: int, outputs: int) -> None:
    model = Autoencoder((channels, height, width), outputs, width=1 / 16)
    assert model(torch.zeros(2, channels, height, width)).shape == (2, outputs, height, width)


def test_on_large_images_the_encoder_is_the_printed_one() -> None:
    with torch.device("meta"):
        model = Autoencoder((3, 512, 512), 3)
    shapes = [tuple(weight.shape) for name, weight in model.encoder.named_parameters() if name.endswith("weight")]
    assert shapes == [(16, 3, 5, 5), (512, 262144), (128, 512)]
    convolution = model.encoder[0]
    assert (convolution.stride, convolution.padding, convolution.dilation) == ((4, 4), (2, 2), (1, 1))


def test_only_the_output_layer_knows_the_number_of_outputs() -> None:
    drawn = []
    for outputs in (1, 3):
        with seeded(5):
            drawn.append(dict(Autoencoder((1, 8, 8), outputs, width=0.25).named_parameters()))
    for name, weight in drawn[0].items():
        assert name.startswith("output.") or torch.equal(weight, drawn[1][name])


def test_reconstructs_digits() -> None:
    x = torch.tensor(load_digits().images, dtype=torch.float32)[:, None]
    x = (x - x.mean()) / x.std()
    train, test = x[:1400], x[1400:]
    with seeded(0):
        model = Autoencoder((1, 8, 8), 1)
        optimiser = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(2):
            for batch in torch.randperm(len(train)).split(64):
                optimiser.zero_grad()
                F.mse_loss(model(train[batch]), train[batch]).backward()
                optimiser.step()
    like = Dense()
    assert like.score(like.tally(model(test), test)) > 0.7


def test_tables_are_refused() -> None:
    with pytest.raises(MismatchError, match="autoencoder reads images"):
        Autoencoder((13,), 1)
