"""Pages in a real Chromium: what a person sees and can do, that scripts of names stay words, and that nothing leaks."""

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from nearkin.core.events import Caution, Note, Progress
from nearkin.report.theme import DARK, LIGHT
from nearkin.run.journal import write_journal
from nearkin.store.catalogue import Catalogue
from nearkin.web.frame import task_link
from web.zoos import filled, new_task, queued, renamed, serving

HOSTILE = ("<img src=x onerror=alert(1)>", "../../etc", "a/b?c#d", "w" * 100)
VIEWS = {
    "wide": {"viewport": {"width": 1280, "height": 900}},
    "phone": {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark"},
}
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium)
        yield running
        running.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zoo of three good names and four bad ones."""
    zoo = filled(tmp_path_factory.mktemp("browsed") / "zoo")
    with Catalogue(zoo) as catalogue:
        stand_ins = [f"stand-in {place}" for place in range(len(HOSTILE))]
        catalogue.admit([(new_task(name), ()) for name in stand_ins], read_blob=lambda digest: b"")
        for name in stand_ins:
            catalogue.keep_pair("frechet model 1000", name, "zero", 0, {"sorted": 0.3})
    for old, new in zip(stand_ins, HOSTILE, strict=True):
        renamed(zoo, old, new)
    return zoo


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[str]:
    with serving(folder) as address:
        yield address


@pytest.fixture
def visit(browser: Browser, site: str) -> Iterator[Open]:
    """`visit(path, **options of a context)`; ends with no error of a page, no dialog, and no other host asked."""
    troubles: list[str] = []
    hosts: set[str] = set()
    contexts = []

    def opened(path: str, expected: str = "", **options: object) -> Page:
        context = browser.new_context(base_url=site, **options)
        contexts.append(context)
        context.set_default_timeout(5000)
        page = context.new_page()
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: (troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))

        def heard(message: object) -> None:
            if message.type in ("error", "warning") and not (expected and expected in message.text):
                troubles.append(message.text)

        page.on("console", heard)
        page.goto(path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not troubles
    assert {host for host in hosts if host} == {urlsplit(site).netloc}


def test_from_the_list_to_a_task_and_its_kin(visit: Open) -> None:
    page = visit("/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Tasks")
    page.get_by_role("button", name="Test score").click()
    metrics = [float(text) for text in page.locator("tbody td:nth-child(2)").all_inner_texts()]
    assert metrics == sorted(metrics)
    page.get_by_role("searchbox").fill("detect=4")
    page.get_by_role("searchbox").press("Enter")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_role("link", name="zero").click()
    expect(page.locator(".answer")).to_contain_text("zero: accuracy 0.9400 ± 0.0020")
    expect(page.locator("#cells ~ figure svg").first).to_be_visible()
    expect(page.locator(".curve svg").first).to_be_visible()
    page.get_by_role("link", name="six").click()
    expect(page.locator(".answer")).to_contain_text("six: accuracy")
    assert page.title() == "six – nearkin"


def test_hostile_names_are_words(visit: Open) -> None:
    page = visit("/")
    for name in HOSTILE:
        page.goto("/")
        link = page.get_by_role("link", name=name, exact=True)
        assert link.get_attribute("href") == task_link(name).href
        link.click()
        expect(page.locator(".answer b")).to_have_text(name)
        assert page.locator("img").count() == 0
    page.goto("/map")
    assert page.locator("img").count() == 0
    for name in HOSTILE:
        expect(page.get_by_role("rowheader", name=name, exact=True).first).to_be_attached()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("view", VIEWS)
def test_every_page_fits_is_named_and_follows_the_scheme(visit: Open, view: str) -> None:
    page = visit("/", "404", **VIEWS[view])
    for path in ("/", "/map", "/work", "/task/zero", "/task/six", task_link(HOSTILE[-1]).href, "/task/nobody"):
        page.goto(path)
        wide = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert wide[0] <= wide[1], f"{path} scrolls sideways"
        assert page.locator("html").get_attribute("lang") == "en"
        assert page.locator("h1").count() == 1
        unnamed = "svg:not([aria-label]):not([aria-labelledby]), input:not([id]), [role=region]:not([aria-label])"
        assert page.locator(unnamed).count() == 0
        assert page.evaluate("new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size") == (
            page.locator("[id]").count()
        )
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        colour = (DARK if VIEWS[view].get("color_scheme") == "dark" else LIGHT)["paper"]
        assert paper == f"rgb({', '.join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))})"


def test_work_is_followed_while_it_runs(visit: Open, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearkin.run.journal.EVERY_SECONDS", 0.0)
    page = visit("/work")
    expect(page.locator("#summary")).to_have_text("No command is running.")
    with write_journal(folder, ["search", "<b>six</b>"]) as listen:
        for step in range(3):
            listen(Progress("search <i>fuse</i>", step, 8, {"best": 0.5 + step / 10}))
        run = page.locator(".run").first
        expect(run.locator(".state")).to_have_text("running")
        expect(run.locator("code")).to_have_text("nearkin search '<b>six</b>'")
        expect(run.locator(".stage")).to_have_text("search <i>fuse</i> 2 of 8")
        expect(run.locator("progress")).to_have_js_property("value", 0.25)
        expect(run.locator("dd")).to_have_text("0.7")
        line = run.locator(".curve path").get_attribute("d")
        listen(Note("nearest by frechet: <u>zero</u>"))
        listen(Caution("only one kin"))
        listen(Progress("search <i>fuse</i>", 6, 8, {"best": 0.9}))
        expect(run.locator("progress")).to_have_js_property("value", 0.75)
        expect(run.locator(".notes li")).to_have_text("nearest by frechet: <u>zero</u>")
        expect(run.locator(".cautions li")).to_have_text("only one kin")
        assert run.locator(".curve path").get_attribute("d") != line
        expect(page.locator("#summary")).to_have_text("1 running.")
    expect(run.locator(".state")).to_have_text("done")
    expect(page.locator("#summary")).to_have_text("No command is running.")
    assert page.locator(".run b, .run i, .run u").count() == run.locator(".curve b").count()


def test_a_server_that_is_away_is_told_and_found_again(visit: Open) -> None:
    page = visit("/work", "ERR_FAILED")
    page.route("**/work.json", lambda route: route.abort())
    expect(page.locator("#pulse")).to_contain_text("does not answer")
    page.unroute("**/work.json")
    expect(page.locator("#pulse")).to_have_text("")


def test_the_policy_holds(visit: Open) -> None:
    page = visit("/", "Content Security Policy")
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.in = 1'}))"
    )
    assert page.evaluate("window.in") is None
    assert page.evaluate("fetch('http://192.0.2.1/').then(() => 'went', () => 'refused')") == "refused"
    assert page.context.cookies() == []


def test_the_keyboard_is_enough(visit: Open) -> None:
    page = visit("/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="To the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    button = page.get_by_role("button", name="Trials")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.locator("th[aria-sort]")).to_have_attribute("aria-sort", "ascending")


def test_print_is_light_and_without_ways(visit: Open) -> None:
    page = visit("/task/zero", color_scheme="dark")
    page.emulate_media(media="print")
    expect(page.locator("body > nav")).to_be_hidden()
    expect(page.locator(".answer")).to_be_visible()


def test_it_works_without_scripts(visit: Open, folder: Path) -> None:
    with write_journal(folder, ["add", "quiet"]) as listen:
        listen(Progress("training", 1, 4))
    page = visit("/work", java_script_enabled=False)
    expect(page.locator(".run summary").first).to_contain_text("nearkin add quiet")


@pytest.mark.parametrize("view", VIEWS)
def test_jobs_are_listed_and_followed(visit: Open, folder: Path, view: str) -> None:
    page = visit("/work", **VIEWS[view])
    queued(str(folder))
    expect(page.locator(".job .state")).to_have_text(["running", "failed", "pending", "pending", "cancelled", "done"])
    expect(page.locator(".job").first).to_contain_text("training <i>six</i> 3 of 4")
    expect(page.locator(".job progress:visible")).to_have_count(1)
    expect(page.locator(".job .caution:visible")).to_have_text(["the data has <b>no</b> labels; add some"])
    assert page.locator(".job b, .job i").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    for file in folder.glob("jobs.db*"):
        file.unlink()
    expect(page.locator("#jobs-section")).to_be_hidden()
