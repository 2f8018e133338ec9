"""Tests of files that contain both sides of parallel text."""

import gzip
import json
import lzma
import tracemalloc

import pytest

from keras_transformer.data.pair_files import is_pair_file, read_pair_file
from keras_transformer.utils.errors import UserError

PAIRS = [("A dog.", "Ein Hund."), ('He said "no".', '"Nein", sagte er.'), ("½ m² …", "Größe：１")]


def tmx(*units, header='<header srclang="en"/>', attribute="xml:lang"):
    """Return a TMX document. Each unit is a dictionary {language: text of <seg>}."""
    body = "".join(
        "<tu>" + "".join(f'<tuv {attribute}="{code}"><seg>{seg}</seg></tuv>' for code, seg in unit.items()) + "</tu>"
        for unit in units
    )
    return f'<?xml version="1.0"?><tmx version="1.4">{header}<body>{body}</body></tmx>'


def read(path, text, source="en", target="de"):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(read_pair_file(path, source, target))


def complaint(path, text, **languages):
    with pytest.raises(UserError) as error:
        read(path, text, **languages)
    return str(error.value)


def test_tsv_columns_are_source_and_target(tmp_path):
    text = "".join(f"{source}\t{target}\n" for source, target in PAIRS)
    assert read(tmp_path / "train.tsv", text) == PAIRS
    assert read(tmp_path / "train.tsv", "en\tde\n" + text) == PAIRS


@pytest.mark.parametrize("header", ["de\ten", "DE\t En"])
def test_tsv_header_sets_column_order(tmp_path, header):
    text = f"{header}\n" + "".join(f"{target}\t{source}\n" for source, target in PAIRS)
    assert read(tmp_path / "train.tsv", text) == PAIRS


@pytest.mark.parametrize("line, count", [("only one", 1), ("one\ttwo\tthree", 3)])
def test_tsv_wrong_column_count_names_line(tmp_path, line, count):
    message = complaint(tmp_path / "train.tsv", f"a\tb\n{line}\n")
    assert message.startswith(f"{tmp_path}/train.tsv:2: the line must have 2 columns") and message.endswith(
        f"got {count}"
    )


def test_jsonl_reads_both_layouts(tmp_path):
    flat = [json.dumps({"de": target, "id": 1, "en": source}) for source, target in PAIRS]
    nested = [json.dumps({"translation": {"en": source, "de": target}}, ensure_ascii=False) for source, target in PAIRS]
    assert read(tmp_path / "train.jsonl", "\n".join(flat + nested)) == PAIRS + PAIRS


def test_jsonl_keeps_rows_with_text_about_the_translation(tmp_path):
    rows = [{"en": source, "de": target, "translation": "human"} for source, target in PAIRS]
    assert read(tmp_path / "train.jsonl", "\n".join(map(json.dumps, rows))) == PAIRS


def test_jsonl_half_of_a_surrogate_pair_is_replaced(tmp_path):
    text = '{"en": "a \\ud83d\\ude00 b", "de": "a \\ud83d b"}\n'
    assert read(tmp_path / "train.jsonl", text) == [("a 😀 b", "a \ufffd b")]


@pytest.mark.parametrize(
    "line", ['{"en": "x"}', '{"en": "x", "de": 3}', '["x", "y"]', "{", "[" * 100_000, "3", "", "1" * 5000]
)
def test_jsonl_bad_line_is_named(tmp_path, line):
    good = json.dumps({"en": "a", "de": "b"})
    assert complaint(tmp_path / "train.jsonl", f"{good}\n{line}\n").startswith(f"{tmp_path}/train.jsonl:2: ")


def test_tmx_matches_variants_of_languages(tmp_path):
    text = tmx({"en-US": "A dog.", "de-DE": "Ein Hund."}, {"DE": "Zwei", "EN": "Two", "fr": "Deux"})
    assert read(tmp_path / "memory.tmx", text) == [("A dog.", "Ein Hund."), ("Two", "Zwei")]
    assert read(tmp_path / "memory.tmx", text, "en-us", "de-de") == [("A dog.", "Ein Hund.")]
    text = text.replace("en-US", "en_US")
    assert read(tmp_path / "memory.tmx", text, "en_US", "de_DE") == [("A dog.", "Ein Hund.")]


def test_tmx_prefers_the_exact_language(tmp_path):
    text = tmx({"pt-BR": "trem", "pt": "comboio", "en": "train"})
    assert read(tmp_path / "memory.tmx", text, "en", "pt") == [("train", "comboio")]


def test_tmx_removes_formatting_codes_and_line_ends(tmp_path):
    segment = 'Press <bpt i="1">&lt;b&gt;</bpt>the <hi>red</hi>\n  button<ept i="1">&lt;/b&gt;</ept> &amp; wait<ph/>.'
    text = tmx({"en": segment, "de": "Warten."})
    assert read(tmp_path / "memory.tmx", text) == [("Press the red button & wait.", "Warten.")]


