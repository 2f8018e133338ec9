"""Tests of text and SVG drawings of trees, and of the command `trees`."""

import gzip
import re
import unicodedata
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.parsing.drawing import FONT_SIZES, columns, pixels, svg_drawing, text_drawing
from keras_transformer.parsing.tree import DEEPEST, Tree, escaped, read_trees, tree_of

COMMAND = "trees"
SVG = "{http://www.w3.org/2000/svg}"

CAT = "(S (NP (DT the) (NN cat)) (VP (VBZ sees) (NP (PRP it))) (. .))"
CAT_DRAWN = """\
            S
   ┌────────┴─┬──────┐
   │         VP      │
   │        ┌─┴──┐   │
  NP        │   NP   │
 ┌─┴──┐     │    │   │
DT   NN    VBZ  PRP  .
the  cat  sees  it   ."""

words = st.text("aW.é東カ<&>\"'$", min_size=1, max_size=9) | st.sampled_from(["(", ")", "{", "e\u0301", "क्षि"])
labels = st.text("NPVWX-", min_size=1, max_size=12)
tags = st.builds(lambda label, word: Tree(label, (), escaped(word)), labels, words)
trees = st.recursive(
    tags,
    lambda inner: st.builds(Tree, labels, st.lists(inner, min_size=1, max_size=4).map(tuple), st.none()),
    max_leaves=20,
)


def text_of(word):
    """Return the word with brackets instead of their Penn Treebank escapes."""
    return word.replace("-LRB-", "(").replace("-RRB-", ")").replace("-LCB-", "{").replace("-RCB-", "}")


def nodes(tree):
    return [tree, *(node for child in tree.children for node in nodes(child))]


# Text


