"""Check the wording of docstrings, comments, help texts, error messages, test names and Markdown.

    python docs/wording.py              # the whole project
    python docs/wording.py PATH ...     # some files or folders
    python docs/wording.py --count      # the number of findings per file

Prints `file:line: finding`, one per line, and exits with status 1 if there are any.
"""

import argparse
import ast
import collections
import json
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONGEST_SENTENCE = 35  # words
LONGEST_TEST_NAME = 60  # characters

NOUN = "directory|file|folder|number|run|problem|model|name|checkpoint|tree|treebank|word|text|path|language|table"
COUNTED = (
    "tokens|sentences|nats|updates|requests|trees|words|operations|bytes|texts|beams|rows|MB|GB|ms|s|seconds|times"
)
UNIT = "seconds?|tokens?|updates?|minutes?|hours?|sentences?|batch|steps?|trees?|words?|requests?|texts?|cores?"
BANNED = {  # phrase: better wording
    r"trainings|(?:a|one|each|every|another|both) training(?= *[.,;:)]|$| (?:that|which|is|was|has|with|and))": "run",
    r"tells?|telling|told": "prints, reports, logs, warns",
    r"says|said": "prints, reports, states",
    r"go(?:es|ing)? on|went on": "continues, resumes",
    r"broken off|breaks? off|broke off": "interrupted, stopped",
    r"mend(?:s|ed|ing)?|made up for": "fix, recover",
    r"(?:is|are|was|were|be) none": "is missing, has no …",
    rf"(?<!there )is no (?:{NOUN})": "is not a …",
    r"(?:is|are|was|were) gone": "is missing",
    r"anew|once more": "again",
    r"so many": "the number of …",
    rf"(?:{COUNTED}) an? (?:{UNIT})": "per",
    r"beside": "next to, compared with",
    r"(?:stands?|stood|lies?|lay) in": "is in, is stored in",
    r"in place of|in turn|likewise|at last": "instead of, one after the other, also, finally",
    r"what (?:is|was|were) (?:measured|read|asked|written|found|done)": "a noun, such as: the measurement",
    r"slices of (?:a|the) batch|batch's slices|pieces of (?:a|the) batch": "micro-batches",
    r"first worker": "chief",
    r"same bits": "bit-for-bit identical",
    r"way around": "workaround",
    r"faults of libraries": "upstream bugs",
    r"the data's way|the house": "data flow, package layout",
    r"(?:illegal|impossible) (?:scores?|tokens?|symbols?)": "masked",
    r"(?:is|are|was|were|be) (?:told|taken|left out|refused|asked)": "an active verb with its actor",
    r"(?:has|have|had|does|do) not(?= *[.;)]|$)": "a complete clause",
    r",? too(?= *[.;:)]|$)": "also",
    r"(?:by itself|by themselves)(?= *[.;)]|$)|on its own part": "automatically",
    r"(?:trains?|computes?|writes?) along": "takes part",
    r"whose turn|as wanted|of what is|of what was": "a noun",
}
PATTERNS = {re.compile(rf"(?<![\w-])(?:{phrase})(?![\w-])", re.IGNORECASE): word for phrase, word in BANNED.items()}
BEGINNING = re.compile(r"[|#>]|([-*+]|\d+\.) |\w+(, \w+)*: |:::|[^ ]+ *:$")  # of a paragraph, list item or cell
SECTION = re.compile(r"[A-Z][a-z]+( [a-z]+)?:$")  # of a docstring, such as "Args:"
OPENERS = ("What", "How", "Whether", "Where", "Of", "As", "So")
# Words that end in s and are no verbs in the third person.
PLAIN = ("Yes", "Pass", "Process", "Compress", "Discuss", "Express", "Focus", "Access", "Address", "Guess")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders, default the whole project")
    parser.add_argument("--count", action="store_true", help="print the number of findings per file only")
    flags = parser.parse_args(arguments)
    found = collections.Counter()
    for path in files(flags.paths or [ROOT]):
        for line, finding in sorted(set(check(path))):
            found[path] += 1
            if not flags.count:
                print(f"{relative(path)}:{line}: {finding}")
    for path, count in found.most_common() if flags.count else ():
        print(f"{count:5} {relative(path)}")
    if found:
        print(f"{found.total()} findings in {len(found)} files", file=sys.stderr)
    return 1 if found else 0


