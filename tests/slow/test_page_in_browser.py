"""Tests of the web page of `serve` in a browser."""

import threading

import pytest
from helpers.browser import complaints, open_browser

pytest.importorskip("fastapi")

from helpers.served import Backwards, serving  # noqa: E402

from keras_transformer.server.application import application  # noqa: E402
from keras_transformer.server.batcher import Batcher, QueueFull  # noqa: E402
from keras_transformer.server.engines import Output, load_engine  # noqa: E402
from keras_transformer.server.limits import Limits  # noqa: E402


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    driver = open_browser(tmp_path_factory.mktemp("browser"))
    yield driver
    driver.quit()


def translate(driver, url, text):
    driver.get(url)
    return translate_again(driver, text)


def translate_again(driver, text):
    """Replace the source text and click the button "translate". Return the translations that the page shows."""
    from selenium.webdriver.support.ui import WebDriverWait

    driver.execute_script("document.getElementById('source').value = arguments[0]", text)
    driver.find_element("id", "translate").click()
    WebDriverWait(driver, 20).until(lambda _: driver.find_element("id", "translate").is_enabled())
    return shown(driver)


def shown(driver):
    """Return the translations that the page shows."""
    return [row.text for row in driver.find_elements("css selector", "#results .text")]


def said(driver):
    """Return the error messages that the page shows."""
    return [one.text for one in driver.find_elements("css selector", ".wrong") if one.text]


def test_page_shows_attention_of_a_word(driver, home):
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    engine = load_engine(home.run)
    # After only six updates, the model's outputs have arbitrary lengths, so the engine reverses the texts instead.
    engine.translate = lambda texts, nbest: [[Output(" ".join(text.split()[::-1]), -1.0)] for text in texts]
    with serving(application(engine)) as url:
        wanted = ["s3 s2 s1", "s5 s4"]
        driver.get(url)
        driver.find_element("id", "source").send_keys("s1 s2 s3\n\n s4 s5", Keys.CONTROL, Keys.ENTER)
        WebDriverWait(driver, 20).until(lambda _: driver.find_element("id", "state").text.endswith(" s"))
        assert shown(driver) == wanted
        assert driver.title == "reverse-toy"
        words = driver.find_elements("css selector", "#results .word")
        assert [word.text for word in words] == " ".join(wanted).split()
        words[1].send_keys(Keys.ENTER)  # select the word with the keyboard
        pinned = "#attention .queries .word.pinned"
        WebDriverWait(driver, 20).until(lambda _: driver.find_elements("css selector", pinned))
        assert driver.find_element("css selector", pinned).text == words[1].text
        assert words[1].get_attribute("aria-pressed") == "true"
        keys = driver.find_elements("css selector", "#attention .keys .word")
        assert [word.text for word in keys] == ["s1", "s2", "s3", "</s>"]
        assert driver.find_elements("css selector", "#attention svg path")
    assert complaints(driver) == []


def test_page_shows_scores_of_several_translations(driver):
    from selenium.webdriver.support.ui import Select

    with serving(application(Backwards())) as url:
        assert translate(driver, url, "one") == ["eno"]
        Select(driver.find_element("id", "nbest")).select_by_value("3")
        translate_again(driver, "one")
        rows = driver.find_elements("css selector", "#results ol > li")
        assert [row.text.split() for row in rows] == [["0.000", "eno"], ["-1.000", "eno1"], ["-2.000", "eno2"]]
    assert complaints(driver) == []


def test_page_offers_target_languages(driver):
    from selenium.webdriver.support.ui import Select

    engine = Backwards()
    with serving(application(engine)) as url:
        assert translate(driver, url, "one") == ["eno"]
        assert not driver.find_element("id", "to").is_displayed()
        engine.tags = {"de": "<2de>", "pt_BR": "<2pt_BR>"}
        assert translate(driver, url, "one") == ["eno >ed2<"]
        languages = Select(driver.find_element("id", "to"))
        assert [option.text for option in languages.options] == ["German", "Brazilian Portuguese"]
        languages.select_by_value("pt_BR")
        assert translate_again(driver, "one") == ["eno >RB_tp2<"]
    assert complaints(driver) == []


def test_page_splits_long_texts_into_requests(driver):
    lines = [f"line {i}" if i % 5 else "" for i in range(100)]
    with serving(application(Backwards(), Limits(texts=8))) as url:
        assert translate(driver, url, "\n".join(lines)) == [line[::-1] for line in lines if line]
        entries = driver.find_elements("css selector", "#results > li")
        assert [bool(entry.text) for entry in entries] == [bool(line) for line in lines]
    assert complaints(driver) == []


