"""Measure two baselines for constituency parsing that learn from a problem's trees: right-branching trees and a PCFG.

    python benchmarks/parsing_baselines.py --problem=parsing_english --raw_dir=../shared/data

`right_branching` gives all sentences the same structure: each word opens a constituent that contains all later words.
Final punctuation is attached directly to the root. All constituents have the most frequent label.

`pcfg` uses the rules of the training trees, with their relative frequencies as probabilities. The labels of
constituents and parts of speech include the parent's label, as in Klein and Manning (2003), "Accurate Unlexicalized
Parsing". Rules are binarized: the remaining children of a rule depend on its label and the previous two children. CKY
with a beam (`BEAM`) searches for the most probable parse. If it finds no parse, CKY runs again without a beam.
Sentences that still have no parse, or have more than `--max_words` words, get the right-branching tree. The column
`fallbacks` counts these sentences.

Both parsers see only the words. As in EVALB, a sentence with a wrongly tagged punctuation mark is an error sentence,
which only `f1_of_all_sentences` takes into account. The column `seconds` contains the CPU time of parsing, without the
time to learn the grammar.
"""

import math
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from command_line import Parser, add_row, timed

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import positive_int, run_command
from keras_transformer.cli.output import report
from keras_transformer.evaluate import report_table
from keras_transformer.parsing.evalb_parameters import Parameters
from keras_transformer.parsing.linearize import linearize
from keras_transformer.parsing.parseval import parseval
from keras_transformer.parsing.problem import ParsingProblem
from keras_transformer.parsing.tree import Tree
from keras_transformer.parsing.treebanks import read_treebank
from keras_transformer.tasks.problem import load_problem
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import atomic_open

HISTORY = 2  # number of previous children on which the remaining children of a rule depend
RARE = 2  # maximum frequency of the training words that represent unknown words
# Pseudo-counts: a word's tag distribution is smoothed with that of its kind, and a kind's with that of all rare words.
KNOWN_WEIGHT, KIND_WEIGHT = 0.5, 2.0
BEAM = 10.0  # maximum gap between the score of a constituent and the best score over the same words, in nats
PUNCTUATION = Parameters().delete_labels
FIGURES = ("f1", "f1_of_all_sentences", "recall", "precision", "complete_match", "tagging_accuracy")


def main(arguments):
    parser = Parser(__doc__)
    parser.add_argument("--problem", default="toy_parsing", help="registered parsing problem (default %(default)s)")
    parser.add_argument("--raw_dir", help="folder of the corpus files (default: download)")
    parser.add_argument(
        "--split", default="test", choices=("train", "validation", "test"), help="split to parse (default %(default)s)"
    )
    parser.add_argument(
        "--max_words", type=positive_int, default=150, help="maximum sentence length for pcfg (default %(default)s)"
    )
    parser.add_argument("--output_dir", help="folder for gold.txt and the trees of each parser (default: none)")
    flags = parser.parse_args(arguments)
    problem = load_problem(flags.problem, raw_dir=flags.raw_dir)
    if not isinstance(problem, ParsingProblem):
        raise UserError(f"--problem must be a parsing problem, got {flags.problem!r}. Use toy_parsing, for example.")
    baselines, seconds = timed(Baselines, list(problem.trees("train")), flags.max_words, clock=time.process_time)
    report(f"grammar: {baselines.grammar} in {seconds:.0f} CPU seconds")
    golds = gold_trees(problem, flags.split)
    parses = {name: parse_all(getattr(baselines, name), golds) for name in ("right_branching", "pcfg")}
    if flags.output_dir:
        trees = {"gold": [tree for _, tree in golds]}
        trees |= {name: [parse.tree for parse in parsed] for name, parsed in parses.items()}
        for name in trees:
            with atomic_open(Path(flags.output_dir) / f"{name}.txt") as file:
                file.writelines(f"{tree}\n" for tree in trees[name])
    treebanks = list(dict.fromkeys(treebank for treebank, _ in golds))
    rows = [
        {"problem": flags.problem, "split": flags.split, "part": part, "parser": name, **figures(golds, parsed, part)}
        for part in ["all", *(treebanks if len(treebanks) > 1 else [])]
        for name, parsed in parses.items()
    ]
    shown = ("part", "parser", *FIGURES, "sentences", "errors", "fallbacks", "seconds")
    report_table(shown, *([str(row[column]) for column in shown] for row in rows))
    load_keras()  # import Keras without TensorFlow's messages, before `add_row` imports it
    for row in rows:
        add_row({"benchmark": "parsing_baselines", **row}, flags.json)


