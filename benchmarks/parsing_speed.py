"""Measure the speed of parsing the first test sentences of a run's problem.

    python benchmarks/parsing_speed.py --run=runs/mine --sentences=1000 --beam_size=21

The time excludes loading the model and a warm-up, in which the backend traces the search. `whole_trees` counts the
outputs that are trees over all words of their sentences.
"""

import itertools

from command_line import Parser, add_row, print_table, timed

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import positive_int, run_command


def main(arguments):
    parser = Parser(__doc__)
    parser.add_run()
    parser.add_argument(
        "--sentences", type=positive_int, default=1000, help="number of test sentences (default %(default)s)"
    )
    parser.add_argument("--skip", type=int, default=0, help="number of test sentences to skip (default %(default)s)")
    parser.add_argument("--beam_size", type=positive_int, default=21, help="number of beams (default %(default)s)")
    parser.add_argument("--unconstrained", action="store_true", help="do not constrain outputs to trees")
    flags = parser.parse_args(arguments)
    load_keras()
    import keras

    from keras_transformer.decoding.translator import Translator
    from keras_transformer.parsing.tree import tree_of, unescaped
    from keras_transformer.runs.run import Run
    from keras_transformer.utils.text import split_words

    def words_of(words):
        return list(map(unescaped, words))

    run = Run.open(flags.run)
    pairs = itertools.islice(run.problem.examples("test"), flags.skip, flags.skip + flags.sentences)
    sentences = [source for source, _ in pairs]
    translator = Translator.load(flags.run, flags.checkpoint)
    options = {"beam_size": flags.beam_size, "constraint": None if flags.unconstrained else "grammar"}

    def parse(sentences):
        return [tree_of(hypotheses[0].text) for hypotheses in translator.translate(sentences, **options)]

    parse(sentences[:: max(1, len(sentences) // 20)])
    trees, seconds = timed(parse, sentences)
    words = list(map(split_words, sentences))
    row = {
        "benchmark": "parsing_speed", "problem": run.problem.name, "backend": keras.backend.backend(),
        "sentences": len(sentences), "words": sum(map(len, words)), "beam_size": flags.beam_size,
        "constraint": not flags.unconstrained, "seconds": round(seconds, 1),
        "sentences_per_second": round(len(sentences) / seconds, 2),
        "whole_trees": sum(words_of(tree.words()) == words_of(expected) for tree, expected in zip(trees, words)),
    }  # fmt: skip
    print_table("parsing_speed", [add_row(row, flags.json)])


if __name__ == "__main__":
    run_command(main)
