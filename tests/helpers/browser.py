"""A headless Chromium, controlled by chromedriver."""

import os
import shutil

import pytest


def open_browser(folder):
    """Return a Selenium driver. Skip the test if Chromium, chromedriver or Selenium is missing.

    Args:
        folder: New folder in which the browser stores its files.
    """
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("Chromium or chromedriver is missing: apt-get install chromium chromium-driver")
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
    """Return the messages that the page has logged to its console since the last call."""
    return [entry["message"] for entry in driver.get_log("browser")]
