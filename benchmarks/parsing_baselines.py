"""Baselines for constituency parsing, learned from a problem's training trees: right-branching trees and a PCFG.

    python benchmarks/parsing_baselines.py --problem=parsing_english --raw_dir=../shared/data

`right_branching` is the same tree over any sentence: each word opens a constituent that holds all after it, but for the
punctuation marks at the end, which the root holds. The label of all is the most frequent one of the training trees.

`pcfg` has the rules of the training trees with their relative frequencies. Constituents and parts of speech are
annotated with the label above them, as in Klein and Manning 2003, "Accurate Unlexicalized Parsing", and rules are
binary: what follows a rule's first child depends on the label and the last two children, not on those before. Its
parse is the most probable one that CKY finds among the constituents that `BEAM` leaves. What has no parse, or has more
than `--max_words` words, gets its right-branching tree; a row says how many there are: `fallbacks`.

Neither is told anything but the words. A sentence one of whose punctuation marks gets a wrong tag is an error by
EVALB's rules and does not count. Seconds are CPU seconds of parsing, without those of reading the grammar.
"""

import math
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from command_line import Parser, add_row, check_flags

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import positive_int, run_command
from keras_transformer.cli.output import report
from keras_transformer.evaluate import report_table
from keras_transformer.parsing.evalb_parameters import Parameters
from keras_transformer.parsing.parseval import parseval
from keras_transformer.parsing.problem import ParsingProblem
from keras_transformer.parsing.tree import Tree
from keras_transformer.parsing.treebanks import read_treebank
from keras_transformer.tasks.problem import load_problem
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import atomic_open

HISTORY = 2  # children that the rest of a rule depends on
RARE = 2  # a word seen at most so often tells about unknown words of its kind
KNOWN_WEIGHT, KIND_WEIGHT = 0.5, 2.0  # of what is known about a word's kind, and about all rare words, in occurrences
BEAM = 10.0  # how far, in nats, a constituent may be behind the best one over the same words
PUNCTUATION = Parameters().delete_labels
FIGURES = ("f1", "f1_of_all_sentences", "recall", "precision", "complete_match", "tagging_accuracy")


def main(arguments):
    parser = Parser(__doc__)
    parser.add_argument("--problem", default="toy_parsing", help="registered parsing problem (default %(default)s)")
    parser.add_argument("--raw_dir", help="folder of the corpus files, where they are on disk")
    parser.add_argument(
        "--split", default="test", choices=("train", "validation", "test"), help="what to parse (default %(default)s)"
    )
    parser.add_argument(
        "--max_words", type=positive_int, default=150, help="longest sentence for the PCFG (default %(default)s)"
    )
    parser.add_argument("--output_dir", help="where to write gold.txt and the trees of each parser (default nowhere)")
    parser.add_json()
    flags = parser.parse_args(arguments)
    check_flags(flags)
    problem = load_problem(flags.problem, raw_dir=flags.raw_dir)
    if not isinstance(problem, ParsingProblem):
        raise UserError(f"problem {flags.problem!r} has no trees; choose a parsing problem, such as toy_parsing")

    began = time.process_time()
    baselines = Baselines(list(problem.trees("train")), flags.max_words)
    report(f"grammar: {baselines.grammar} in {time.process_time() - began:.0f} CPU seconds")
    golds = gold_trees(problem, flags.split)
    parses = {name: timed(getattr(baselines, name), golds) for name in ("right_branching", "pcfg")}
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
    load_keras()  # `add_row` would import it with its messages
    for row in rows:
        add_row({"benchmark": "parsing_baselines", **row}, flags.json)


class Parse(NamedTuple):
    """A sentence's `Tree`, whether it is one for want of a better, and the CPU seconds that it took."""

    tree: Tree
    fallback: bool
    seconds: float


def gold_trees(problem, split):
    """Return the (treebank, `Tree`) of a split; the treebank is what its files' names begin with: "wsj" or "gum"."""
    if split not in getattr(problem, "files", {}):  # not made of whole files
        return [("", tree) for tree in problem.trees(split)]
    return [
        (path.name.partition("_")[0].lower(), tree)
        for path in problem.files[split]
        for tree in filter(None, map(problem.normalized, read_treebank([path])))
    ]


def timed(parser, golds):
    """Return the `Parse`s that a parser, which returns (`Tree`, fallback), makes of the gold trees' words."""
    parses = []
    for number, (_, gold) in enumerate(golds, start=1):
        began = time.process_time()
        tree, fallback = parser(gold.words())
        parses.append(Parse(tree, fallback, time.process_time() - began))
        if number % 500 == 0:
            report(f"{parser.__name__}: {number} of {len(golds)} sentences")
    return parses