def test_page_shows_sentences_as_they_arrive(driver):
    from selenium.webdriver.support.ui import WebDriverWait

    pytest.importorskip("sentencex")
    engine, opened = Backwards(), threading.Event()
    translate_batch = engine.translate

    def translate_slowly(texts, nbest):
        return translate_batch(texts, nbest) if "One." in texts or opened.wait(20) else []

    engine.translate = translate_slowly
    with serving(application(engine, language="en")) as url:
        driver.get(url)
        driver.execute_script("document.getElementById('source').value = 'One. It fell.\\n\\nTwo.'")
        driver.find_element("id", "translate").click()
        WebDriverWait(driver, 20).until(lambda _: shown(driver) == [".enO"])
        assert driver.find_element("id", "state").text == "Translating …"
        opened.set()
        WebDriverWait(driver, 20).until(lambda _: driver.find_element("id", "translate").is_enabled())
        assert shown(driver) == [".enO .llef tI", ".owT"]
    assert complaints(driver) == []


def test_page_shows_rejected_line_in_place(driver):
    too_long, refused = "x" * 1041, "impossible"
    with serving(application(Backwards(), Limits(characters=1040))) as url:
        assert translate(driver, url, f"one\n{too_long}\ntwo\n{refused}") == ["eno", "owt"]
        assert said(driver) == [
            "2 of 4 lines could not be processed.",
            "This line is too long: it can have at most 1,040 characters. Put each sentence on its own line.",
            "This line could not be processed; it may be too long. Put each sentence on its own line.",
        ]
        entries = driver.find_elements("css selector", "#results > li")
        assert [bool(entry.find_elements("css selector", ".text")) for entry in entries] == [True, False] * 2
    assert all("422" in complaint for complaint in complaints(driver))


def test_page_clears_translation_on_error(driver):
    with serving(application(Backwards(), Limits(seconds=20.0))) as url:
        assert translate(driver, url, "one") == ["eno"]
        assert translate_again(driver, "  \n") == []
        assert said(driver) == ["Enter some text first."]
        assert translate_again(driver, "two") == ["owt"] and said(driver) == []
        assert translate_again(driver, "fault") == []
        assert said(driver) == ["Something went wrong on the server. Its log has the details."]
        translate_again(driver, "three")
    assert translate_again(driver, "four") == []
    assert said(driver) == ["The server cannot be reached. Check that it is running and try again."]
    complaints(driver)


def test_page_says_that_server_is_busy(driver, monkeypatch):
    def full(self, items, tokens, seconds, gradually):
        raise QueueFull()

    monkeypatch.setattr(Batcher, "queued", full)
    with serving(application(Backwards())) as url:
        assert translate(driver, url, "one") == []
        assert said(driver) == ["The server is busy. Try again in a moment."]
    complaints(driver)


def test_page_splits_words_without_spaces(driver):
    engine, text = Backwards(shows_attention=True), "我喜欢Python编程。 ein 👍🏽."
    engine.translate = lambda texts, nbest: [[Output(text, 0.0)] for text in texts]
    with serving(application(engine)) as url:
        assert translate(driver, url, text) == [text]
        words = [word.text for word in driver.find_elements("css selector", "#results .word")]
    assert words[0] == "我" and {"Python", "。"} < set(words)  # word boundaries depend on the browser
    assert words[-2:] == ["ein", "👍🏽."]
    assert complaints(driver) == []


def test_page_shows_right_to_left_text(driver):
    with serving(application(Backwards())) as url:
        assert translate(driver, url, "القط ينام") == ["القط ينام"[::-1]]
        for place in ("#source", "#results .text"):
            element = driver.find_element("css selector", place)
            assert driver.execute_script("return getComputedStyle(arguments[0]).direction", element) == "rtl"
    assert complaints(driver) == []


def test_page_draws_parse_tree(driver):
    with serving(application(Backwards(trees=True))) as url:
        tree = "(S (NP (DT The) (NN dog)))"
        assert translate(driver, url, tree[::-1]) == [tree]
        drawn = driver.find_element("css selector", "#results .tree svg")
        assert [text.text for text in drawn.find_elements("css selector", "text")] == "S NP DT NN The dog".split()
    assert complaints(driver) == []
