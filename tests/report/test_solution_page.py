"""The report of a solution: one file that loads nothing, says the result first, and shows every degenerate case."""

import base64
import hashlib
import itertools
import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pytest

from nearkin.core.state import State
from nearkin.report.architecture import cell_drawings
from nearkin.report.curves import loss_curves, loss_picture
from nearkin.report.glossary import glossary
from nearkin.report.kinship import MAPPED, mapped, threshold_text
from nearkin.report.model_comparison import certainty_text, comparison_text, samples_text
from nearkin.report.solution_page import solution_page
from nearkin.solver.result import ordered
from nearkin.solver.solution import Solution
from report.solutions import CASES, CELL, HOSTILE, planted

SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Outline(HTMLParser):
    """Tags, attributes and texts of a page; checks that every element is closed in turn."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: list[str] = []
        self.text: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, key, value or "") for key, value in attrs]
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, key, value or "") for key, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data
        if not {"style", "script"} & set(self.open):
            self.text.append(data)

    def values(self, key: str) -> list[str]:
        return [value for _, name, value in self.attributes if name == key]

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


@cache
def page_of(case: str) -> str:
    return solution_page(CASES[case]())


@cache
def outline_of(case: str) -> Outline:
    return Outline(page_of(case))


def svgs(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("case", CASES)
def test_one_file_that_fetches_nothing(case: str) -> None:
    page, outline = page_of(case), outline_of(case)
    assert set(re.findall(r"https?://[^\"\s<]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert not {"link", "iframe", "object", "embed", "base", "form"} & set(outline.tags)
    assert not re.search(r"@import|url\(", page)
    assert not [key for _, key, _ in outline.attributes if key.startswith("on")]
    assert all(source.startswith("data:image/png;base64,") for source in outline.values("src"))
    own = outline.values("id")
    assert len(own) == len(set(own))
    assert all(link.startswith("#") and link[1:] in own for link in outline.values("href"))
    assert {name for value in outline.values("aria-labelledby") for name in value.split()} <= set(own)


@pytest.mark.parametrize("case", CASES)
def test_every_picture_is_well_formed_and_has_a_name(case: str) -> None:
    page = page_of(case)
    for root in svgs(page):
        alternative = {element.get("id"): element.text or "" for element in root if element.get("id")}
        assert root.get("role") == "img"
        assert all(alternative[name].strip() for name in root.attrib["aria-labelledby"].split())
        assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
            "svg", "title", "desc", "style", "path", "text", "rect", "circle", "polygon", "image",
        }  # fmt: skip
    images = re.findall(r"<img [^>]*>", page)
    assert all(re.search(r'alt="[^"]+"', image) for image in images)


@pytest.mark.parametrize("case", CASES)
def test_headings_landmarks_and_regions(case: str) -> None:
    outline = outline_of(case)
    levels = [int(tag[1]) for tag in outline.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert [outline.tags.count(tag) for tag in ("header", "main", "footer", "nav")] == [1, 1, 1, 1]
    assert outline.tags.count("section") == 9
    assert 'lang="en"' in page_of(case)
    scrolled = re.findall(r'<div class="scroll[^>]*>', page_of(case))
    assert all('tabindex="0"' in one and re.search('aria-label="[^"]+"', one) for one in scrolled)


@pytest.mark.parametrize("case", CASES)
def test_sizes(case: str) -> None:
    assert len(page_of(case).encode()) < (2_000_000 if case == "crowded" else 600_000)


@pytest.mark.parametrize("case", CASES)
def test_behind_every_chart_lies_its_table(case: str) -> None:
    """The table of the comparison comes before its picture, cells have their text; a table follows all others."""
    parts = page_of(case).split("</figure>")
    for part, rest in itertools.pairwise(parts):
        name = re.findall(r'aria-labelledby="([\w-]+)-title', part)[-1]
        if not name.startswith(("nk-comparison", "nk-cell")):
            assert rest.lstrip().startswith('<details class="behind">\n<summary>Table: ')
    assert page_of(case).index("Contenders, best on the validation set first") < page_of(case).index(
        "nk-comparison-title"
    )


@pytest.mark.parametrize("case", CASES)
def test_the_answer_comes_first_and_cautions_right_below(case: str) -> None:
    page, words = page_of(case), outline_of(case).words
    solution = CASES[case]()
    first = " ".join(solution.sentence.split())[:40]
    assert words.index(first.replace("\x00", "\ufffd")) < words.index("What was it compared with?")
    assert page.index('class="answer"') < page.index('class="tiles"') < page.index('id="comparison"')
    assert ('class="caution"' in page) == bool(solution.checks.grave)
    if solution.checks.grave:
        assert page.index('class="caution"') < page.index('id="comparison"')


def test_the_policy_admits_the_one_script_and_nothing_else() -> None:
    page = page_of("normal")
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    assert "beforeprint" in script


def test_hostile_names_are_text_everywhere() -> None:
    outline = outline_of("hostile")
    assert outline.tags.count("script") == 1
    assert all(source.startswith("data:image/png") for source in outline.values("src"))
    assert "{{ 7 * 7 }}" in outline.words
    assert not re.search("[\x00-\x08\u202e]", page_of("hostile"))
    assert "<script>alert(1)</script>" in outline.words
    assert outline.words.count(HOSTILE[5].split()[2]) >= 3


def test_sections_come_in_the_order_of_a_newcomers_questions() -> None:
    page = page_of("normal")
    names = ("comparison", "certainty", "mistakes", "zoo", "kin", "architecture", "time", "reproduce", "glossary")
    assert re.findall(r'<h2 id="(\w+)">', page) == list(names)


def test_terms_are_linked_to_the_glossary() -> None:
    page = page_of("normal")
    assert set(re.findall(r'class="term" href="#([^"]+)"', page)) <= set(re.findall(r'<dt id="([^"]+)"', page))
    assert len(re.findall(r'<dt id="term-', page)) == len(glossary("solution"))
    for term in ("contender", "validation-set", "test-set", "accuracy", "kin", "cell", "trial", "zoo", "parameters"):
        assert f'href="#term-{term}"' in page


def test_the_table_has_test_validation_samples_and_seconds_first() -> None:
    solution, outline = planted(), outline_of("normal")
    table = next(table for table in outline.tables if table[0][0] == "Contender")
    assert table[0] == [
        "Contender", "Test accuracy", "Validation accuracy", "Training samples", "Seconds", "Test interval (95\u00a0%)",
        "Parameters", "Multiply-adds", "Before final training", "Kind",
    ]  # fmt: skip
    wanted = ordered(solution.standings)
    assert [row[0].removeprefix("✔ ").removesuffix(" (chosen)") for row in table[1:]] == [one.title for one in wanted]
    assert [row[1] for row in table[1:]] == [
        f"{solution.finals.get(one.name, one.test):.1%}".replace("%", " %") for one in wanted
    ]
    assert [row[2] for row in table[1:]] == [f"{one.validation:.1%}".replace("%", " %") for one in wanted]
    assert [row[3] for row in table[1:]] == ["1,438" if one.name in solution.finals else "1,150" for one in wanted]
    assert [row[4] for row in table[1:]] == [f"{one.seconds:.1f}" for one in wanted]
    assert [row[6] for row in table[1:]] == [f"{one.parameters:,}" for one in wanted]
    assert [row[7] for row in table[1:]] == [f"{one.multiply_adds:,}" for one in wanted]
    assert [bool(row[0].startswith("✔")) for row in table[1:]] == [one.name == "kin-search" for one in wanted]
    assert [row[8] for row in table[1:] if row[8] != "–"] == ["97.8 %", "98.1 %"]
    assert "VGG-16: images of 8 × 8 are too small for its five pools" in outline.words


def test_who_learned_from_fewer_samples_is_said() -> None:
    whole = planted()
    few = {"svm": 300, "lenet": 20}
    standings = tuple(replace(one, samples=few.get(one.name, one.samples)) for one in whole.standings)
    assert samples_text(replace(whole, standings=standings)) == (
        "1,150 training samples were available. Fewer were used by LeNet (20) and RBF support vector machine (300); "
        "all others learned from all of them."
    )
    assert "was not recorded" in samples_text(replace(whole, samples={}))


def test_what_the_choice_rests_on_is_said() -> None:
    words = outline_of("normal").words
    assert "a part of the training data that no contender learned from. The contender with the best accuracy" in words
    assert "All contenders learned from the same 1,150 training samples." in words
    assert "followed by RBF support vector machine (98.1 %)." in words
    margin = "ahead of the runner-up, RBF support vector machine by 0.2 points (95 % interval: −0.6 to 1.0)"
    assert f"{margin}, which may be chance." in words
    sure = replace(planted(), margins={"svm": (0.002, 0.001, 0.003)})
    assert "(95 % interval: 0.1 to 0.3), which is beyond chance." in certainty_text(sure)[0]
    better = replace(planted(), finals={"svm": 0.999})
    text = " ".join(comparison_text(better))
    assert "On the test set RBF support vector machine scored better (99.9 % against 97.8 %)." in text


def test_promises_have_a_word_a_sign_and_evidence() -> None:
    words = outline_of("normal").words
    assert "1 held, 1 did not hold, and 1 could not be tested in this run." in words
    for sign, promise in zip(("✔ held", "✘ did not hold", "? not tested"), planted().promises, strict=True):
        assert f"{sign} {promise.claim} {promise.evidence}" in words


def test_all_findings_are_told_grave_or_not() -> None:
    solution, words = planted(), outline_of("normal").words
    for one in solution.checks.findings:
        assert f"{'▲ caution' if one.grave else '✔ fine'}: {one.kind} {one.text}" in words


def test_how_to_get_it_again() -> None:
    words = outline_of("normal").words
    assert "nearkin solve digits-0-to-3 'digits?classes=0,1,2,3'" in words
    assert "Version of torch 2.13.0" in words
    assert "Seed 0" in words
    assert "Budget minutes: 5" in words
    told = solution_page(CASES["alone"](), command="nearkin  solve 'a  b'", file="my.safetensors")
    assert "<pre>nearkin  solve &#39;a  b&#39;</pre>" in told
    assert "nk.Solution.load(&#39;my.safetensors&#39;)" in told
    assert "nearkin export-model my.safetensors --to onnx" in told
    assert "nk.solve('digits?classes=0,1,2,3'" in outline_of("alone").words


def test_no_kin() -> None:
    words = outline_of("no-kin").words
    assert "There was no other task to compare with." in words
    assert "nearest related task none" in words
    assert "nk-map" not in page_of("no-kin")
    assert "nk-ranking" not in page_of("no-kin")


def test_values_have_a_scatter_and_no_classes() -> None:
    page, words = page_of("values"), outline_of("values").words
    assert 'id="nk-values-title"' in page
    assert not re.search('nk-confusion|nk-reliability|class="mistakes"', page)
    assert "always answers the mean" in words
    assert "solution.predict(x).mean" in words
    assert "No claim was tested in this run." in words


def test_tables_have_mistakes_without_pictures_and_no_cell() -> None:
    outline = outline_of("tables")
    assert "img" not in outline.tags
    assert "No architecture was searched" in outline.words
    assert any(table[0][0] == "Row of the test set" for table in outline.tables)


def test_one_contender_alone() -> None:
    outline = outline_of("alone")
    assert "Only logistic regression ran, so it could not be compared with another model." in outline.words
    assert outline.words.count(": no time") == 11
    assert "No model was trained in steps" in outline.words
    assert "No time was recorded." in outline.words
    assert "The data were not checked." in outline.words


def test_a_perfect_result_says_that_mistakes_may_come() -> None:
    words = outline_of("perfect").words
    assert "There is no mistake among the 360 test samples." in words
    assert "All test samples are classified correctly." in words


def test_many_classes_are_condensed() -> None:
    crowded, thousand = outline_of("crowded"), outline_of("thousand")
    assert "nk-confusion" not in page_of("crowded")
    assert any(table[0] == ["True class", "Answer", "Samples", "Share of the true class"] for table in crowded.tables)
    assert "With 1,000 classes, the confusions were not stored." in thousand.words
    assert any(table[0][0] == "Row of the test set" for table in thousand.tables)


def test_the_cell_of_a_searched_winner_and_of_one_that_did_not_win() -> None:
    assert "This is the cell of the chosen model" in outline_of("normal").words
    assert page_of("normal").count(f"<pre>{CELL}</pre>") == 1
    assert "it was not chosen" in outline_of("unsearched").words
    assert 'id="nk-cell-0-title"' in page_of("unsearched")


def test_a_genotype_that_cannot_be_read_is_shown_as_text() -> None:
    solution = planted()
    broken = tuple(replace(one, genotype="no genotype at all") if one.genotype else one for one in solution.standings)
    (drawing,) = cell_drawings(replace(solution, standings=broken))
    assert (drawing.genotype, drawing.svg, drawing.chosen) == ("no genotype at all", "", True)


def test_kin_words_name_whose_cells_and_the_limit() -> None:
    solution, words = planted(), outline_of("normal").words
    assert solution.relations.why in words
    assert f"The network of “{solution.relations.tuned}” was fine-tuned" in words
    assert "Kin count as near up to a distance of 0.31. Learned from 56 trials." in words
    facts = {name: value for name, value in (solution.relations.threshold or {}).items() if name != "words"}
    (told,) = threshold_text(replace(solution.relations, threshold=facts))
    assert "Fréchet distance of 0.310 (95 % interval 0.220 to 0.440)" in told
    assert "changed the metric by +0.004 on average over 31 trials" in told
    assert "changed the metric by −0.002 on average over 25 trials" in told


def test_a_large_zoo_is_mapped_by_the_nearest() -> None:
    solution = planted(kin_names=[f"task-{k}" for k in range(80)])
    assert solution.matrix is not None
    part = mapped(solution.matrix, solution.name)
    assert part is not None
    assert len(part.tasks) == MAPPED + 1
    own = solution.matrix.tasks.index(solution.name)
    column = solution.matrix.mean[:, own]
    left_out = [column[k] for k, name in enumerate(solution.matrix.tasks) if name not in part.tasks]
    place = part.tasks.index(solution.name)
    assert float(part.mean[:, place].max()) <= min(map(float, left_out))


def test_the_same_bytes_and_the_same_after_a_trip_through_json() -> None:
    solution = CASES["normal"]()
    state = solution.to_state()
    again = Solution.from_state(State(state.tensors, json.loads(json.dumps(state.facts))))
    assert solution_page(again) == page_of("normal")


def test_both_schemes_print_and_phones_are_provided_for() -> None:
    page = page_of("normal")
    assert "prefers-color-scheme:dark" in page
    assert "@media print" in page
    assert 'name="viewport"' in page
    wide = set(re.findall(r'id="(nk-[\w-]+?)-title"', page))
    assert {name for name in wide if not name.endswith("narrow") and "cell" not in name} == {
        name.removesuffix("-narrow") for name in wide if name.endswith("narrow")
    }


def test_losses_that_are_not_numbers_do_no_harm() -> None:
    solution = planted()
    curve = ((1.0, float("nan")), (2.0, float("inf")), (3.0, -0.5), (4.0, -0.7))
    odd = tuple(replace(one, curve=curve) if one.curve else one for one in solution.standings)
    curves = loss_curves(replace(solution, standings=odd))
    assert all(one.points == ((3.0, -0.5), (4.0, -0.7)) for one in curves)
    svg = loss_picture(curves, 760)
    assert ">training loss<" in svg
    assert not re.search(r'd="[^"]*(nan|inf)', svg)
