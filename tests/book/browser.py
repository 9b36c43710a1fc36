"""Headless Chromium, by Playwright: what a page asks for, says and looks like."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

_NAMES = ("chromium", "chromium-browser", "chrome", "google-chrome")
EXECUTABLE = next(filter(None, map(shutil.which, _NAMES)), None)
WIDE, PHONE = (1280, 900), (390, 844)
# A page's size, and whether the reader prefers dark pages.
Look = tuple[tuple[int, int], bool]
_SETTLED = """async () => {
  if (document.readyState !== "complete") return false;
  if (document.querySelector("meta[http-equiv=refresh i]")) return false;
  const typesetting = window.MathJax && MathJax.startup && MathJax.startup.promise;
  if (document.querySelector(".math") && !typesetting) return false;
  await typesetting;
  const pause = (time) => new Promise((done) => setTimeout(done, time));
  const late = () => [...document.querySelectorAll(".math")]
    .some((formula) => !formula.querySelector("mjx-container"));
  for (let tries = 0; tries < 100 && late(); tries++) await pause(100);
  await pause(300);
  return true;
}"""


@dataclass
class Visit:
    """What happened on one page.

    Attributes:
        requests: the addresses it asked for.
        errors: what it threw, and what the browser logged as an error.
        answer: what the script given to `visit` returned, or the one asked after printing; with
            keys or other looks, one more answer after each of them, in a list.
    """

    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    answer: Any = None


class Browser:
    """A running Chromium; use as a context manager.

    Its event loop runs in a thread of its own, where it is in no other test's way. One tab is for
    all visits: a new one would be a new process, and compile scripts again.
    """

    def __enter__(self) -> Browser:
        self._thread = ThreadPoolExecutor(1)
        self._thread.submit(self._start).result()
        return self

    def __exit__(self, *_: Any) -> None:
        self._thread.submit(self._browser.close).result()
        self._thread.submit(self._driver.stop).result()
        self._thread.shutdown()

    def visit(self, url: str, script: str = "", **how: Any) -> Visit:
        """Open a page, let it settle, run a script, turn it to other looks with a script each,
        press keys and run the first after each, print, ask: `_visit` says how."""
        return self._thread.submit(self._visit, url, script, **how).result()

    def _start(self) -> None:
        self._driver, self._seen = sync_playwright().start(), Visit()
        self._browser = self._driver.chromium.launch(
            executable_path=EXECUTABLE, args=["--allow-file-access-from-files"]
        )
        self._page = self._browser.new_page(viewport=None)
        self._session = self._page.context.new_cdp_session(self._page)
        self._page.on("request", lambda request: self._seen.requests.append(request.url))
        self._page.on("pageerror", lambda error: self._seen.errors.append(str(error)))
        self._page.on("console", self._note)

    def _note(self, said: Any) -> None:
        if said.type == "error" and not said.args:  # with some it is a script's own `console.error`
            self._seen.errors.append(f"{said.text} {said.location['url']}")

    def _turn(self, size: tuple[int, int], dark: bool) -> None:
        self._page.emulate_media(color_scheme="dark" if dark else "light")
        width, height = size
        metrics = {"width": width, "height": height, "screenWidth": width, "mobile": width < 600}
        self._session.send(
            "Emulation.setDeviceMetricsOverride", {**metrics, "deviceScaleFactor": 1}
        )

    def _visit(
        self,
        url: str,
        script: str,
        *,
        size: tuple[int, int] = WIDE,
        dark: bool = False,
        printed: str = "",
        keys: Sequence[str] = (),
        then: Sequence[tuple[Look, str]] = (),
    ) -> Visit:
        page = self._page
        page.goto("about:blank")  # what was open is not this visit's
        visit = self._seen = Visit()
        self._turn(size, dark)
        page.goto(url)
        page.wait_for_function(_SETTLED)
        answers = [page.evaluate(script)] if script else []
        for look, asked in then:
            self._turn(*look)
            page.wait_for_timeout(400)  # the theme waits before it answers a change of size
            page.wait_for_function(_SETTLED)
            answers.append(page.evaluate(asked))
        for key in keys:
            page.keyboard.press(key)
            answers.append(page.evaluate(script))
        if printed:
            page.pdf()
            answers = [page.evaluate(printed)]
        if answers:
            visit.answer = answers if then or keys else answers[0]
        return visit


AXE = (Path(__file__).parent / "axe/axe.min.js").read_text(encoding="utf-8")
_LAYOUT = """(() => {
  for (const folded of document.querySelectorAll("details")) folded.open = true;
  return {
    width: document.documentElement.scrollWidth,
    window: innerWidth,
    raw: [...document.querySelectorAll(".math")]
      .filter((formula) => !formula.querySelector("mjx-container"))
      .map((formula) => formula.textContent.slice(0, 60)),
    cut: [...document.querySelectorAll("mjx-container[display]")]
      .filter((formula) => formula.scrollWidth > formula.clientWidth + 1)
      .map((formula) => formula.innerText.slice(0, 60)),
    broken: [...document.images].filter((i) => i.complete && !i.naturalWidth).map((i) => i.src),
  };
})()"""
# Of what repeats, axe sees the first: eight rows of a table, eight formulas, eight words of code
# of a kind. On the thousands that are like them it would spend minutes.
_FIRST_OF_EACH = f"""{AXE};
for (const row of document.querySelectorAll("tbody > tr:nth-child(n + 9)")) row.remove();
const like = {{}};
for (const part of document.querySelectorAll("mjx-container, pre span")) {{
  const kind = part.tagName + part.className;
  if ((like[kind] = (like[kind] ?? 0) + 1) > 8)
    part.replaceWith(part.tagName === "SPAN" ? part.textContent : "");
}}
"""
# What axe calls critical or serious: the rule, and the elements.
_AXE = """(async () => {
  const {violations} = await axe.run(document, {resultTypes: ["violations"] %s});
  return violations.filter((v) => ["critical", "serious"].includes(v.impact))
    .map((v) => `${v.id}: ${v.nodes.map((n) => n.html.slice(0, 120)).join(" ")}`);
})()"""
# The rules whose answer another size or other colours change.
_SEEN = ["color-contrast", "link-in-text-block", "scrollable-region-focusable", "target-size"]
_AGAIN = _AXE % f', runOnly: {{type: "rule", values: {json.dumps(_SEEN)}}}'


def unreadable(browser: Browser, url: str, first: Look, second: Look) -> list[str]:
    """Return what keeps a page from being read offline by anyone, in either of two looks.

    It is opened in the first, turned to the second, and back for what axe says of the first.
    """
    then = [(second, _LAYOUT), (second, _FIRST_OF_EACH + _AXE % ""), (first, _AGAIN)]
    visit = browser.visit(url, _LAYOUT, size=first[0], dark=first[1], then=then)
    *layouts, axe, again = visit.answer
    outside = [u for u in visit.requests if not u.startswith(("file:", "data:", "about:"))]
    found = [*outside, *visit.errors, *axe, *again]
    for seen in layouts:
        found += seen["broken"]
        found += [f"a formula loses its end: {formula}" for formula in seen["cut"]]
        found += ["it is wider than the window"] * (seen["width"] > seen["window"] + 1)
        found += [f"a formula is not typeset: {formula}" for formula in seen["raw"]]
    return found


ASKING = "browser.visit(", "unreadable(browser"


def told(executable: str | None = EXECUTABLE) -> str:
    """Say which browser the tests had, or which of them were skipped for want of one."""
    if executable:
        return f"Pages were tried in {executable}."
    tests = Path(__file__).parents[1]
    asking = [
        path
        for path in sorted(tests.rglob("test_*.py"))
        if any(call in path.read_text("utf-8") for call in ASKING)
    ]
    skipped = ", ".join(path.relative_to(tests.parent).as_posix() for path in asking)
    return (
        f"No Chromium is installed: skipped were the tests of {skipped} that ask a browser. On "
        "Debian, apt-get install chromium brings one."
    )


if __name__ == "__main__":
    print(told())
