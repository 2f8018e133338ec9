"""How fast sentences are parsed: `python benchmarks/parsing_speed.py --run=runs/mine --sentences=1000 --beam_size=21`.

The sentences are the first of the test split, from --skip on. The time is that of the search, loading and a first
search left out, in which the functions are traced. Every output is held against its sentence: it must be a tree over
all its words.
"""

import itertools
import time

from command_line import Parser, add_row, check_flags, print_table

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import run_command


def main(arguments):
    parser = Parser(__doc__)
    parser.add_argument("--run", required=True, help="run directory of a parser")
    parser.add_argument("--checkpoint", help="best, last, averaged or a step")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--skip", type=int, default=0, help="sentences of the split before the first one")
    parser.add_argument("--beam_size", type=int, default=21)
    parser.add_argument("--unconstrained", action="store_true")
    parser.add_json()
    flags = parser.parse_args(arguments)
    check_flags(flags)
    load_keras()
    import keras

    from keras_transformer.decoding.translator import Translator
    from keras_transformer.parsing.tree import tree_of, unescaped
    from keras_transformer.runs.run import Run
    from keras_transformer.utils.text import split_words

    run = Run.open(flags.run)
    pairs = itertools.islice(run.problem.examples("test"), flags.skip, flags.skip + flags.sentences)
    sentences = [source for source, _ in pairs]
    translator = Translator.load(flags.run, flags.checkpoint)
    options = {"beam_size": flags.beam_size, "constraint": None if flags.unconstrained else "grammar"}
    translator.translate(sentences[:: max(1, len(sentences) // 20)], **options)
    began = time.perf_counter()
    trees = [tree_of(hypotheses[0].text) for hypotheses in translator.translate(sentences, **options)]
    seconds = time.perf_counter() - began
    row = {
        "benchmark": "parsing_speed", "problem": run.problem.name, "backend": keras.backend.backend(),
        "sentences": len(sentences), "words": sum(len(split_words(sentence)) for sentence in sentences),
        "beam_size": flags.beam_size, "constraint": not flags.unconstrained, "seconds": round(seconds, 1),
        "sentences_per_second": round(len(sentences) / seconds, 2),
        "whole_trees": sum(
            list(map(unescaped, tree.words())) == list(map(unescaped, split_words(sentence)))
            for tree, sentence in zip(trees, sentences)
        ),
    }  # fmt: skip
    print_table("parsing_speed", [add_row(row, flags.json)])


if __name__ == "__main__":
    run_command(main)
