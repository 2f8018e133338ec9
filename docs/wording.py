"""Check the wording of docstrings, comments, help texts, messages, test names and Markdown.

    python docs/wording.py              # all files that git knows
    python docs/wording.py PATH ...     # some files or folders
    python docs/wording.py --count      # number of findings per file

Prints `file:line: finding` and exits with status 1 if there are findings.
"""

import argparse
import ast
import collections
import io
import json
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_WORDS, MAX_TEST_NAME = 35, 60  # words per sentence, characters
OPENERS = ("What", "How", "Whether", "Where", "Of", "As", "So")  # words that must not begin a docstring
NOUNS_IN_S = ("Yes", "Pass", "Process", "Compress", "Discuss", "Express", "Focus", "Access", "Address", "Guess")
THING = "directory|file|folder|number|run|problem|model|name|checkpoint|tree|treebank|word|text|path|language|table"
AMOUNT = "tokens|sentences|nats|updates|requests|trees|words|operations|bytes|texts|beams|rows|MB|GB|ms|s|seconds|times"
UNIT = "seconds?|tokens?|updates?|minutes?|hours?|sentences?|batch|steps?|trees?|words?|requests?|texts?|cores?"
END = r"(?= *[.;:)]|$)"
BANNED = {  # phrase: better wording
    r"trainings|(?:a|one|each|every|another|both) training(?= *[.,;:)]|$| (?:that|which|is|was|has|with|and))": "run",
    r"tells?|telling|told": "print, report, log, warn",
    r"says|said": "print, report, state",
    r"go(?:es|ing)? on|went on": "continue, resume",
    r"broken off|breaks? off|broke off": "interrupt, stop",
    r"mend(?:s|ed|ing)?|made up for": "fix, recover",
    r"(?:is|are|was|were|be) (?-i:none)": "is missing, has no …",
    rf"(?<!there )is no (?:{THING})": "is not a …",
    r"(?:is|are|was|were) gone": "is missing",
    r"anew|once more": "again",
    r"so many": "the number of …",
    rf"(?:{AMOUNT}) an? (?:{UNIT})": "per",
    r"beside": "next to, compared with",
    r"(?:stands?|stood|lies?|lay) in": "is in",
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
    rf"(?:has|have|had|does|do) not{END}": "a complete clause",
    rf",? too{END}": "also",
    rf"(?:by itself|by themselves){END}|on its own part": "automatically",
    r"(?:trains?|computes?|writes?) along": "take part",
    r"whose turn|as wanted|of what is|of what was": "a noun",
    rf"of (?:its|their|your|our|my|his|her) own{END}": "its own …",
    rf"as well{END}": "also",
    r"equally (?:many|long|often)": "the same number, time",
    r"last but one|whole or not at all": "second to last, completely or not at all",
    r"of (?:ours|yours|theirs)|changes? places|like in": "our, your, their; are swapped; as in",
    r"at hand|goes into|from 0 on|to be had": "available, is part of, from 0",
    r"(?:costs?|asks?) nothing|nobody asks": "is free, needs no input",
    r"needs? not|is due to|a single one|the latter|the former": "does not have to, comes from, one, the noun",
    r"thereby|therein|thereof|hereby|whereby|wherein|hence|thus|upon|amongst|lest|ought|shall": "so, therefore, on",
    r"in order to(?! be)|by means of|in terms of|utili[sz]e(?:s|d)?": "to, by, a verb, use",
}
PATTERNS = {re.compile(rf"(?<![\w-])(?:{phrase})(?![\w-])", re.IGNORECASE): word for phrase, word in BANNED.items()}
# Lines that start a new paragraph, list item, table row or docstring entry
BEGINNING = re.compile(r"[|#>]|([-*+]|\d+\.) |\w+(, \w+)*: |:::|[^ ]+ *:$")
SECTION = re.compile(r"[A-Z][a-z]+( [a-z]+)?:$")  # section of a docstring, such as "Args:"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders (default: the whole project)")
    parser.add_argument("--count", action="store_true", help="print the number of findings per file only")
    flags = parser.parse_args(arguments)
    counts = collections.Counter()
    for path in files(flags.paths or [ROOT]):
        for line, finding in sorted(set(check(path.name, path.read_text(encoding="utf-8")))):
            counts[path.relative_to(ROOT)] += 1
            if not flags.count:
                print(f"{path.relative_to(ROOT)}:{line}: {finding}")
    for path, count in counts.most_common() if flags.count else ():
        print(f"{count:5} {path}")
    if counts:
        print(f"{counts.total()} findings in {len(counts)} files", file=sys.stderr)
    return int(bool(counts))


