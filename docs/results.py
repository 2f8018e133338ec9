"""Generate results.md, benchmarks.md, reliability.md and scaling.md from the rows of docs/results/*.jsonl.

    python docs/results.py            # write the pages
    python docs/results.py --check    # exit with status 1 if a page is outdated

The text of the pages is in docs/pages/*.md. There, the program replaces `{{ NAME FILE … }}` with the output of the
function NAME in docs/pages/*.py, called with the rows of each docs/results/FILE.jsonl. The programs in benchmarks/ and
`python -m keras_transformer.evaluate --results=FILE` append rows.
"""

import re
import sys
from pathlib import Path

from pages import benchmarks, parsers, scaling, scores, tables, variations

DOCS = Path(__file__).parent
PAGES = "results.md", "benchmarks.md", "reliability.md", "scaling.md"
FUNCTIONS = vars(tables) | vars(scores) | vars(variations) | vars(parsers) | vars(benchmarks) | vars(scaling)


def page(name, functions=FUNCTIONS):
    """Return the text of a page, with all tables filled in."""

    def fill(match):
        function, *files = match[1].split()
        return functions[function](*map(tables.rows_of, files))

    return re.sub(r"\{\{(.*?)\}\}", fill, (DOCS / "pages" / name).read_text(encoding="utf-8"))


def write(pages, arguments):
    """Write the pages, {name: text}, or with `--check` compare them with the files. Return the exit status."""
    stale = []
    for name, text in pages.items():
        path = DOCS / name
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    if stale:
        print(f"outdated, run `python {sys.argv[0]}`: {', '.join(stale)}", file=sys.stderr)
    return int(bool(stale))


def main(arguments):
    return write({name: page(name) for name in PAGES}, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
