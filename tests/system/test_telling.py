"""What the library says by itself: on standard error, unless users say otherwise by its logger."""

import logging

import pytest

from torchdismech.system.telling import tell


@pytest.fixture
def logger():
    """The logger, as it is before users have asked for it."""
    logger = logging.getLogger("torchdismech")
    yield logger
    logger.setLevel(logging.NOTSET)
    logger.handlers.clear()


def test_it_is_said_on_standard_error(logger, capsys):
    """Say it once, after the library's name."""
    tell("something takes long")
    assert capsys.readouterr().err == "torchdismech: something takes long\n"


def test_it_can_be_silenced(logger, capsys):
    """Say nothing where the level is above INFO."""
    logger.setLevel(logging.WARNING)
    tell("something takes long")
    assert not capsys.readouterr().err


def test_it_can_be_sent_elsewhere(logger, capsys, tmp_path):
    """Say it to the user's handler alone."""
    logger.addHandler(logging.FileHandler(tmp_path / "log"))
    logger.setLevel(logging.INFO)
    tell("something takes long")
    assert (tmp_path / "log").read_text() == "something takes long\n"
    assert not capsys.readouterr().err