class Parse(NamedTuple):
    """Parse of a sentence and CPU time of parsing. `fallback` is true if `pcfg` returned the right-branching tree."""

    tree: Tree
    fallback: bool
    seconds: float


def gold_trees(problem, split):
    """Return [(treebank, `Tree`), ...] for a split. The treebank is a prefix of the file name, such as "wsj"."""
    if split not in getattr(problem, "files", {}):  # a problem without files, such as toy_parsing
        return [("", tree) for tree in problem.trees(split)]
    return [
        (path.name.partition("_")[0].lower(), tree)
        for path in problem.files[split]
        for tree in filter(None, map(problem.normalized, read_treebank([path])))
    ]


def parse_all(parser, golds):
    """Parse the words of all gold trees with `parser`, which maps words to (`Tree`, fallback). Return `Parse`s."""
    parses = []
    for number, (_, gold) in enumerate(golds, start=1):
        (tree, fallback), seconds = timed(parser, gold.words(), clock=time.process_time)
        parses.append(Parse(tree, fallback, seconds))
        if number % 500 == 0:
            report(f"{parser.__name__}: {number} of {len(golds)} sentences")
    return parses


def figures(golds, parses, part):
    """Return the scores of the parses of the treebank `part`, or of all treebanks if `part` is "all"."""
    pairs = [(gold, parse) for (treebank, gold), parse in zip(golds, parses) if part in ("all", treebank)]
    result = parseval([str(gold) for gold, _ in pairs], [str(parse.tree) for _, parse in pairs])
    return {
        **{name: round(getattr(result, name), 2) for name in FIGURES}, "sentences": len(pairs),
        "errors": result.errors, "fallbacks": sum(parse.fallback for _, parse in pairs),
        "seconds": round(sum(parse.seconds for _, parse in pairs), 1),
    }  # fmt: skip


class Baselines:
    """The two baseline parsers. Each is a method that maps the words of a sentence to (`Tree`, fallback).

    Args:
        trees: Training trees.
        max_words: Maximum sentence length for the PCFG.
    """

    def __init__(self, trees, max_words=150):
        self.grammar, self.max_words = Grammar(trees), max_words
        symbols = Counter(symbol for tree in trees for symbol in linearize(tree) if symbol[0] == "(")
        self.label = symbols.most_common(1)[0][0][1:]

    def right_branching(self, words):
        tags = [self.grammar.lexicon.most_probable_tag(word) for word in words]
        return right_branching(words, tags, self.label), False

    def pcfg(self, words):
        if len(words) <= self.max_words and (found := self.grammar.parse(words) or self.grammar.parse(words, math.inf)):
            return unbinarize(found[1]), False
        return self.right_branching(words)[0], True


def right_branching(words, tags, label):
    """Return a right-branching tree, such as (X (DT the) (X (NN cat) (X (VBD sat) (RB down))) (. .)) for label X."""
    leaves = [Tree(tag, (), word) for tag, word in zip(tags, words)]
    end = len(leaves)
    while end and tags[end - 1] in PUNCTUATION:
        end -= 1
    last = max(end - 2, 0)
    children = leaves[last:end]
    for leaf in reversed(leaves[:last]):
        children = [leaf, Tree(label, tuple(children))]
    return Tree(label, (*children, *leaves[end:]))


class Symbol(NamedTuple):
    """Grammar symbol, used as a node label in a binarized `Tree`.

    Attributes:
        label: Label of a constituent or part of speech.
        parent: Label of the parent, or "" for the root and for symbols that binarization adds.
        history: Only for symbols that binarization adds. Such a symbol stands for the remaining children of a rule,
            and `history` contains the labels of at most `HISTORY` children before them.
    """

    label: str
    parent: str = ""
    history: tuple = ()


ROOT = Symbol("")
"""Symbol above the root of every tree."""


def binarize(tree):
    """Return a binarized `Tree`, with `ROOT` at the top, `Symbol`s as labels and at most two children per node."""

    def annotate(tree, parent):
        symbol = Symbol(tree.label, parent)
        if tree.word is not None:
            return Tree(symbol, (), tree.word)
        labels = [child.label for child in tree.children]
        first, *rest = [annotate(child, tree.label) for child in tree.children]
        for place in range(len(rest) - 1, 0, -1):  # join the last two children
            history = tuple(labels[:place][-HISTORY:])
            rest[place - 1 :] = [Tree(Symbol(tree.label, "", history), tuple(rest[place - 1 :]))]
        return Tree(symbol, (first, *rest))

    return Tree(ROOT, (annotate(tree, ROOT.label),))