def files(paths):
    """Yield the Python, Markdown and notebook files below the paths that git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"]
    names = subprocess.run(
        command + [path.resolve() for path in paths], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    for path in (ROOT / name for name in names):
        if path.suffix in (".py", ".md", ".ipynb") and path.exists() and path != Path(__file__).resolve():
            yield path


def check(name, text):
    """Yield the findings (line, finding) in the text of a file."""
    if name.endswith(".py"):
        yield from check_comments(text)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                yield from check_definition(node)
            if isinstance(node, ast.Call):
                yield from check_call(node)
    elif name.endswith(".md"):
        yield from check_markdown(text)
    else:
        for number, cell in enumerate(json.loads(text)["cells"], start=1):
            check_cell = check_markdown if cell["cell_type"] == "markdown" else check_comments
            yield from ((number, f"cell: {finding}") for _, finding in check_cell("".join(cell["source"])))


def check_definition(node):
    """Yield the findings in the name and the docstring of a module, class or function."""
    name, docstring = getattr(node, "name", ""), ast.get_docstring(node)
    if name.startswith("test_") and len(name) > MAX_TEST_NAME:
        yield node.lineno, f"test name of {len(name)} characters, at most {MAX_TEST_NAME}"
    if not docstring:
        return
    line, first = node.body[0].lineno, docstring.split(maxsplit=1)[0].rstrip(".,:;")
    decorators = " ".join(map(ast.unparse, getattr(node, "decorator_list", ())))
    is_verb = re.fullmatch(r"[A-Z][a-z]+s", first) and first not in NOUNS_IN_S
    if first in OPENERS:
        yield line, f"docstring starts with {first!r}"
    elif is_verb and isinstance(node, ast.FunctionDef) and not re.search("property|fixture", decorators):
        yield line, f"docstring starts with {first!r}, not with an imperative verb"
    for paragraph, offset in paragraphs(docstring):
        yield from check_prose(paragraph, line + offset)


def check_call(node):
    """Yield the findings in help texts and in the messages of errors, warnings and logs."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    for keyword in node.keywords:
        if keyword.arg in ("help", "description", "epilog") and (text := literal(keyword.value)):
            yield from check_prose(text, keyword.value.lineno)
            if ";" in text:
                yield keyword.value.lineno, "semicolon in a help text"
    if name.endswith(("Error", "Warning")) or name in ("warn", "info", "warning", "error", "report", "print"):
        for argument in node.args:
            yield from check_prose(literal(argument), argument.lineno)


def literal(node):
    """Return the text of a string or f-string, with X for each value; "" for other expressions."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def check_comments(text):
    """Yield the findings in comments. Adjacent comment lines form one text."""
    block, start = [], 0
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, IndentationError, SyntaxError):  # notebook cell with a shell command
        return
    for token in [*(token for token in tokens if token.type == tokenize.COMMENT), None]:
        alone = token is not None and not token.line[: token.start[1]].strip()
        if block and not (alone and token.start[0] == start + len(block)):
            yield from check_prose(" ".join(block), start)
            block = []
        if token is not None:
            start = start if block else token.start[0]
            block.append(re.sub(r"^#+:? ?|(fmt|type|noqa|ruff|pragma):.*$", "", token.string))


def check_markdown(text):
    """Yield the findings in Markdown outside code. Each table cell is a separate text."""
    hidden = r"^( *)(```|~~~).*?^\1\2|<!--.*?-->"
    text = re.sub(hidden, lambda match: "\n" * match[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    for paragraph, line in paragraphs(text):
        yield from check_prose(paragraph, 1 + line)


def paragraphs(text):
    """Yield (text, line offset) of paragraphs, list items and table cells, without indented code."""
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
    """Yield the findings in running text: banned phrases, sentences that start with "Of", and long sentences."""
    text = re.sub(r"``.*?``|`[^`]*`", "X", text)
    text = re.sub(r"\$[^$]+\$|\]\([^)]*\)|https?://\S+|\{[a-z]+\}", "X", text)
    for pattern, better in PATTERNS.items():
        for match in pattern.finditer(text):
            yield line, f"{match[0]!r}: write {better}"
    for sentence in re.split(r"(?<=[.!?])[\"')*]* +(?=[A-Z(\"'*])", text):
        if sentence.startswith("Of "):
            yield line, "sentence starts with 'Of'"
        words = re.findall(r"[A-Za-z0-9][\w'’-]*", sentence)
        if len(words) > MAX_WORDS:
            yield line, f"sentence of {len(words)} words, at most {MAX_WORDS}: {' '.join(words[:6])} …"


if __name__ == "__main__":
    sys.exit(main())
