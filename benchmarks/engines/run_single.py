"""Translate sentences one by one and measure the time of each.

    python benchmarks/engines/run_single.py RUN ENGINE COMPILATION SENTENCES

The program prints the seconds of each translation as a JSON list. The times exclude loading the model. With
COMPILATION=auto, the program compiles the search for single sentences with XLA before the first measurement. With
COMPILATION=off, TensorFlow runs the search without XLA.
"""

import json
import sys
import time
from pathlib import Path

from keras_transformer.decoding.loading import load_translator
from keras_transformer.runs.run import Run


def main(run_dir, engine, compilation, sentences):
    jit_compile = compilation if compilation == "auto" else False
    translator = load_translator([Run.open(run_dir)], jit_compile=jit_compile, engine=engine)
    translator.compile_ahead()
    seconds = []
    for text in Path(sentences).read_text(encoding="utf-8").splitlines():
        began = time.perf_counter()
        translator.translate(text)
        seconds.append(time.perf_counter() - began)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