def figures(golds, parses, part):
    """Return what a row says of a part's parses."""
    pairs = [(gold, parse) for (treebank, gold), parse in zip(golds, parses) if part in ("all", treebank)]
    result = parseval([str(gold) for gold, _ in pairs], [str(parse.tree) for _, parse in pairs])
    return {
        **{name: round(getattr(result, name), 2) for name in FIGURES}, "sentences": len(pairs),
        "errors": result.errors, "fallbacks": sum(parse.fallback for _, parse in pairs),
        "seconds": round(sum(parse.seconds for _, parse in pairs), 1),
    }  # fmt: skip


class Baselines:
    """Both parsers: functions of words that return (`Tree`, fallback).

    Args:
        trees: The training trees.
        max_words: Longest sentence for the PCFG.
    """

    def __init__(self, trees, max_words=150):
        self.grammar, self.max_words = Grammar(trees), max_words
        self.label = Counter(label for tree in trees for label, _, _ in tree.spans()).most_common(1)[0][0]

    def right_branching(self, words):
        tags = [self.grammar.lexicon.most_frequent_tag(word) for word in words]
        return right_branching(words, tags, self.label), False

    def pcfg(self, words):
        if len(words) <= self.max_words and (found := self.grammar.parse(words) or self.grammar.parse(words, math.inf)):
            return unbinarised(found[1]), False
        return self.right_branching(words)[0], True


def right_branching(words, tags, label):
    """Return (X (DT the) (X (NN cat) (X (VBD sat) (RB down))) (. .)): X is the label, and the root ends the clause."""
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
    """A symbol of the grammar: the label of a `Tree` that is binarised.

    Attributes:
        label: A constituent's label or a part of speech.
        parent: The label of the constituent above it; "" of a tree's root, and where binarising made it.
        history: Where binarising made it, to hold the later children of a rule: the labels of those just before.
    """

    label: str
    parent: str = ""
    history: tuple = ()


ROOT = Symbol("")
"""What every tree begins with, above its own root."""


def binarised(tree):
    """Return a `Tree` with `Symbol`s for labels and at most two children each, below `ROOT`."""

    def annotated(tree, parent):
        symbol = Symbol(tree.label, parent)
        if tree.word is not None:
            return Tree(symbol, (), tree.word)
        labels = [child.label for child in tree.children]
        first, *rest = [annotated(child, tree.label) for child in tree.children]
        for place in range(len(rest) - 1, 0, -1):  # of the two last ones a new one, until one is left
            history = tuple(labels[:place][-HISTORY:])
            rest[place - 1 :] = [Tree(Symbol(tree.label, "", history), tuple(rest[place - 1 :]))]
        return Tree(symbol, (first, *rest))

    return Tree(ROOT, (annotated(tree, ROOT.label),))


def unbinarised(tree):
    """Return the `Tree` that a binarised one was made of."""

    def parts(tree):
        if tree.word is not None:
            return [Tree(tree.label.label, (), tree.word)]
        children = [part for child in tree.children for part in parts(child)]
        return children if tree.label.history or tree.label == ROOT else [Tree(tree.label.label, tuple(children))]

    return parts(tree)[0]


class Lexicon:
    """The parts of speech of words, as often as training has them; of rare and unknown words, those of their kind.

    Args:
        leaves: The preterminals of the training trees, with `Symbol`s.
    """

    def __init__(self, leaves):
        seen = Counter(leaf.word for leaf in leaves)
        self.symbols = Counter(leaf.label for leaf in leaves)
        self.of = defaultdict(Counter)  # of a word, of a kind of rare words, and, as None, of all rare ones
        for leaf in leaves:
            self.of[leaf.word][leaf.label] += 1
        for leaf in [leaf for leaf in leaves if seen[leaf.word] <= RARE] or leaves:
            self.of[kind(leaf.word)][leaf.label] += 1
            self.of[None][leaf.label] += 1

    def chances(self, word):
        """Return {symbol: probability} of a word: relative frequencies, interpolated with those of its kind."""
        chances = {symbol: number / self.of[None].total() for symbol, number in self.of[None].items()}
        for key, weight in ((kind(word), KIND_WEIGHT), (word, KNOWN_WEIGHT)):
            found = self.of.get(key, Counter())
            chances = {
                symbol: (found[symbol] + weight * chances.get(symbol, 0.0)) / (found.total() + weight)
                for symbol in {**chances, **found}
            }
        return chances

    def scores(self, word):
        """Return {symbol: log probability} of the word given the symbol, less the word's own, which is the same."""
        whole = self.symbols.total()
        return {symbol: math.log(p * whole / self.symbols[symbol]) for symbol, p in self.chances(word).items()}

    def most_frequent_tag(self, word):
        """Return the part of speech that is the most probable of a word, whatever is above it."""
        tags = Counter()
        for symbol, chance in self.chances(word).items():
            tags[symbol.label] += chance
        return max(tags, key=tags.get)


