"""Generate results.md, benchmarks.md and reliability.md from the rows of docs/results/*.jsonl.

python docs/results.py            # writes the pages
python docs/results.py --check    # exits with status 1 if a page is outdated

`python -m keras_transformer.evaluate --results=FILE` and the programs in benchmarks/ add the rows. The text around the
tables is in `docs/pages/`.
"""

import sys
from pathlib import Path

from pages.benchmarks import benchmarks_page
from pages.markdown import rows_of
from pages.reliability import reliability_page
from pages.scores import results_page

DOCS = Path(__file__).parent


def main():
    files = {path.stem: rows_of(path) for path in sorted((DOCS / "results").glob("*.jsonl"))}
    pages = {
        DOCS / "results.md": results_page(files),
        DOCS / "benchmarks.md": benchmarks_page(files),
        DOCS / "reliability.md": reliability_page(files["reliability"], files["checkpoints"]),
    }
    if "--check" in sys.argv:
        sys.exit(int(any(path.read_text(encoding="utf-8") != text for path, text in pages.items())))
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
