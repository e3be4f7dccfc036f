from rankline.workflows.page.page import Card, Page, Section, Tile, bar, embedded, legend, marked, share_bar, table
from tests.factories.pages import ParsedPage

HOSTILE = "<script>alert('&\"')</script>"
PAGE = Page(
    title="clicks",
    chips=["version 2"],
    meta=["2026-11-30 06:00", "run 1234"],
    verdict="AUC is **0.775**, better than `userId` alone.",
    trust="Measured.",
    problems=["the client was the bottleneck"],
    tiles=[Tile(title="AUC", value="0.775", note="", scale=(0.5, [(0, "0.5", "guessing"), (0.9, "0.9", "best")]))],
    steps=["`rankline serve clicks` keep serving"],
    sections=[
        Section(
            title="Speed",
            cards=[Card(title="Latency", content=table({"rows": ["1"], "p50": ["0.42"]}), note="p50", is_wide=True)],
            remarks=["a remark"],
            folded={"All": table({"": ["a"]})},
        )
    ],
)


def test_page_has_all_its_parts_and_no_external_references() -> None:
    source = PAGE.html()
    page = ParsedPage(source)
    for text in ("clicks", "version 2", "0.775", "guessing", "bottleneck", "rankline serve", "0.42", "a remark", "All"):
        assert text in page.text
    assert not {"script", "link", "img", "iframe", "object"} & set(page.names)
    assert not {name for name, _ in page.attributes if name in {"src", "href", "srcset"} or name.startswith("on")}
    assert "://" not in source
    assert "prefers-color-scheme:dark" in source


def test_page_escapes_all_text() -> None:
    tile = Tile(title=HOSTILE, value=HOSTILE, unit=HOSTILE, note=HOSTILE, scale=(0.5, [(0.1, HOSTILE, HOSTILE)]))
    columns = {HOSTILE: [HOSTILE, share_bar({HOSTILE: 1.0}), bar(0.5), legend([HOSTILE])]}
    card = Card(title=HOSTILE, content=table(columns), note=HOSTILE)
    section = Section(title=HOSTILE, cards=[card], remarks=[HOSTILE], folded={HOSTILE: table({})})
    texts = [HOSTILE]
    page = Page(
        title=HOSTILE,
        verdict=HOSTILE,
        trust=HOSTILE,
        chips=texts,
        meta=texts,
        problems=texts,
        steps=texts,
        tiles=[tile],
        sections=[section],
    )
    for source in (page.html(), embedded(page)):
        assert "script" not in ParsedPage(source).names
        assert HOSTILE not in source


def test_bold_and_code_are_the_only_markup() -> None:
    assert marked("**a** and `b` <i>") == "<b>a</b> and <code>b</code> &lt;i&gt;"


def test_parts_of_a_bar_fill_it() -> None:
    assert "width:25.00%" in share_bar({"queue": 0.1, "model": 0.3, "none": 0.0})
    assert "none" not in share_bar({"queue": 0.1, "none": 0.0})


def test_summary_is_markdown() -> None:
    lines = PAGE.markdown().splitlines()
    assert lines[0] == PAGE.verdict
    assert "| AUC | 0.775  |  |" in lines
    assert lines[-1] == "- `rankline serve clicks` keep serving"


def test_notebook_excerpt_keeps_its_styles_to_itself() -> None:
    source = embedded(PAGE)
    assert "0.775" in ParsedPage(source).text
    assert source.count("\n.rankline{\n") == 1  # all other rules are nested in it