def kind(word):
    """Return what says most about a word that is not known: capitals, digits, hyphens and its ending."""
    ending = "".join("0" if sign.isdigit() else sign for sign in word[-2:].lower())
    return word[0].isupper(), any(map(str.isdigit, word)), "-" in word, ending


def rule_scores(trees):
    """Return ({(symbol, symbols of its children): log probability}, `Counter` of symbols) of binarised trees."""
    rules, symbols, left = Counter(), Counter(), list(trees)
    while left:
        tree = left.pop()
        symbols[tree.label] += 1
        if tree.word is None:
            rules[tree.label, tuple(child.label for child in tree.children)] += 1
            left += tree.children
    return {rule: math.log(number / symbols[rule[0]]) for rule, number in rules.items()}, symbols


def best_chains(symbols, rules):
    """Return {(top, bottom): (log probability, symbols from top to bottom)} of the best chains of unary rules.

    Args:
        symbols: All symbols, each of which is a chain by itself.
        rules: {(symbol, symbols of its children): log probability}.
    """
    above = defaultdict(list)
    for (symbol, children), score in rules.items():
        if len(children) == 1:
            above[children[0]].append((symbol, score))
    best = new = {(symbol, symbol): (0.0, (symbol,)) for symbol in symbols}
    while new:
        longer = {}
        for (top, bottom), (score, chain) in new.items():
            for symbol, more in above[top]:
                known = longer.get((symbol, bottom)) or best.get((symbol, bottom))
                if known is None or score + more > known[0]:
                    longer[symbol, bottom] = score + more, (symbol, *chain)
        best, new = best | longer, longer
    return best


class Grammar:
    """A PCFG in arrays, and its parser.

    Args:
        trees: The training trees.

    Attributes:
        lexicon: `Lexicon`.
        rules: {(symbol, symbols of its children): log probability}.
        symbols: The S symbols, whose places the arrays hold.
        parents, lefts, rights, scores: Of each binary rule, by the parent's place.
        tops, bottoms, chains, chain_scores: Of each chain of unary rules, by the top's place.
        priors: `[S]`: log frequency of symbols, for the beam.
    """

    def __init__(self, trees):
        trees = [binarised(tree) for tree in trees]
        self.lexicon = Lexicon([leaf for tree in trees for leaf in tree.leaves()])
        self.rules, numbers = rule_scores(trees)
        self.symbols = sorted(numbers)
        self.places = {symbol: place for place, symbol in enumerate(self.symbols)}
        self.priors = np.log([numbers[symbol] for symbol in self.symbols]).astype("float32")
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
        return np.array([[self.places[symbol] for symbol in row] for row in rows]).T.copy()

    def parse(self, words, beam=BEAM):
        """Return the (log probability, binarised `Tree`) of the most probable parse, or None if there is no parse.

        Args:
            words: Words of the sentence.
            beam: See `BEAM`; with `math.inf` the search is exact.
        """
        count = len(words)
        chart = np.full((count, count + 1, len(self.symbols)), -np.inf, "float32")  # of the best tree over each span
        for width in range(1, count + 1):
            for start in range(count - width + 1):
                inside = self._inside(chart, words, start, start + width)
                scores = grouped_max(inside[self.bottoms] + self.chain_scores, self.tops)[1]  # each symbol is a top
                if width < count:
                    merits = scores + self.priors
                    scores[merits < merits.max() - beam] = -np.inf
                chart[start, start + width] = scores
        root = self.places[ROOT]
        score = float(chart[0, count, root])
        return None if score == -np.inf else (score, self._tree(chart, words, root, 0, count))

    def _inside(self, chart, words, start, end):
        """The scores `[S]` of a span with a word or a binary rule on top."""
        inside = np.full(len(self.symbols), -np.inf, "float32")
        if end - start == 1:
            for symbol, score in self.lexicon.scores(words[start]).items():
                inside[self.places[symbol]] = score
            return inside
        left, right = chart[start, start + 1 : end], chart[start + 1 : end, end]  # [splits, S]
        possible = np.flatnonzero(left.max(0)[self.lefts] + right.max(0)[self.rights] > -np.inf)
        if len(possible):
            splits = left.take(self.lefts[possible], 1) + right.take(self.rights[possible], 1)
            parents, scores = grouped_max(splits.max(0) + self.scores[possible], self.parents[possible])
            inside[parents] = scores
        return inside

    def _tree(self, chart, words, symbol, start, end):
        """The best binarised tree of a symbol over a span: found again, as the chart holds its score alone."""
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
    """Return (different groups, best score of each); `groups` are sorted."""
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    return groups[starts], np.maximum.reduceat(scores, starts)


if __name__ == "__main__":
    run_command(main)