def read_back(drawing):
    """Return the `Tree` of a text drawing by following its lines from the root."""
    grid = []  # grid[line][column] is a character with its combining marks
    for line in drawing.split("\n"):
        cells = []
        for char in line:
            if unicodedata.category(char) == "Mn":
                cells[-1] += char
            else:
                cells += [char, ""] if unicodedata.east_asian_width(char) == "W" else [char]
        grid.append(cells)

    def cell(row, column):
        return grid[row][column] if 0 <= column < len(grid[row]) else " "

    def text_at(row, column):
        """Return the text whose centre is at `column`."""
        first = last = column
        while cell(row, first - 1) != " ":
            first -= 1
        while cell(row, last + 1) != " ":
            last += 1
        assert column == first + (last + 1 - first) // 2
        return "".join(grid[row][first : last + 1])

    def read(row, column):
        label = text_at(row, column)
        if row == len(grid) - 2:
            return Tree(label, (), escaped(text_at(row + 1, column)))
        places, line = [column], cell(row + 1, column)
        if line != "│":
            assert line in "┴┼"
            first = last = column
            while cell(row + 1, first) != "┌":
                first -= 1
            while cell(row + 1, last) != "┐":
                last += 1
            places = [place for place in range(first, last + 1) if cell(row + 1, place) in "┌┬┼┐"]
            assert first + last in (2 * column, 2 * column + 1)
        children = []
        for place in places:
            below = row + 2
            while cell(below, place) == "│":
                below += 1
            children.append(read(below, place))
        return Tree(label, tuple(children))

    top = [column for column, char in enumerate(grid[0]) if char != " "]
    return read(0, top[0] + len(top) // 2)


def test_text_drawing_of_small_tree():
    assert text_drawing(tree_of(CAT)) == CAT_DRAWN


@pytest.mark.parametrize(
    ("tree", "lines"),
    [
        ("(NN word)", [" NN", "word"]),
        ("( (S (NN a)))", [" •", " │", " S", " │", "NN", " a"]),
        ("(X (A a) (B b) (C c))", ["   X", "┌──┼──┐", "A  B  C", "a  b  c"]),
    ],
    ids=["word", "empty label", "middle child"],
)
def test_text_drawing_of_small_shapes(tree, lines):
    assert text_drawing(tree_of(tree)).split("\n") == lines


def test_text_drawing_of_wide_label():
    assert text_drawing(tree_of("(VERY-LONG-LABEL (A (B b) (C c)) (D (E e)))")).split("\n") == [
        "VERY-LONG-LABEL",
        "     ┌─┴──┐",
        "     A    D",
        "    ┌┴─┐  │",
        "    B  C  E",
        "    b  c  e",
    ]


def test_text_drawing_counts_wide_characters_and_marks():
    assert [columns(text) for text in ("東京", "ｱ", "e\u0301", "", "Ａb", "👍")] == [4, 1, 1, 0, 3, 2]
    drawing = text_drawing(tree_of("(S (NN 東京) (NP (NN e\u0301te\u0301) (NN ネコ)))"))
    assert drawing.split("\n") == [
        "      S",
        "  ┌───┴───┐",
        "  │      NP",
        "  │    ┌──┴──┐",
        " NN   NN    NN",
        "東京  e\u0301te\u0301  ネコ",
    ]


def test_drawings_replace_control_characters():
    tree = tree_of("(NN a\x1b[31mb\u2028c\x85\ufffe)")
    assert text_drawing(tree).split("\n")[-1] == "a\ufffd[31mb\ufffdc\ufffd\ufffd"
    (word,) = texts_of(svg_drawing(tree), "words")
    assert word.text == "a\ufffd[31mb\ufffdc\ufffd\ufffd"


@given(trees)
def test_text_drawing_has_no_trailing_blanks(tree):
    lines = text_drawing(tree).split("\n")
    assert all(line and not line[-1].isspace() for line in lines)
    assert any(not line.startswith(" ") for line in lines)  # the leftmost text is in the first column


@given(trees)
def test_text_drawing_can_be_read_back(tree):
    assert read_back(text_drawing(tree)) == tree


def test_drawings_of_gum_trees(test_data):
    paths = sorted((test_data / "gum").glob("*.ptb"))
    if not paths:
        pytest.skip("the GUM corpus is missing")
    for path in paths[::40]:
        with open(path, encoding="utf-8") as file:
            for tree in read_trees(file, path):
                # Replace square brackets: drawings show -LSB- as [, which `read_back` does not convert back.
                plain = tree_of(str(tree).replace("[", "<").replace("-LSB-", "<").replace("-RSB-", ">"))
                assert read_back(text_drawing(plain)) == plain
                ElementTree.fromstring(svg_drawing(tree))


def test_drawings_of_deepest_tree():
    tree = tree_of("(X " * (DEEPEST - 1) + "(NN word)" + ")" * (DEEPEST - 1))
    assert text_drawing(tree).count("X") == DEEPEST - 1
    assert len(texts_of(svg_drawing(tree), "labels")) == DEEPEST - 1


# SVG


def group(svg, kind):
    """Return the elements of the `<g>` element with the class `kind` in an SVG."""
    (found,) = [element for element in ElementTree.fromstring(svg).iter(f"{SVG}g") if element.get("class") == kind]
    return list(found)


def texts_of(svg, kind):
    texts = group(svg, kind)
    assert all(element.tag == f"{SVG}text" for element in texts)
    return texts


def boxes(svg):
    """Return the estimated bounding boxes of all texts as a list of (left, right, top, bottom)."""
    return [
        (x - pixels(text.text, kind) / 2, x + pixels(text.text, kind) / 2, y - FONT_SIZES[kind], y)
        for kind in FONT_SIZES
        for text in texts_of(svg, kind)
        for x, y in [(int(text.get("x")), int(text.get("y")))]
    ]


@given(trees)
def test_svg_has_all_words_and_labels(tree):
    svg = svg_drawing(tree)
    spoken = [text_of(word) for word in tree.words()]
    assert [text.text for text in texts_of(svg, "words")] == spoken
    assert [text.text for text in texts_of(svg, "tags")] == [leaf.label for leaf in tree.leaves()]
    assert [text.text for text in texts_of(svg, "labels")] == [n.label for n in nodes(tree) if n.word is None]
    assert ElementTree.fromstring(svg).find(f"{SVG}title").text == " ".join(spoken)


@given(trees)
def test_svg_texts_do_not_overlap(tree):
    svg = svg_drawing(tree)
    width, height = (int(ElementTree.fromstring(svg).get(name)) for name in ("width", "height"))
    found = sorted(boxes(svg))
    for i, (left, right, top, bottom) in enumerate(found):
        assert 0 < left and right < width and 0 < top and bottom < height
        beside = [other for other in found[i + 1 :] if other[2] < bottom and top < other[3]]
        assert all(right < other[0] for other in beside)


@given(trees)
def test_svg_lines_join_parents_and_children(tree):
    """Check that each line starts just below a label and ends just above a label or tag."""
    svg = svg_drawing(tree)
    below, above = set(), set()
    for path in group(svg, "lines"):
        x, y, *rest = map(int, re.findall(r"\d+", path.get("d")))
        below.add((x, y - 6))
        above.add((rest[-3] if rest[1:] else x, rest[-1]))

    def places(*kinds):
        return {(int(text.get("x")), int(text.get("y"))) for kind in kinds for text in texts_of(svg, kind)}

    assert below == places("labels")
    assert len(places("labels", "tags") - {(x, y + 14) for x, y in above}) == 1
    assert len(group(svg, "lines")) == len(above) == len(nodes(tree)) - 1


def test_svg_escapes_texts():
    svg = svg_drawing(tree_of('(S (NN "<&>") (NN ]]>))'))
    assert "&lt;&amp;&gt;" in svg and "]]&gt;" in svg and svg.count("http") == 1  # the only URL is the XML namespace


# The command

TREES = f"{CAT}\n(NP (DT a)\n    (NN dog))\n\n( (S (NP (PRP it)) (VP (VBZ works))))\n"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "trees.ptb"
    path.write_text(TREES, encoding="utf-8")
    return path


def test_trees_command_draws_text(call, file):
    out = call(COMMAND, f"--input={file}").succeeded()
    assert out[: CAT_DRAWN.count("\n") + 2] == [*CAT_DRAWN.split("\n"), ""]
    assert out == "\n\n".join(map(text_drawing, read_trees(TREES.split("\n")))).split("\n")


def test_trees_command_writes_lines(call, file):
    out = call(COMMAND, f"--input={file}", "--format=line").succeeded()
    assert out == [CAT, "(NP (DT a) (NN dog))", "( (S (NP (PRP it)) (VP (VBZ works))))"]


def test_trees_command_writes_indented_brackets(call, tmp_path):
    long = f"(S {CAT} {CAT})"
    (tmp_path / "trees.ptb").write_text(f"{long}{CAT}")
    out = call(COMMAND, f"--input={tmp_path}/trees.ptb", "--format=pretty").succeeded()
    assert out == ["(S", f"  {CAT}", f"  {CAT})", "", CAT]


def test_trees_command_writes_svg_files(call, file, tmp_path):
    out = call(COMMAND, f"--input={file}", "--format=svg", f"--output_dir={tmp_path}/new/pictures").succeeded()
    paths = [tmp_path / "new" / "pictures" / f"tree-000{number}.svg" for number in (1, 2, 3)]
    assert out == [str(path) for path in paths] and sorted((tmp_path / "new" / "pictures").iterdir()) == paths
    for path, tree in zip(paths, read_trees(TREES.split("\n"))):
        assert path.read_text(encoding="utf-8") == svg_drawing(tree)


def test_trees_command_selects_one_tree(call, file, tmp_path):
    assert call(COMMAND, f"--input={file}", "--number=2", "--format=line").succeeded() == ["(NP (DT a) (NN dog))"]
    assert call(COMMAND, f"--input={file}", "--number=2").succeeded() == ["  NP", " ┌─┴─┐", "DT  NN", " a  dog"]
    call(COMMAND, f"--input={file}", "--number=3", "--format=svg", f"--output_dir={tmp_path}/out").succeeded()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tree-0003.svg"]


def test_trees_command_reads_gzip(call, tmp_path):
    with gzip.open(tmp_path / "trees.gz", "wt", encoding="utf-8") as packed:
        packed.write(TREES)
    assert len(call(COMMAND, f"--input={tmp_path}/trees.gz", "--format=line").succeeded()) == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("(S (NN a))\n(S\n  ())\n", "trees.ptb:3: () is empty"),
        ("(S (NN a))\n\n(S (NN b)\n", "trees.ptb:3: the tree that begins here is not closed"),
        ("(S (NN a)) b\n", "trees.ptb:1: 'b' is outside of the trees"),
        ("\n \n", "trees.ptb contains no trees"),
        ("", "trees.ptb is empty"),
    ],
)
def test_trees_command_rejects_bad_trees(call, tmp_path, content, said):
    (tmp_path / "trees.ptb").write_text(content)
    call(COMMAND, f"--input={tmp_path}/trees.ptb").refused(said)


def test_trees_command_rejects_missing_tree_or_file(call, file, tmp_path):
    call(COMMAND, f"--input={file}", "--number=4").refused("--number must be at most 3")
    call(COMMAND, f"--input={file}", "--number=0").refused("--number", "from 1 to")
    call(COMMAND, f"--input={tmp_path}/tres.ptb").refused("tres.ptb does not exist")


def test_trees_command_rejects_conflicting_flags(call, file, tmp_path):
    call(COMMAND, f"--input={file}", "--format=svg").refused("--format=svg requires --output_dir")
    call(COMMAND, f"--input={file}", f"--output_dir={tmp_path}/out").refused("--output_dir requires --format=svg")
    call(COMMAND, f"--input={file}", "--format=png").refused("'png'")
    assert not (tmp_path / "out").exists()