def relative(path):
    """Return the path below the project's folder, or the path itself outside of it."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def files(paths):
    """Yield the Python, Markdown and notebook files that git knows below the paths."""
    for path in paths:
        names = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", path.resolve()],
            cwd=ROOT, check=True, capture_output=True, text=True,
        ).stdout.split("\0")  # fmt: skip
        yield from (ROOT / name for name in names if name.endswith((".py", ".md", ".ipynb")) and (ROOT / name).exists())


def check(path):
    """Return the findings of a file, a list of (line, finding)."""
    text = path.read_text(encoding="utf-8")
    if path == Path(__file__).resolve():  # it lists the banned phrases
        return []
    if path.suffix == ".py":
        return list(check_python(text, path))
    if path.suffix == ".md":
        return list(check_markdown(text))
    cells = json.loads(text)["cells"]
    return [
        (1 + index, f"cell: {finding}")
        for index, cell in enumerate(cells)
        for source in ["".join(cell["source"])]
        for _, finding in (check_markdown(source) if cell["cell_type"] == "markdown" else check_comments(source))
    ]


def check_python(text, path):
    """Yield the findings of Python source."""
    yield from check_comments(text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            yield from check_docstring(node)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and path.name.startswith("test_"):
            if len(node.name) > LONGEST_TEST_NAME:
                yield node.lineno, f"test name of {len(node.name)} characters, at most {LONGEST_TEST_NAME}"
        if isinstance(node, ast.Call):
            yield from check_messages(node)


def check_docstring(node):
    docstring = ast.get_docstring(node)
    if docstring is None:
        return
    line = node.body[0].lineno
    first = docstring.split(maxsplit=1)[0].rstrip(".,:;") if docstring else ""
    decorators = [ast.unparse(decorator) for decorator in getattr(node, "decorator_list", ())]
    is_property = any("property" in name or "fixture" in name for name in decorators)
    if first in OPENERS:
        yield line, f"docstring starts with {first!r}"
    elif isinstance(node, ast.FunctionDef) and not is_property and re.fullmatch(r"[A-Z][a-z]+s", first):
        if first not in PLAIN:
            yield line, f"docstring starts with {first!r}, not with an imperative verb"
    for paragraph, offset in paragraphs(docstring):
        yield from check_prose(paragraph, line + offset)


def check_messages(call):
    """Yield the findings of help texts and of the messages of errors, warnings and logs."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    texts = [keyword.value for keyword in call.keywords if keyword.arg in ("help", "description", "epilog")]
    if name.endswith(("Error", "Warning")) or name in ("warn", "info", "warning", "error", "report", "print"):
        texts += call.args
    for text in texts:
        if words := literal(text):
            yield from check_prose(words, text.lineno)
            if ";" in words and text not in call.args:
                yield text.lineno, "semicolon in a help text"


def literal(node):
    """Return the text of a string or f-string, with X for each value, or None for other expressions."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
    return None


def check_comments(text):
    """Yield the findings of comments; adjacent lines of comments are one text."""
    lines, block, start = iter(text.splitlines(keepends=True)), [], 0
    try:
        tokens = [
            token for token in tokenize.generate_tokens(lambda: next(lines, "")) if token.type == tokenize.COMMENT
        ]
    except (tokenize.TokenError, IndentationError, SyntaxError):  # a notebook's cell with a shell command
        return
    for token in [*tokens, None]:
        whole_line = token is not None and not token.line[: token.start[1]].strip()
        if block and not (whole_line and token.start[0] == start + len(block)):
            yield from check_prose(" ".join(block), start)
            block = []
        if token is not None:
            start = start if block else token.start[0]
            block.append(re.sub(r"^#+:? ?|(fmt|type|noqa|ruff|pragma):.*$", "", token.string))


def check_markdown(text):
    """Yield the findings of Markdown outside of code blocks; a table is checked cell by cell."""
    text = re.sub(r"^( *)(```|~~~).*?^\1\2", lambda code: "\n" * code[0].count("\n"), text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->", lambda comment: "\n" * comment[0].count("\n"), text, flags=re.S)
    for paragraph, line in paragraphs(text):
        yield from check_prose(paragraph, 1 + line)


def paragraphs(text):
    """Yield (text, line) of paragraphs, list items and cells; skip indented code."""
    block, start, section = [], 0, ""
    for number, line in enumerate([*text.splitlines(), ""]):
        stripped = line.strip()
        if block and (not stripped or BEGINNING.match(stripped)):
            yield " ".join(block), start
            block = []
        section = stripped if line[:1].strip() else section
        if stripped.startswith("|"):
            yield from ((cell, number) for cell in re.split(r"(?<!\\)\|", stripped))
        elif block or (stripped and (SECTION.match(section) or not line.startswith("    "))):
            start = start if block else number
            block.append(re.sub(r"^([-*+]|\d+\.) ", "", stripped))


def check_prose(text, line):
    """Yield the findings of running text: banned phrases, openers and long sentences."""
    text = re.sub(r"``.*?``|`[^`]*`", "X", text)
    text = re.sub(r"\$[^$]+\$|\]\([^)]*\)|https?://\S+|\{[a-z]+\}", "X", text)
    for pattern, better in PATTERNS.items():
        for match in pattern.finditer(text):
            yield line, f"{match[0]!r}: write {better}"
    for sentence in re.split(r"(?<=[.!?])[\"')*]* +(?=[A-Z(\"'*])", text):
        if sentence.startswith("Of "):
            yield line, "sentence starts with 'Of'"
        words = re.findall(r"[A-Za-z0-9][\w'’-]*", sentence)
        if len(words) > LONGEST_SENTENCE:
            yield line, f"sentence of {len(words)} words, at most {LONGEST_SENTENCE}: {' '.join(words[:6])} …"


if __name__ == "__main__":
    sys.exit(main())