def test_tmx_old_attribute_and_other_encoding(tmp_path):
    text = tmx({"en": "size", "de": "Größe"}, attribute="lang").replace('"1.0"', '"1.0" encoding="utf-16"')
    assert read(tmp_path / "memory.tmx", text.encode("utf-16")) == [("size", "Größe")]


def test_tmx_skipped_units_are_counted(tmp_path, caplog):
    text = tmx({"en": "a", "de": "b"}, {"en": "c", "fr": "d"}, {"en": "e"})
    assert read(tmp_path / "memory.tmx", text) == [("a", "b")]
    assert "skipped 2 of 3 units because they lack en or de" in caplog.text
    caplog.clear()
    assert read(tmp_path / "memory.tmx", text) == [("a", "b")]
    assert not caplog.text  # `prepare` reads a file several times


def test_tmx_may_have_a_namespace(tmp_path):
    text = tmx({"en": "a <hi>b</hi>", "de": "c<ph>1</ph>"})
    text = text.replace("<tmx ", '<tmx xmlns="http://www.lisa.org/tmx14" ')
    assert read(tmp_path / "memory.tmx", text) == [("a b", "c")]


@pytest.mark.parametrize(
    "text, words",
    [
        (tmx({"en": "a", "fr": "b"}), "no translation unit in both en and de; the languages of its units are: en, fr"),
        (tmx(), "memory.tmx has no translation unit in both en and de"),
        (tmx({"en": "a\n<b", "de": "c"}), "memory.tmx:2: the file is not valid XML"),
        (tmx({"en": "<hi>" * 3000 + "</hi>" * 3000, "de": "c"}), "memory.tmx: unit 1 has too many nested elements"),
        ("", "memory.tmx:1: the file is not valid XML"),
        (b"\xff\xfe\xfa", "memory.tmx:1: the file is not valid XML"),
        ('<?xml version="1.0" encoding="GB2312"?>', "memory.tmx: the encoding is not supported"),
        ('<?xml version="1.0" encoding="FOO"?>', "memory.tmx: the encoding is not supported"),
    ],
)
def test_tmx_errors_are_named(tmp_path, text, words):
    assert words in complaint(tmp_path / "memory.tmx", text)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("name", ["train.tsv", "train.jsonl", "train.tmx"])
def test_pair_files_may_be_compressed(tmp_path, name, suffix):
    if suffix == ".zst":
        compress = pytest.importorskip("backports.zstd").compress
    else:
        compress = gzip.compress if suffix == ".gz" else lzma.compress
    texts = {
        "train.tsv": "".join(f"{source}\t{target}\n" for source, target in PAIRS),
        "train.jsonl": "\n".join(json.dumps({"en": source, "de": target}) for source, target in PAIRS),
        "train.tmx": tmx(*({"en": source, "de": target} for source, target in PAIRS)),
    }
    packed = compress(texts[name].encode())
    path = tmp_path / (name + suffix)
    assert is_pair_file(path)
    assert read(path, packed) == PAIRS
    assert complaint(path, packed[:-9]) == f"{path}: the compressed file is truncated. Create or download it again."
    assert "not a valid compressed file" in complaint(path, b"plain")


def test_missing_pair_file_is_named(tmp_path):
    with pytest.raises(UserError, match="gone.tmx does not exist"):
        list(read_pair_file(tmp_path / "gone.tmx", "en", "de"))


# Written by Translate Toolkit 3.20.
TRANSLATE_TOOLKIT = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4">
  <header creationtool="Translate Toolkit" creationtoolversion="3.20.4" segtype="sentence" o-tmf="UTF-8"
    adminlang="en" srclang="en" datatype="PlainText"/>
  <body>
    <tu srclang="en">
      <tuv xml:lang="en">
        <seg>A dog.</seg>
      </tuv>
      <tuv xml:lang="de">
        <seg>Ein Hund.</seg>
      </tuv>
    </tu>
  </body>
</tmx>
"""


def test_tmx_of_translate_toolkit_is_read(tmp_path):
    assert read(tmp_path / "memory.tmx", TRANSLATE_TOOLKIT) == [("A dog.", "Ein Hund.")]


def test_tmx_memory_is_independent_of_file_size(tmp_path):
    unit = '<tu><tuv xml:lang="en"><seg>a</seg></tuv><tuv xml:lang="de"><seg>b</seg></tuv></tu>'
    peaks = []
    for count in (1_000, 10_000):
        path = tmp_path / f"{count}.tmx"
        path.write_text(f"<tmx><body>{unit * count}</body></tmx>")
        tracemalloc.start()
        try:
            assert sum(1 for _ in read_pair_file(path, "en", "de")) == count
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0]
