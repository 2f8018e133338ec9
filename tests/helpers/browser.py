"""A real browser without a screen: Debian's Chromium, driven by its chromedriver."""

import os
import shutil

import pytest


def open_browser(folder):
    """Returns a Selenium driver; the test is skipped where there is no Chromium, chromedriver or Selenium.

    Args:
        folder: A new one, for the browser's own files.
    """
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("there is no Chromium: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "headless", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
        "disable-component-update", "disable-sync", "disable-dev-shm-usage", "window-size=1000,900",
        f"user-data-dir={folder}", *(["no-sandbox"] if os.geteuid() == 0 else []),
    ):  # fmt: skip
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService(driver))


def complaints(driver):
    """Returns what the page's console has got since the last call."""
    return [entry["message"] for entry in driver.get_log("browser")]
