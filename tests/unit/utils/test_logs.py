"""Tests of the package's log on the terminal."""

import logging

import pytest
from helpers.logs import logged_lines

from keras_transformer.utils.logs import LOGGER, default_log, silent_log, terminal_log

logger = logging.getLogger("keras_transformer.some.module")


def log_both():
    logger.info("a line of %s", "progress")
    logger.warning("a damaged file")


def test_terminal_log_prints_plain_lines_and_marks_warnings(capsys):
    with terminal_log():
        log_both()
    assert capsys.readouterr() == ("a line of progress\nwarning: a damaged file\n", "")


def test_terminal_log_nests_and_restores(capsys):
    before = LOGGER.handlers, LOGGER.level, LOGGER.propagate
    with terminal_log(logging.WARNING, "stderr"):
        with terminal_log():
            log_both()
        log_both()
    assert (LOGGER.handlers, LOGGER.level, LOGGER.propagate) == before
    out, err = capsys.readouterr()
    assert out.count("\n") == 2 and err == "warning: a damaged file\n"


def test_default_log_prints_without_configuration(capsys):
    with default_log():
        log_both()
    assert capsys.readouterr().out.startswith("a line of progress\n")


@pytest.mark.parametrize("root", [False, True])
def test_default_log_respects_the_application(root, capsys, caplog):
    with caplog.at_level(logging.INFO, None if root else LOGGER.name), default_log():
        log_both()
    assert caplog.messages == ["a line of progress", "a damaged file"]
    assert capsys.readouterr().out == ""


def test_silent_log_drops_all_lines():
    with logged_lines() as lines:
        with silent_log():
            log_both()
        logger.info("again")
    assert lines == ["again"]
