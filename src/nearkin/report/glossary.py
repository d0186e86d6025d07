"""Glossary: every term that the pages use, in one or two plain sentences."""

from collections.abc import Iterable

TERMS = {
    "95 % interval": "The range in which the true value lies with 95 % certainty. It is narrow where many samples were "
    "measured.",
    "Accuracy": "The share of samples that a model classifies correctly.",
    "Aggregate": "How the Fréchet distances of single layers or weights become one number.",
    "Architecture": "How a neural network is built: which operations it has and how they are connected.",
    "Calibration": "How well a model’s probabilities agree with reality: of all answers given with 80 % probability, "
    "80 % should be right. The calibration error is the mean difference.",
    "Cell": "A small building block of a neural network, which the network repeats several times. A search looks for a "
    "good cell.",
    "Closed-form transfer": "The network of a related task answers for the new task without training in steps: the "
    "change of its weights is computed from the labels by a formula.",
    "Contender": "One model that was trained for the task, to be compared with the others.",
    "Distance": "A number that says how different two tasks are by some measure; smaller is nearer. It has a "
    "direction: from the task that is already solved (the source) to the task to be solved (the target).",
    "Final training": "After the choice, the chosen model is trained once more with the validation samples added to "
    "its training samples.",
    "Fine-tuning": "Training a network further that was already trained on another task.",
    "Fisher information": "How strongly a network’s answers depend on each of its weights. It describes what the "
    "network has learned.",
    "Fréchet distance": "A distance between two tasks: how much the Fisher information of a network trained on one "
    "differs from that of a network trained on the other, from 0 (equal) to 1.",
    "Genotype": "A cell or an architecture written as text.",
    "Kin": "A related task: a task of the zoo that is near to the task to be solved.",
    "Likelihood": "The form of the answers: categorical for classes, gaussian for values.",
    "Loss": "The number that training makes smaller: how far the answers are from the truth.",
    "Majority class": "The class that occurs most often. A model that always answers it is the simplest baseline; for "
    "values, the baseline always answers the mean.",
    "Measure": "A method to compute distances between tasks, such as the Fréchet distance.",
    "Metric": "How results are scored: accuracy for classes, R² for values.",
    "Multiply-adds": "Multiplications with an addition that a model computes for one input: its cost in use.",
    "Network": "A neural network: a model made of layers with weights, which are learned.",
    "nll": "Negative log likelihood: the mean loss of the probabilities that a model gives to the true answers. Small "
    "is good.",
    "ε": "How far a network falls short of a perfect score: 1 minus its test score.",
    "ece": "Expected calibration error, see calibration. Small is good.",
    "Parameters": "Numbers that a model learns, also called weights. More parameters mean a larger model.",
    "R²": "The share of the variation of the values that a model explains: 1 is perfect, 0 is as good as always "
    "answering the mean.",
    "Runner-up": "The contender with the second best score on the validation set.",
    "Search": "Training many candidate cells for a short time each, and keeping the best. A random search draws them "
    "without learning from earlier ones.",
    "Search space": "All cells that a search may try. The space of a related task is the small part around its best "
    "cells.",
    "Seed": "The number from which all random numbers are drawn. The same seed gives the same random numbers.",
    "Simple model": "Logistic regression, a support vector machine or gradient boosting: models without a neural "
    "network.",
    "Source": "A task that is already solved, from which something may be reused.",
    "Step": "One update of a network’s weights from a batch of training samples.",
    "Stress": "How much the distances on a flat map differ from the measured ones; 0 means that the map is exact.",
    "Target": "The task to be solved.",
    "Task": "A data set together with the question to be answered for each of its samples.",
    "Temperature": "A number by which class scores are divided before they become probabilities, learned on the "
    "validation set.",
    "Test set": "Samples that no model learned from and that were not used for the choice. They show how a model does "
    "on new data.",
    "Training set": "The samples that models learn from.",
    "Trial": "One training from its own random start. Several trials show how much a result varies by chance.",
    "Validation set": "A part of the training data that no contender learned from. The contender that scores best on "
    "it is chosen.",
    "Zoo": "The folder in which nearkin keeps solved tasks: their networks, distances and cells.",
}
"""Definition of each term."""

SOLUTION = (
    "95 % interval", "Accuracy", "Architecture", "Calibration", "Cell", "Closed-form transfer", "Contender", "Distance",
    "Final training", "Fine-tuning", "Fisher information", "Fréchet distance", "Genotype", "Kin", "Loss",
    "Majority class", "Measure", "Multiply-adds", "Network", "Parameters", "R²", "Runner-up", "Search", "Search space",
    "Seed", "Simple model", "Step", "Target", "Task", "Temperature", "Test set", "Training set", "Trial",
    "Validation set", "Zoo",
)  # fmt: skip
MAP = ("Distance", "Fisher information", "Fréchet distance", "Kin", "Measure", "Source", "Stress", "Target", "Task",
       "Trial", "Zoo")  # fmt: skip
TRANSFER = (
    "95 % interval", "Accuracy", "Calibration", "Closed-form transfer", "ece", "Fine-tuning", "Majority class", "nll",
    "Parameters", "R²", "Source", "Step", "Target", "Temperature", "Test set", "Training set", "Trial", "Zoo",
)  # fmt: skip
LIST = ("Accuracy", "Cell", "Kin", "Metric", "Network", "Parameters", "R²", "Task", "Test set", "Trial", "Zoo")
TASK = (
    "Accuracy", "Cell", "Distance", "Fisher information", "Fréchet distance", "Genotype", "Kin", "Likelihood", "Loss",
    "Majority class", "Measure", "Metric", "Network", "Parameters", "R²", "Search", "Search space", "Seed", "Source",
    "Step", "Task", "Test set", "Trial", "Zoo", "ε",
)  # fmt: skip
"""Terms of each page."""


def glossary(terms: Iterable[str]) -> list[tuple[str, str, str]]:
    """Id, term and definition of each term, in alphabetical order.

    >>> [(anchor, term) for anchor, term, _ in glossary(["Test set", "95 % interval"])]
    [('term-95-interval', '95 % interval'), ('term-test-set', 'Test set')]
    """
    rows = sorted(terms, key=str.casefold)
    return [(f"term-{'-'.join(term.lower().replace('%', '').split())}", term, TERMS[term]) for term in rows]
