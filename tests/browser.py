"""A page as a browser without a window shows it, without a network."""

import html
import json
import os
import re
import shutil
import signal
import subprocess

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)

needs_browser = pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(BROWSERS)} is here")

# A browser's window is at least 500 pixels wide; a frame in it may be as narrow as a phone.
FRAME = """<body style="margin: 0">
<iframe src="{page}" style="width: {width}px; height: 4000px; border: 0"></iframe>
<script>
setTimeout(() => {{
  const {{document: page, innerWidth: width}} = document.querySelector("iframe").contentWindow;
  const colour = (element, key) => getComputedStyle(element)[key];
  document.body.dataset.found = JSON.stringify({{
    width: width,
    needed: page.documentElement.scrollWidth,
    {measures}
  }});
}}, 20000);
</script>"""


def opened(page, profile, *options):
    """A page's document after its scripts ran, without them, and what the browser complained of.

    Args:
        page: its address.
        profile: folder for what the browser keeps.
        options: further ones of the browser.
    """
    browser = subprocess.Popen(
        [
            str(BROWSER),
            "--headless",
            "--no-sandbox",  # which root, as in a container, cannot have
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--host-resolver-rules=MAP * ~NOTFOUND",  # no network
            f"--user-data-dir={profile}",
            "--enable-logging=stderr",
            "--window-size=1280,4000",
            "--virtual-time-budget=60000",
            *options,
            "--dump-dom",
            page,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        document, errors = browser.communicate(timeout=120)
    finally:
        if browser.poll() is None:
            os.killpg(browser.pid, signal.SIGKILL)
            browser.wait()
    text = re.sub(r"<script.*?</script>", "", document, flags=re.DOTALL)
    return text, [line for line in errors.splitlines() if "CONSOLE" in line]


def measured(page, folder, width, *, dark, measures):
    """How a page looks in a frame of so many pixels, without a complaint of the browser.

    Args:
        page: its file.
        folder: for the frame and what the browser keeps.
        width: of the frame.
        dark: whether the reader prefers dark pages.
        measures: further values, as fields of an object in JavaScript. There `page` is the page's
            document, and `colour(element, key)` the value of a key of its style.
    """
    frame = folder / f"frame-{page.parent.name}-{page.stem}-{width}-{dark}.html"
    frame.write_text(FRAME.format(page=page.as_uri(), width=width, measures=measures))
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    text, complaints = opened(
        frame.as_uri(), folder / f"{frame.stem}-profile", "--allow-file-access-from-files", scheme
    )
    assert complaints == []
    (found,) = re.findall(r'data-found="(.*?)"', text)
    return json.loads(html.unescape(found))


def brightness(colour):
    """Of a CSS colour without opacity, in [0, 255]."""
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3
