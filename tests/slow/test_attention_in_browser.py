"""Tests of the attention page in a browser."""

import dataclasses

import pytest
from helpers.attention_maps import random_maps
from helpers.browser import complaints, open_browser

from keras_transformer.visualization.attention import KINDS, Tokens, attention_page, inline


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    driver = open_browser(tmp_path_factory.mktemp("browser"))
    yield driver
    driver.quit()


@pytest.fixture
def page(driver, tmp_path):
    """Open an attention page with random maps. After the test, assert that the page logged nothing to the console."""
    maps = random_maps([1, 2, 1], [2, 1])
    (tmp_path / "attention.html").write_text(attention_page(maps), encoding="utf-8")
    driver.get((tmp_path / "attention.html").as_uri())
    yield maps
    assert complaints(driver) == []


def drawn(driver):
    """Return the SVG paths of all lines. Read all paths in one script, because the page may redraw at any time."""
    return driver.execute_script(
        "return Array.from(document.querySelectorAll('svg path'), path => path.getAttribute('d'))"
    )


def press(driver, group, label):
    driver.find_element("xpath", f"//fieldset[legend='{group}']/button[.='{label}']").click()


def word(driver, side, number):
    return driver.find_elements("css selector", f".{side} .word")[number]


def point_at(driver, element):
    from selenium.webdriver import ActionChains

    ActionChains(driver).move_to_element(element).perform()


def told(driver):
    return driver.find_element("css selector", ".message").text


def test_page_hover_shows_attention_of_one_word(driver, page):
    everything = drawn(driver)
    weights = page.merged().cross[0]
    assert len(everything) == sum(round(255 * w) / 255 >= 0.02 for w in weights.flat)
    point_at(driver, word(driver, "queries", 1))
    of_one = drawn(driver)
    assert 0 < len(of_one) < len(everything) and set(of_one) < set(everything)
    best = page.merged().source.labels[weights[:, 1].mean(axis=0).argmax()]
    assert told(driver).startswith(f"t_1 attends to {best} ")
    point_at(driver, word(driver, "keys", 2))
    assert drawn(driver) not in (of_one, everything) and told(driver).startswith("s_2 is attended to by ")
    point_at(driver, driver.find_element("css selector", "dl"))
    assert drawn(driver) == everything and told(driver).startswith("Point at a word")


def test_page_click_pins_word_until_escape(driver, page):
    everything = drawn(driver)
    word(driver, "queries", 0).click()
    pinned = drawn(driver)
    point_at(driver, word(driver, "queries", 2))
    assert drawn(driver) == pinned != everything
    assert word(driver, "queries", 0).get_attribute("aria-pressed") == "true"
    word(driver, "queries", 0).send_keys("\ue00c")
    point_at(driver, driver.find_element("css selector", "dl"))
    driver.execute_script("document.activeElement.blur()")
    assert drawn(driver) == everything


def test_page_selects_layers_heads_kinds_and_pieces(driver, page):
    everything = drawn(driver)
    press(driver, "heads", "2")
    assert 0 < len(drawn(driver)) < len(everything)
    for head in "13":
        press(driver, "heads", head)
    assert drawn(driver) == [] and told(driver) == "No head is selected."
    press(driver, "heads", "all")
    assert drawn(driver) == everything
    press(driver, "layer", "2")
    colors = {path.get_attribute("style") for path in driver.find_elements("css selector", "svg path")}
    assert len(colors) == 3
    for kind, queries, keys in (("encoder", "source", "source"), ("decoder", "target", "given")):
        press(driver, "attention", KINDS[kind])
        for form, maps in (("words", page.merged()), ("pieces", page)):
            press(driver, "by", form)
            for side, expected in (("queries", queries), ("keys", keys)):
                words = driver.find_elements("css selector", f".{side} .word")
                assert [one.text for one in words] == list(getattr(maps, expected).labels)


def test_page_works_by_keyboard(driver, page):
    from selenium.webdriver import ActionChains, Keys

    everything = drawn(driver)
    for _ in range(40):
        ActionChains(driver).send_keys(Keys.TAB).perform()
        if "word" in driver.switch_to.active_element.get_attribute("class").split():
            break
    of_one = drawn(driver)
    assert driver.switch_to.active_element.text == "t_0" and len(of_one) < len(everything)
    ActionChains(driver).send_keys(Keys.ENTER).send_keys(Keys.TAB).perform()
    assert drawn(driver) == of_one


def test_page_shows_right_to_left_words(driver, tmp_path):
    maps = random_maps([1, 1], [1])
    labels = "القط", "ينام", "</s>"
    maps = dataclasses.replace(maps, source=Tokens(labels, labels, maps.source.word_of), source_text="القط ينام")
    (tmp_path / "attention.html").write_text(attention_page(maps), encoding="utf-8")
    driver.get((tmp_path / "attention.html").as_uri())
    for element in (driver.find_element("css selector", "dd"), word(driver, "keys", 0)):
        assert driver.execute_script("return getComputedStyle(arguments[0]).direction", element) == "rtl"
    point_at(driver, word(driver, "queries", 0))
    isolated = [one.text for one in driver.find_elements("css selector", ".message bdi")]
    assert isolated[0] == "t_0" and set(isolated[1:]) == set(labels)
    assert complaints(driver) == []


def test_notebook_frame_shows_page(driver, tmp_path):
    (tmp_path / "notebook.html").write_text(f"<!DOCTYPE html><body>{inline(random_maps([1], [1]))}</body>")
    driver.get((tmp_path / "notebook.html").as_uri())
    driver.switch_to.frame(0)
    assert len(drawn(driver)) > 0
    height = driver.execute_script("return [document.documentElement.scrollHeight, innerHeight]")
    assert height[0] <= height[1]
    driver.switch_to.default_content()
    assert complaints(driver) == []
