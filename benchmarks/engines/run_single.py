"""Time of each translation, one sentence after the other, in a separate process.

    python benchmarks/engines/run_single.py RUN ENGINE SENTENCES

Prints a JSON list: the seconds of the first translation, after the model is loaded, and of all others.
"""

import json
import sys
import time
from pathlib import Path

from keras_transformer.decoding.loading import load_translator


def main(run_dir, engine, sentences):
    translator = load_translator([run_dir], engine=engine)
    seconds = []
    for text in Path(sentences).read_text(encoding="utf-8").splitlines():
        began = time.perf_counter()
        translator.translate(text)
        seconds.append(time.perf_counter() - began)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
