"""Help that comes from the registries."""

from calling import Call
from nearkin.distance.questions import DEFAULT_QUESTION, QUESTIONS
from nearkin.distance.registry import MEASURES
from nearkin.search.registry import METHODS


def test_help_of_near_lists_every_measure_and_its_options(call: Call) -> None:
    said = call("near", "--help")
    assert said.code == 0
    lines = said.out.splitlines()
    for name, measure in MEASURES.items():
        assert any(line.startswith(f"{name} ") and measure.summary in line for line in lines), name
        assert all(any(line.startswith(f"{option.name} ") for line in lines) for option in measure.options)
        assert (f"option of {name} " in said.out) == bool(measure.options)
    for name, question in QUESTIONS.items():
        line = next(line for line in lines if line.startswith(f"{name} ") and question.summary in line)
        assert ("(default)" in line) == (name == DEFAULT_QUESTION)
        assert all(measure in line for measure in question.measures)


def test_help_of_search_lists_every_method_and_its_options(call: Call) -> None:
    said = call("search", "--help")
    assert said.code == 0
    for name, method in METHODS.items():
        assert any(line.startswith(f"{name} ") for line in said.out.splitlines()), name
        table = said.out.partition(f"option of {name} ")[2].partition("option of ")[0]
        assert all(f"\n{option.name} " in table for option in method.options), name


def test_options_of_a_measure_are_refused_in_one_line(call: Call) -> None:
    for words in (("add", "a", "digits?detect=0&limit=40"), ("add", "b", "digits?detect=6&limit=40")):
        assert call("-q", *words, "--network", "mlp?hidden=4", "--trials", "1", "--epochs", "1").code == 0
    for words, wanted in (
        (
            ("--option", "steps=two"),
            "option steps of the measure short-finetune is 'two', expected a whole number; its default is 16",
        ),
        (
            ("--reading", "model"),
            "the measure short-finetune has no option reading; its options are batch_size, head, learning_rate",
        ),
        (("--screen", "1"), "the measure short-finetune cannot screen tasks"),
        (("--option", "steps"), "got --option 'steps', expected name=value"),
    ):
        said = call("near", "a", "--measure", "short-finetune", *words)
        assert said.code == 1
        assert said.err.startswith(f"error: {wanted}"), said.err
    assert call("-q", "near", "a", "--measure", "short-finetune", "--option", "steps=2").code == 0
    for words, wanted in (
        (("--option", "steps=2"), "options of a measure need --measure, got none; the question 'final' has its own"),
        (("--for", "speed", "--measure", "logme"), "got --for speed and --measure logme, expected one of them"),
        (("--for", "cost"), "unknown question 'cost'; choose one of final, speed"),
    ):
        said = call("near", "a", *words)
        assert said.code == 1
        assert said.err.startswith(f"error: {wanted}"), said.err


def test_near_answers_a_question(call: Call) -> None:
    """With one measure the ranking is that of the measure; with several, ranks are combined and the values shown."""
    for name in ("0", "6", "3"):
        words = ("-q", "add", name, f"digits?detect={name}&limit=40", "--network", "mlp?hidden=4", "--trials", "1")
        assert call(*words, "--epochs", "1").code == 0
    said = call("near", "0", "--json").json
    assert said["measure"] == "final"
    assert {kin["name"] for kin in said["kin"]} == {"6", "3"}
    assert all(set(kin["beside"]) == set(QUESTIONS["final"].measures) for kin in said["kin"])
    assert "final: mean rank by" in call("near", "0", "--for", "final").out
    speed = call("near", "0", "--for", "speed", "--json").json
    (measure,) = QUESTIONS["speed"].measures
    assert speed["measure"] == measure
    assert speed["kin"] == call("near", "0", "--measure", measure, "--json").json["kin"]
