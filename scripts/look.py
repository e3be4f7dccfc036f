"""Check how pages look in a browser: `make look PAGES="FILE.html ..."`.

Every page is opened at 390, 768, 1,280 and 1,600 pixels, light and dark. None may be wider than its window, cut text
off, load anything from elsewhere, or have a serious finding of axe-core.
"""

import itertools
import shutil
import sys
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

WIDTHS = (390, 768, 1280, 1600)
THEMES = ("light", "dark")
SERIOUS = {"serious", "critical"}
CLIPPED = """() => [...document.querySelectorAll("h1, h2, h3, h4, p, td, th, li, .value, svg text")]
    .filter(one => {
        const box = one.getBoundingClientRect();
        const svg = one.closest("svg");
        const frame = svg ? svg.getBoundingClientRect() : null;
        const beyond = frame && box.width && (box.left < frame.left - 1 || box.right > frame.right + 1);
        if (one.closest("aside") || !one.textContent.trim()) return false;  // the site's drawers, until they are opened
        for (let up = one.parentElement; up; up = up.parentElement)
            if (["auto", "scroll"].includes(getComputedStyle(up).overflowX)) return false;  // a wide table scrolls
        return box.width && (beyond || box.right > window.innerWidth + 1 || box.left < -1);
    })
    .map(one => one.textContent.trim().slice(0, 60))"""


def problems(page: Any, path: Path) -> list[str]:
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    found = []
    for width, theme in itertools.product(WIDTHS, THEMES):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=theme)
        page.goto(path.as_uri())
        place = f"{path.name}, {width} pixels, {theme}"
        if (wide := page.evaluate("document.documentElement.scrollWidth")) > width:
            found.append(f"{place}: the page is {wide} pixels wide")
        found += [f"{place}: {text!r} is cut off" for text in page.evaluate(CLIPPED)]
        for one in Axe().run(page).response["violations"]:
            if one["impact"] in SERIOUS:
                where = one["nodes"][0]["target"]
                found.append(f"{place}: {one['id']}, {one['help']}, {len(one['nodes'])} times, first at {where}")
    found += [f"{path.name} loads {url}" for url in {*requested} if not url.startswith(("file:", "data:"))]
    return found


def main(paths: list[str]) -> None:
    program = shutil.which("chromium")
    if program is None or not paths:
        sys.exit("Error: pass HTML files, and install a browser: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        found = [line for path in paths for line in problems(browser.new_page(), Path(path).absolute())]
        browser.close()
    print(*found, sep="\n")
    print(f"{len(paths)} pages, {len(WIDTHS) * len(THEMES)} times each: {len(found)} problems")
    if found:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
