"""Make `browser.png`, the page of `serve --ui`: `python docs/figures/make_browser.py RUN`, with playwright installed.

RUN is a trained run of the arena. It needs a Chromium: the one on the path, or that of `playwright install chromium`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from marl_sb3.runs.run import SavedRun
from marl_sb3.tools.serving.guard import Limits, Listening
from marl_sb3.tools.serving.http import Server
from marl_sb3.tools.serving.ui import ui_routes

HERE = Path(__file__).parent
SIZE = {"width": 1120, "height": 1080}


def picture(run: SavedRun, path: Path) -> None:
    """Play 40 steps, take agent2 over, and take a picture of the page."""
    with Server(ui_routes(run), Listening(), Limits(seconds=1)) as server, sync_playwright() as engines:
        browser = engines.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(server.address)
        page.get_by_label("Speed").fill("5")
        page.get_by_label("Seed").fill("7")
        page.get_by_role("button", name="Begin").click()
        page.wait_for_function("() => /step 4[0-9]/.test(document.getElementById('clock').textContent)")
        page.get_by_role("button", name="Take over agent2").click()
        page.locator("#state").filter(has_text="Your move").wait_for()
        page.mouse.click(5, 5)
        page.screenshot(path=path)
        browser.close()


if __name__ == "__main__":
    picture(SavedRun.open(sys.argv[1]), HERE / "browser.png")
