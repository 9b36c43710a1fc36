"""Headless Chromium over the DevTools protocol: what a page asks for, says and looks like."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tornado.httpclient import AsyncHTTPClient
from tornado.websocket import websocket_connect

_NAMES = ("chromium", "chromium-browser", "chrome", "google-chrome")
EXECUTABLE = next(filter(None, map(shutil.which, _NAMES)), None)
_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-port=0",
    "--allow-file-access-from-files",
]
WIDE, PHONE = (1280, 900), (390, 844)
# A page's size, and whether the reader prefers dark pages.
Look = tuple[tuple[int, int], bool]


@dataclass
class Visit:
    """What happened on one page.

    Attributes:
        requests: the addresses it asked for.
        errors: what it threw or logged as an error.
        answer: what the script given to `visit` returned, or the one asked after printing; with
            keys or other looks, one more answer after each of them, in a list.
    """

    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    answer: Any = None


class _Tab:
    def __init__(self, socket):
        self._socket, self._numbers, self.visit = socket, itertools.count(1), Visit()

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.write_message(json.dumps(message))
        while True:
            answer = json.loads(await self._socket.read_message())
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    async def settled(self) -> None:
        for _ in range(100):
            with suppress(RuntimeError):  # a page that leads on takes its scripts with it
                if await self.evaluate(_SETTLED):
                    return
            await asyncio.sleep(0.2)
        raise TimeoutError("the page does not settle")

    def _note(self, event: dict[str, Any]) -> None:
        kind, what = event.get("method"), event.get("params", {})
        if kind == "Network.requestWillBeSent":
            self.visit.requests.append(what["request"]["url"])
        elif kind == "Runtime.exceptionThrown":
            thrown = what["exceptionDetails"]
            said = thrown.get("exception", {}).get("description", thrown.get("text"))
            self.visit.errors.append(f"{said} {thrown.get('url', '')}")
        elif kind == "Log.entryAdded" and what["entry"]["level"] == "error":
            self.visit.errors.append(f"{what['entry']['text']} {what['entry'].get('url', '')}")

    async def evaluate(self, script: str) -> Any:
        result = await self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")


_SETTLED = """(async () => {
  if (location.href === "about:blank" || document.readyState !== "complete") return false;
  if (document.querySelector("meta[http-equiv=refresh i]")) return false;
  if (window.MathJax && MathJax.startup && MathJax.startup.promise)
    await MathJax.startup.promise;
  await new Promise((done) => setTimeout(done, 300));
  return true;
})()"""


# What Chromium wants to know of a key beside its name.
_KEYS = {"Tab": 9, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39}
_KEYS |= {"ArrowDown": 40, " ": 32}


async def _press(tab: _Tab, key: str) -> None:
    what = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": _KEYS[key]}
    typed = {"text": key} if key == " " else {}
    await tab.call("Input.dispatchKeyEvent", type="keyDown", **what, **typed)
    await tab.call("Input.dispatchKeyEvent", type="keyUp", **what)


async def _turn(tab: _Tab, size: tuple[int, int], dark: bool) -> None:
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    await tab.call("Emulation.setEmulatedMedia", features=[scheme])
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1}
    await tab.call(
        "Emulation.setDeviceMetricsOverride", mobile=size[0] < 600, screenWidth=size[0], **metrics
    )


async def _visit(
    address, url, script, *, size=WIDE, dark=False, printed="", keys=(), then=()
) -> Visit:
    tab = _Tab(await websocket_connect(address, max_message_size=100 << 20))
    await tab.call("Page.navigate", url="about:blank")  # what was open is not this visit's
    for domain in ("Page", "Network", "Runtime", "Log"):
        await tab.call(f"{domain}.enable")
    await tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
    await _turn(tab, size, dark)
    await tab.call("Page.navigate", url=url)
    await tab.settled()
    if script:
        tab.visit.answer = await tab.evaluate(script)
    if then:
        tab.visit.answer = [tab.visit.answer]
        for look, asked in then:
            await _turn(tab, *look)
            await asyncio.sleep(0.4)  # the theme waits before it answers a change of size
            await tab.settled()
            tab.visit.answer.append(await tab.evaluate(asked))
    if keys:
        tab.visit.answer = [tab.visit.answer]
        for key in keys:
            await _press(tab, key)
            tab.visit.answer.append(await tab.evaluate(script))
    if printed:
        await tab.call("Page.printToPDF")
        tab.visit.answer = await tab.evaluate(printed)
    return tab.visit


class Browser:
    """A running Chromium; use as a context manager."""

    def __enter__(self) -> Browser:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        command = [EXECUTABLE, *_FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        announced = Path(self._folder.name) / "DevToolsActivePort"
        for _ in range(300):
            if announced.is_file() and len(announced.read_text().splitlines()) == 2:
                break
            time.sleep(0.1)
        self._port = announced.read_text().splitlines()[0]
        self._tab = None
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        self._folder.cleanup()

    def visit(self, url: str, script: str = "", **how: Any) -> Visit:
        """Open a page, let it settle, run a script, turn it to other looks with a script each,
        press keys and run the first after each, print, ask: `_visit` says how."""
        return asyncio.run(self._in_a_tab(url, script, how))

    async def _in_a_tab(self, url: str, script: str, how: dict[str, Any]) -> Visit:
        """One tab for all visits: a new one would be a new process, and compile scripts again."""
        if self._tab is None:
            new = f"http://127.0.0.1:{self._port}/json/new?about:blank"
            opened = await AsyncHTTPClient().fetch(new, method="PUT", body="")
            self._tab = json.loads(opened.body)["webSocketDebuggerUrl"]
        return await _visit(self._tab, url, script, **how)


AXE = (Path(__file__).parent / "axe/axe.min.js").read_text(encoding="utf-8")
_LAYOUT = """(() => {
  for (const folded of document.querySelectorAll("details")) folded.open = true;
  return {
    width: document.documentElement.scrollWidth,
    window: innerWidth,
    formulas: document.querySelectorAll(".math").length,
    typeset: document.querySelectorAll(".math mjx-container").length,
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
        found += ["a formula is not typeset"] * (seen["typeset"] < seen["formulas"])
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
