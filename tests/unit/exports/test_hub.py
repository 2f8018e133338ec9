"""Tests of uploads to a local stand-in for the Hugging Face hub."""

import sys

import pytest
from helpers.hub import stand_in_hub

from keras_transformer import export
from keras_transformer.exports.hub import check_upload, upload
from keras_transformer.utils.errors import UserError


@pytest.fixture
def hub(monkeypatch, tmp_path):
    constants = pytest.importorskip("huggingface_hub.constants")
    with stand_in_hub("hf_of_the_test") as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
        monkeypatch.setenv("HF_TOKEN", hub.token)
        yield hub


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_export_uploads_all_files(hub, trained_run, tmp_path, capsys):
    flags = ["--format=huggingface", f"--run={trained_run}", "--push_to_hub=someone/toy-en-tr"]
    export.main([*flags, f"--output_dir={tmp_path}/exported"])
    assert capsys.readouterr().out.splitlines()[-1] == f"uploaded it to {hub.url}/someone/toy-en-tr"
    first = contents(tmp_path / "exported")
    assert hub.files == {"someone/toy-en-tr": first}
    assert hub.private == {"someone/toy-en-tr": True}
    export.main([*flags, f"--output_dir={tmp_path}/exported", "--checkpoint=last", "--force"])
    assert hub.files == {"someone/toy-en-tr": contents(tmp_path / "exported")}  # the second upload replaced the files
    assert hub.files["someone/toy-en-tr"]["export.json"] != first["export.json"]


def test_upload_names_reason_of_rejection(hub, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    said = "rejected the upload to another/model: You don't have the rights .*hf upload --private another/model"
    with pytest.raises(UserError, match=said):
        upload(tmp_path, "another/model")
    hub.token = "hf_changed"
    with pytest.raises(UserError, match="rejected the upload to someone/model: Invalid username or password"):
        upload(tmp_path, "someone/model")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="127.0.0.1:9 rejected the upload to someone/model: .*refused"):
        upload(tmp_path, "someone/model")
    assert not hub.files


def test_check_upload_names_what_is_missing(hub, monkeypatch):
    for name in ("model", "a/b/c", "some one/model", "someone/"):
        with pytest.raises(UserError, match=f"--push_to_hub must have the form USER/NAME, got '{name}'"):
            check_upload(name)
    check_upload("someone/model")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UserError, match="needs an access token"):
        check_upload("someone/model")


def test_check_upload_names_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"pip install 'keras-transformer-toolkit\[huggingface\]'"):
        check_upload("someone/model")
