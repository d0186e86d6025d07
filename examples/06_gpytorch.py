"""A GPyTorch model with the tangent kernel of a trained network: needs the extra `gpytorch`.

python examples/06_gpytorch.py
"""

import gpytorch
import torch
from torch import Tensor, nn

import nearkin as nk
from nearkin.tasks.papers.sinusoids import sinusoid_tasks


class Curve(gpytorch.models.ExactGP):
    """A curve as a Gaussian process: what the network's weights can express, plus a smooth rest."""

    def __init__(self, x: Tensor, y: Tensor, network: nn.Module) -> None:
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        tangent, smooth = nk.transfer.TangentKernel(nk.transfer.linearize(network)), gpytorch.kernels.RBFKernel()
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(tangent) + gpytorch.kernels.ScaleKernel(smooth)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        """The prior at inputs `[N, 1]`."""
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


def learn(model: Curve, x: Tensor, y: Tensor, steps: int = 60) -> None:
    """Scales, noise and mean by the marginal likelihood, as for any GPyTorch model."""
    model.train()
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -evidence(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    source, *targets = sinusoid_tasks(4, seed=1)
    net = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
    nk.fit(net, source, nk.Recipe.suited(source, epochs=300))
    for task in targets:
        (x, y), (x_test, y_test) = task.train.all(), task.test.all()
        model = Curve(x, y[:, 0], net)
        learn(model, x, y[:, 0])
        with torch.no_grad():
            prediction = model.likelihood(model(x_test))
        error = (y_test[:, 0] - prediction.mean).square().mean().sqrt() / y_test.std()
        low, high = prediction.confidence_region()  # two deviations to both sides
        inside = ((low <= y_test[:, 0]) & (y_test[:, 0] <= high)).double().mean()
        print(f"{task.name}: error {error:.2f} of the curve's deviation, {inside:.0%} of points in the 95 % interval")