def unbinarize(tree):
    """Undo `binarize` and return the original `Tree`."""

    def parts(tree):
        if tree.word is not None:
            return [Tree(tree.label.label, (), tree.word)]
        children = [part for child in tree.children for part in parts(child)]
        return children if tree.label.history or tree.label == ROOT else [Tree(tree.label.label, tuple(children))]

    return parts(tree)[0]


class Lexicon:
    """Probabilities of parts of speech for words. Rare and unknown words share the probabilities of their kind.

    Args:
        leaves: Preterminals of the binarized training trees.
    """

    def __init__(self, leaves):
        frequency = Counter(leaf.word for leaf in leaves)
        self.symbols = Counter(leaf.label for leaf in leaves)
        self.counts = defaultdict(Counter)  # keys: words, kinds of rare words, and None for all rare words
        for leaf in leaves:
            self.counts[leaf.word][leaf.label] += 1
        for leaf in [leaf for leaf in leaves if frequency[leaf.word] <= RARE] or leaves:
            self.counts[kind_of(leaf.word)][leaf.label] += 1
            self.counts[None][leaf.label] += 1

    def probabilities(self, word):
        """Return {symbol: probability} for a word, smoothed with the relative frequencies of the word's kind."""
        found = {symbol: number / self.counts[None].total() for symbol, number in self.counts[None].items()}
        for key, weight in ((kind_of(word), KIND_WEIGHT), (word, KNOWN_WEIGHT)):
            counts = self.counts.get(key, Counter())
            found = {
                symbol: (counts[symbol] + weight * found.get(symbol, 0.0)) / (counts.total() + weight)
                for symbol in {**found, **counts}
            }
        return found

    def scores(self, word):
        """Return {symbol: log P(word | symbol) − log P(word)}."""
        total = self.symbols.total()
        return {symbol: math.log(p * total / self.symbols[symbol]) for symbol, p in self.probabilities(word).items()}

    def most_probable_tag(self, word):
        """Return the most probable part of speech of a word, by the sum of its probabilities over all parent labels."""
        tags = Counter()
        for symbol, probability in self.probabilities(word).items():
            tags[symbol.label] += probability
        return max(tags, key=tags.get)


def kind_of(word):
    """Return the kind of a word: (starts with a capital, has digits, has hyphens, last two characters)."""
    ending = "".join("0" if character.isdigit() else character for character in word[-2:].lower())
    return word[0].isupper(), any(map(str.isdigit, word)), "-" in word, ending


def rule_scores(trees):
    """Count the rules in binarized trees. Return ({(symbol, child symbols): log probability}, symbol `Counter`)."""
    rules, symbols, stack = Counter(), Counter(), list(trees)
    while stack:
        tree = stack.pop()
        symbols[tree.label] += 1
        if tree.word is None:
            rules[tree.label, tuple(child.label for child in tree.children)] += 1
            stack += tree.children
    return {rule: math.log(number / symbols[rule[0]]) for rule, number in rules.items()}, symbols


def best_chains(symbols, rules):
    """Find the best chains of unary rules. Return {(top, bottom): (log probability, symbols from top to bottom)}.

    Args:
        symbols: All symbols. Each symbol is also a chain of length one.
        rules: {(symbol, child symbols): log probability}.
    """
    parents = defaultdict(list)
    for (symbol, children), score in rules.items():
        if len(children) == 1:
            parents[children[0]].append((symbol, score))
    best = new = {(symbol, symbol): (0.0, (symbol,)) for symbol in symbols}
    while new:
        longer = {}
        for (top, bottom), (score, chain) in new.items():
            for symbol, more in parents[top]:
                known = longer.get((symbol, bottom)) or best.get((symbol, bottom))
                if known is None or score + more > known[0]:
                    longer[symbol, bottom] = score + more, (symbol, *chain)
        best, new = best | longer, longer
    return best


class Grammar:
    """PCFG in arrays, with a CKY parser.

    Args:
        trees: Training trees.

    Attributes:
        lexicon: `Lexicon`.
        rules: {(symbol, child symbols): log probability}.
        symbols: List of all S symbols. The arrays contain indices of this list.
        parents, lefts, rights, scores: Binary rules, sorted by parent.
        tops, bottoms, chains, chain_scores: Chains of unary rules, sorted by top.
        priors: `[S]`, log frequency of each symbol, for the beam.
    """

    def __init__(self, trees):
        trees = [binarize(tree) for tree in trees]
        self.lexicon = Lexicon([leaf for tree in trees for leaf in tree.leaves()])
        self.rules, counts = rule_scores(trees)
        self.symbols = sorted(counts)
        self.indices = {symbol: index for index, symbol in enumerate(self.symbols)}
        self.priors = np.log([counts[symbol] for symbol in self.symbols]).astype("float32")
        binary = sorted(((a, *rest), score) for (a, rest), score in self.rules.items() if len(rest) == 2)
        self.parents, self.lefts, self.rights = self._columns(symbols for symbols, _ in binary)
        self.scores = np.array([score for _, score in binary], "float32")
        chains = sorted(best_chains(self.symbols, self.rules).items())
        self.tops, self.bottoms = self._columns(ends for ends, _ in chains)
        self.chain_scores = np.array([score for _, (score, _) in chains], "float32")
        self.chains = [chain for _, (_, chain) in chains]

    def __str__(self):
        return f"{len(self.symbols):,} symbols, {len(self.scores):,} binary rules, {len(self.chains):,} chains"

    def _columns(self, rows):
        return np.array([[self.indices[symbol] for symbol in row] for row in rows]).T.copy()

    def parse(self, words, beam=BEAM):
        """Return (log probability, binarized `Tree`) of the most probable parse, or None if the search finds no parse.

        Args:
            words: Words of the sentence.
            beam: See `BEAM`. `math.inf` makes the search exact.
        """
        count = len(words)
        chart = np.full((count, count + 1, len(self.symbols)), -np.inf, "float32")  # best score by span and symbol
        for width in range(1, count + 1):
            for start in range(count - width + 1):
                inside = self._inside(chart, words, start, start + width)
                scores = grouped_max(inside[self.bottoms] + self.chain_scores, self.tops)[1]  # one score per symbol
                if width < count:
                    merits = scores + self.priors
                    scores[merits < merits.max() - beam] = -np.inf
                chart[start, start + width] = scores
        root = self.indices[ROOT]
        score = float(chart[0, count, root])
        return None if score == -np.inf else (score, self._tree(chart, words, root, 0, count))

    def _inside(self, chart, words, start, end):
        """Return the best score `[S]` of each symbol over a span, without chains of unary rules."""
        inside = np.full(len(self.symbols), -np.inf, "float32")
        if end - start == 1:
            for symbol, score in self.lexicon.scores(words[start]).items():
                inside[self.indices[symbol]] = score
            return inside
        left, right = chart[start, start + 1 : end], chart[start + 1 : end, end]  # [splits, S]
        possible = np.flatnonzero(left.max(0)[self.lefts] + right.max(0)[self.rights] > -np.inf)
        if len(possible):
            splits = left.take(self.lefts[possible], 1) + right.take(self.rights[possible], 1)
            parents, scores = grouped_max(splits.max(0) + self.scores[possible], self.parents[possible])
            inside[parents] = scores
        return inside

    def _tree(self, chart, words, symbol, start, end):
        """Reconstruct the best binarized tree of a symbol over a span from the scores in the chart."""
        first, last = np.searchsorted(self.tops, (symbol, symbol + 1))
        inside = self._inside(chart, words, start, end)
        best = first + np.argmax(inside[self.bottoms[first:last]] + self.chain_scores[first:last])
        *above, bottom = self.chains[best]
        if end - start == 1:
            tree = Tree(bottom, (), words[start])
        else:
            first, last = np.searchsorted(self.parents, (self.bottoms[best], self.bottoms[best] + 1))
            lefts, rights = self.lefts[first:last], self.rights[first:last]
            scores = chart[start, start + 1 : end].take(lefts, 1) + chart[start + 1 : end, end].take(rights, 1)
            scores += self.scores[first:last]
            split, rule = np.unravel_index(np.argmax(scores), scores.shape)
            middle = start + 1 + split
            children = (lefts[rule], start, middle), (rights[rule], middle, end)
            tree = Tree(bottom, tuple(self._tree(chart, words, *child) for child in children))
        for symbol in reversed(above):
            tree = Tree(symbol, (tree,))
        return tree


def grouped_max(scores, groups):
    """Return (distinct groups, maximum score of each group). `groups` must be sorted."""
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    return groups[starts], np.maximum.reduceat(scores, starts)


if __name__ == "__main__":
    run_command(main)
