"""English sentences with parse trees and German translations, drawn from the synchronous grammar in this file.

Each rule builds an English constituency tree together with its German translation.
"""

import dataclasses
import hashlib
import random
from collections import namedtuple
from typing import ClassVar

from keras_transformer.config.registry import register_problem
from keras_transformer.tasks.problem import setting
from keras_transformer.tasks.translation import TranslationProblem

NOMINATIVE, ACCUSATIVE, DATIVE = CASES = ("nominative", "accusative", "dative")
INFINITIVE, SINGULAR, PARTICIPLE, PLURAL = range(4)  # indices of verb forms


def table(text):
    """Parse a table with commas between rows and spaces between cells. "-" is an empty cell."""
    return [[cell.strip("-") for cell in row.split()] for row in text.split(",")]


def endings(text):
    """Parse a table of cases (rows) by genders and plural (columns). Return {(case, gender): ending}."""
    return {(case, gender): ending for case, row in zip(CASES, table(text)) for gender, ending in zip("mfnp", row)}


STRONG = endings("er e  es e,  en  e   es  e,   em  er  em  en")
MIXED = endings("er e  es en,  en  e   es  en,  en  en  en  en")
WEAK = endings("e  e  e  en,  en  e   e   en,  en  en  en  en")
EIN = endings("-  e  -  e,   en  e   -   e,    em  er  em  en")
NONE = endings("-  -  -  -,   -   -   -   -,    -   -   -   -")
ARTICLE = endings("der die das die,  den die das die,  dem der dem den")
RELATIVE = ARTICLE | {(DATIVE, "p"): "denen"}
CONTRACTIONS = {"in dem": "im", "in das": "ins", "von dem": "vom", "zu dem": "zum", "zu der": "zur"}

# A tree in the style of the Penn Treebank is (label, *subtrees) or (part of speech, word). A phrase stores the German
# words of its relative clause separately, because other words may come before them.
Example = namedtuple("Example", "tree english german")
Phrase = namedtuple("Phrase", "english german plural scope relative", defaults=[False, "definite", ()])
Determiner = namedtuple("Determiner", "label english english_plural german endings adjectives scope")
Noun = namedtuple("Noun", "kind english english_plural german german_plural gender features")
Adjective = namedtuple("Adjective", "kinds english german stem", defaults=[""])
Verb = namedtuple("Verb", "subjects objects english prefix german prepositions case features")

# `endings` are a determiner's endings, `adjectives` those of adjectives after it. "Kein" negates indefinite phrases.
THE = Determiner("DT", "the", "the", "", ARTICLE, WEAK, "definite")
THIS = Determiner("DT", "this", "these", "dies", STRONG, WEAK, "definite")
MY = Determiner("PRP$", "my", "my", "mein", EIN, MIXED, "definite")
OUR = Determiner("PRP$", "our", "our", "unser", EIN, MIXED, "definite")
A = Determiner("DT", "a", "", "ein", EIN, MIXED, "indefinite")
BARE = Determiner("", "", "", "", NONE, STRONG, "indefinite")
KEIN = Determiner("", "", "", "kein", EIN, MIXED, "negative")
EVERY = Determiner("DT", "every", "", "jed", STRONG, WEAK, "quantified")
ALL = Determiner("DT", "", "all", "all", STRONG, WEAK, "quantified")
MANY = Determiner("JJ", "", "many", "viel", STRONG, STRONG, "quantified")
TWO = Determiner("CD", "", "two", "zwei", NONE, STRONG, "quantified")
SINGULAR_DETERMINERS = (THE,) * 8 + (A,) * 7 + (THIS, MY, OUR, EVERY)  # repeated according to frequency
PLURAL_DETERMINERS = (THE,) * 5 + (BARE,) * 3 + (THIS, MY, OUR, ALL, MANY, TWO)
MASS_DETERMINERS = (THE,) * 2 + (BARE,) * 5 + (MY,)

# Kinds: p(erson), a(nimal), t(hing), r(eading matter), f(ood), d(rink), l(ocation). Features: "weak" masculines, "mass"
# nouns, and the prepositions that a location takes.
NOUNS = [
    Noun(*row[:6], row[6:])
    for row in table("""
    p man men Mann Männer m, p woman women Frau Frauen f, p child children Kind Kinder n, p aunt aunts Tante Tanten f,
    p girl girls Mädchen Mädchen n, p neighbour neighbours Nachbar Nachbarn m weak, p teacher teachers Lehrer Lehrer m,
    p student students Student Studenten m weak, p doctor doctors Arzt Ärzte m, p friend friends Freund Freunde m,
    p queen queens Königin Königinnen f, p uncle uncles Onkel Onkel m, a dog dogs Hund Hunde m, t hat hats Hut Hüte m,
    a cat cats Katze Katzen f, a horse horses Pferd Pferde n, a mouse mice Maus Mäuse f, a wolf wolves Wolf Wölfe m,
    a elephant elephants Elefant Elefanten m weak, t knife knives Messer Messer n, t key keys Schlüssel Schlüssel m,
    t lamp lamps Lampe Lampen f, t bag bags Tasche Taschen f, t picture pictures Bild Bilder n, t car cars Auto Autos n,
    t umbrella umbrellas Regenschirm Regenschirme m, r book books Buch Bücher n, r letter letters Brief Briefe m,
    r newspaper newspapers Zeitung Zeitungen f, f apple apples Apfel Äpfel m, f egg eggs Ei Eier n,
    f bread - Brot - n mass, f cheese - Käse - m mass, d water - Wasser - n mass, d milk - Milch - f mass,
    d coffee - Kaffee - m mass, l house houses Haus Häuser n in behind into around,
    l garden gardens Garten Gärten m in behind into through, l park parks Park Parks m in into through,
    l school schools Schule Schulen f in behind to, l city cities Stadt Städte f in into through,
    l kitchen kitchens Küche Küchen f in into, l table tables Tisch Tische m on under onto,
    l bridge bridges Brücke Brücken f on under across, l tree trees Baum Bäume m under behind around to
""")
]
ADJECTIVES = [
    Adjective(*row)
    for row in table("""
    patrl small klein, patrl big groß, patrl old alt, pa young jung, trl new neu, atrl beautiful schön, prfd good gut,
    trl red rot, atrl black schwarz, trl green grün, pa hungry hungrig, pa tired müde müd, p happy glücklich,
    p poor arm, pa angry wütend, trfd expensive teuer teur, tl dark dunkel dunkl, fd cold kalt, d hot heiß,
    fd fresh frisch
""")
]


def read_verb(subjects, objects, english, german, *features):
    """Return the `Verb` for a row of the table. The plural equals the infinitive unless the row has a fourth form."""
    prefix, _, german = german.rpartition("|")
    english, german = ((*forms, forms[0]) for forms in (english.split("/"), german.split("/")))
    prepositions = next((feature.split("/") for feature in features if "/" in feature), ["", ""])
    case = DATIVE if "dative" in features else ACCUSATIVE
    return Verb(subjects, objects, english, prefix, german, prepositions, case, features)


# Columns: kinds of subject, kinds of object, English forms, German forms (with a separable prefix first), features.
# Features: English/German preposition of the object, "dative" object, perfect with "sein", and possible adjuncts.
VERBS = [
    read_verb(*row)
    for row in table("""
    patrfdltl - be/is/been/are sein/ist/gewesen/sind sein place, p - think/thinks/thought denken/denkt/gedacht that,
    pa - sleep/sleeps/slept schlafen/schläft/geschlafen place, pa patrl see/sees/seen sehen/sieht/gesehen place,
    p - work/works/worked arbeiten/arbeitet/gearbeitet place company, p r read/reads/read lesen/liest/gelesen place,
    p - sing/sings/sung singen/singt/gesungen place company, pa - go/goes/gone gehen/geht/gegangen sein direction,
    p trfd give/gives/given geben/gibt/gegeben recipient, pa - play/plays/played spielen/spielt/gespielt place company,
    pa - arrive/arrives/arrived an|kommen/kommt/gekommen sein place, p afd love/loves/loved lieben/liebt/geliebt,
    pa - run/runs/run laufen/läuft/gelaufen sein direction, pa patrf find/finds/found finden/findet/gefunden place,
    pa - jump/jumps/jumped springen/springt/gesprungen sein direction, p p call/calls/called an|rufen/ruft/gerufen,
    p trfd buy/buys/bought kaufen/kauft/gekauft benefit, p pl visit/visits/visited besuchen/besucht/besucht,
    p patrl talk/talks/talked sprechen/spricht/gesprochen about/über place, p - say/says/said sagen/sagt/gesagt that,
    p p invite/invites/invited ein|laden/lädt/geladen, pa patr look/looks/looked suchen/sucht/gesucht for/ place,
    p trl look/looks/looked an|sehen/sieht/gesehen at/, pa pa wait/waits/waited warten/wartet/gewartet for/auf place,
    p pa help/helps/helped helfen/hilft/geholfen dative, p patrl think/thinks/thought denken/denkt/gedacht of/an,
    pa atrfdl dream/dreams/dreamed träumen/träumt/geträumt of/von dative, p - know/knows/known wissen/weiß/gewusst that,
    p trfd ask/asks/asked fragen/fragt/gefragt for/nach dative, p - hope/hopes/hoped hoffen/hofft/gehofft that,
    pa p listen/listens/listened zu|hören/hört/gehört to/ dative, pa f eat/eats/eaten essen/isst/gegessen place,
    pa pa follow/follows/followed folgen/folgt/gefolgt dative sein,
    atr p belong/belongs/belonged gehören/gehört/gehört to/ dative,
    p tr show/shows/shown zeigen/zeigt/gezeigt recipient, pa d drink/drinks/drunk trinken/trinkt/getrunken place,
    p trfd bring/brings/brought bringen/bringt/gebracht recipient, p p thank/thanks/thanked danken/dankt/gedankt dative
""")
]
BE = VERBS[0]
CLAUSAL = [verb for verb in VERBS if "that" in verb.features]
PLAIN = [BE] * 4 + [verb for verb in VERBS if "that" not in verb.features]
AUXILIARIES = {  # English and German forms, singular and plural
    name: [forms.split("/") for forms in row]
    for name, *row in table("""do does/do -, have has/have hat/haben, can can/can kann/können,
    must must/must muss/müssen, should should/should sollte/sollten, will will/will wird/werden""")
}
# Columns: English preposition, German preposition, the case that it governs, and the kind of adjunct that it forms.
PREPOSITIONS = table("""in in dative place, on auf dative place, under unter dative place, behind hinter dative place,
    with mit dative company, without ohne accusative company, for für accusative benefit, to zu dative direction,
    into in accusative direction, onto auf accusative direction, across über accusative direction,
    through durch accusative direction, around um accusative direction""")
SUBORDINATORS = (("because", "weil"), ("although", "obwohl"), ("when", "wenn"), ("if", "wenn"))
CONJUNCTIONS = (("and", ["und"]), ("but", [",", "aber"]))
PRONOUNS = table("""PRP he him er ihn ihm, PRP she her sie sie ihr, PRP they them sie sie ihnen plural,
    PRP we us wir uns uns plural, NNP Anna Anna Anna Anna Anna, NNP Paul Paul Paul Paul Paul""")


def leaves(tree):
    """Return the words and punctuation marks of a tree, from left to right."""
    if isinstance(tree[1], str):
        return [tree[1]]
    return [leaf for child in tree[1:] for leaf in leaves(child)]


def capitalised(tree):
    """Return a tree or a text with a capital first letter."""
    return tree[0].upper() + tree[1:] if isinstance(tree, str) else (tree[0], capitalised(tree[1]), *tree[2:])


def time_phrase(english, german):
    """Return a time phrase. The English words have the form TAG/word."""
    words = [tuple(item.split("/")) for item in english.split()]
    tree = ("PP", words[0], ("NP", *words[1:])) if words[0][0] == "IN" else ("NP" if words[1:] else "ADVP", *words)
    return Phrase(tree, [german])


TIMES = [  # time phrases, the auxiliaries that they can combine with, and "not" if they can combine with negation
    (time_phrase("RB/today", "heute"), "do have can must should will not"),
    (time_phrase("RB/now", "jetzt"), "do can must should not"),
    (time_phrase("RB/tomorrow", "morgen"), "can must should will not"),
    (time_phrase("RB/sometimes", "manchmal"), "do"),
    (time_phrase("DT/every NN/day", "jeden Tag"), "do can must should will"),
    (time_phrase("IN/in DT/the NN/morning", "am Morgen"), "do can must should will not"),
    (time_phrase("IN/in NN/summer", "im Sommer"), "do can must should will not"),
    (time_phrase("IN/on NNP/Monday", "am Montag"), "can must should will not"),
]


def pronoun(case, row):
    """Return a personal pronoun or a name. A name has the same form in every case."""
    return Phrase(("NP", (row[0], row[1 if case == NOMINATIVE else 2])), [row[3 + CASES.index(case)]], "plural" in row)


def decline(noun, case, plural):
    """Return the German form of a noun. In the singular, weak masculines have an ending except in the nominative."""
    if plural:
        return noun.german_plural + "n" * (case == DATIVE and noun.german_plural[-1] not in "ns")
    return noun.german_plural if "weak" in noun.features and case != NOMINATIVE else noun.german


def noun_phrase(case, determiner, noun, plural=False, adjective=None, relative=None, negated=False):
    """Return a noun phrase. If `negated`, the German determiner of an indefinite phrase is "kein"."""
    declined = KEIN if negated and determiner.scope == "indefinite" else determiner
    cell = case, "p" if plural else noun.gender
    english = [("NNS", noun.english_plural) if plural else ("NN", noun.english)]
    german = [declined.german + declined.endings[cell], decline(noun, case, plural)]
    if adjective:
        english.insert(0, ("JJ", adjective.english))
        german.insert(1, (adjective.stem or adjective.german) + declined.adjectives[cell])
    if article := determiner.english_plural if plural else determiner.english:
        english.insert(0, (determiner.label, "an" if article == "a" and english[0][1][0] in "aeiou" else article))
    if relative:
        english = [("NP", *english), relative.english]
    return Phrase(("NP", *english), german, plural, declined.scope, relative.german if relative else ())


def relative_pronoun(case, noun, plural=False, governed=False):
    """Return the relative pronoun for a noun. If `governed`, the pronoun follows an English preposition."""
    person = "WP", "who" if case == NOMINATIVE else "whom"
    english = person if noun.kind == "p" else ("WDT", "which" if governed else "that")
    return Phrase(("WHNP", english), [RELATIVE[case, "p" if plural else noun.gender]], plural)


def prepositional(english, german, phrase):
    """Return a prepositional phrase. Either language may lack the preposition."""
    tree, words = phrase.english, phrase.german
    contraction = CONTRACTIONS.get(f"{german} {words[0]}") if tree[0] == "NP" else None
    if german:
        words = [contraction, *words[1:]] if contraction else [german, *words]
    if english:
        tree = ("WHPP" if tree[0] == "WHNP" else "PP", ("IN", english), tree)
    return phrase._replace(english=tree, german=words)


def subordinate(english, german, phrase):
    """Return a subordinate clause from a subordinator and a clause whose German verb is at the end."""
    return Phrase(("SBAR", ("IN", english), phrase.english), [",", german, *phrase.german, ","])


# The position of a German object is "late" if it has a preposition, "old" if it is definite, and otherwise "new".
ENGLISH_ORDER = "recipient object predicate adjunct time complement adverbial".split()
GERMAN_ORDER = "subject recipient old time new nicht adjunct late predicate verbs relative complement adverbial".split()


def clause(verb, parts, front="subject", auxiliary="do", negated=False, final=False):
    """Return a clause, which is a relative clause if the first phrase is a relative pronoun.

    `parts` is {grammatical function: `Phrase`}, and `front` is the function of the first phrase. If `final`, the
    German finite verb is last instead of second. The auxiliary "do" appears only with negation.
    """
    subject, thing, first = parts["subject"], parts.get("object"), parts[front].english
    finite, main = PLURAL if subject.plural else SINGULAR, PARTICIPLE if auxiliary == "have" else INFINITIVE
    english_forms, german_forms = AUXILIARIES[auxiliary]
    if auxiliary == "have" and "sein" in verb.features:
        german_forms = ("ist", "sind")
    elif auxiliary == "must" and negated:
        german_forms = ("darf", "dürfen")  # "muss nicht" means "does not have to"

    rest = [parts[name].english for name in ENGLISH_ORDER if name in parts and name != front]
    negation, tag = [("RB", "not")] * negated, "VBP" if subject.plural else "VBZ"
    if auxiliary == "do" and (verb is BE or not negated):
        tree = ("VP", (tag, verb.english[finite]), *negation, *rest)
    else:
        tag = tag if auxiliary in ("do", "have") else "MD"
        verb_phrase = ("VP", ("VBN" if auxiliary == "have" else "VB", verb.english[main]), *rest)
        tree = ("VP", (tag, english_forms[subject.plural]), *negation, verb_phrase)
    if first[0].startswith("WH"):
        tree = ("SBAR", first, ("S", *[subject.english] * (front != "subject"), tree))
    else:
        fronted = [first] * (front != "subject") + [(",", ",")] * (front == "adverbial")
        tree = ("S", *fronted, subject.english, tree)

    if auxiliary == "do":
        inflected, last = verb.german[finite], verb.prefix
        ending = [last + inflected]
    else:
        inflected, last = german_forms[subject.plural], verb.prefix + verb.german[main]
        ending = [last, inflected]
    fields = {name: phrase.german for name, phrase in parts.items()}
    fields |= {"subject": [*subject.german, *subject.relative], "verbs": ending if final else [last]}
    if thing and front != "object":
        place = "late" if verb.prepositions[1] else "old" if thing.scope == "definite" else "new"
        fields[place], fields["relative"] = thing.german, thing.relative
    if negated and not (thing and thing.scope == "negative"):
        fields["nicht"] = ["nicht"]
    german = [*fields.pop(front), *[inflected] * (not final)]
    return Phrase(tree, german + [word for name in GERMAN_ORDER for word in fields.get(name, ())])


def realise(sentence):
    """Return the `Example` of a main clause."""
    tree = capitalised((*sentence.english, (".", ".")))
    english = " ".join(leaves(tree)).replace("can not", "cannot").replace(" ,", ",").replace(" .", ".")
    german = " ".join(filter(None, sentence.german)).replace(" ,", ",").replace(",,", ",").strip(", ")
    return Example(tree, english, capitalised(german) + ".")


NOUNS_OF = {kind: [noun for noun in NOUNS if noun.kind == kind] for kind in "patrfdl"}
NOUNS_AFTER = {row[0]: [noun for noun in NOUNS if row[0] in noun.features] or NOUNS_OF["p"] for row in PREPOSITIONS}
ADJECTIVES_OF = {kind: [adjective for adjective in ADJECTIVES if kind in adjective.kinds] for kind in "patrfdl"}
QUANTIFIED = "definite indefinite quantified"
TENSES = ["do"] * 5 + ["have"] * 2 + ["can", "must", "should", "will"]


def sample_phrase(rng, case, nouns, scopes, relatives=0.0, negated=False):
    """Draw a noun phrase. For a person, it is sometimes a pronoun or a name."""
    noun, plural = rng.choice(nouns), rng.random() < 0.3
    if noun.kind == "p" and rng.random() < 0.25:
        return pronoun(case, rng.choice(PRONOUNS))
    determiners = PLURAL_DETERMINERS if plural else SINGULAR_DETERMINERS
    if "mass" in noun.features:
        determiners, plural = MASS_DETERMINERS, False
    determiner = rng.choice([determiner for determiner in determiners if determiner.scope in scopes])
    adjective = rng.choice(ADJECTIVES_OF[noun.kind]) if rng.random() < 0.4 else None
    relative = sample_relative(rng, noun, plural) if rng.random() < relatives else None
    return noun_phrase(case, determiner, noun, plural, adjective, relative, negated)


def sample_relative(rng, noun, plural):
    """Draw a relative clause in which the noun is the subject or the object."""
    front = rng.choice(["subject", "object"])
    verb = rng.choice([verb for verb in PLAIN if noun.kind in getattr(verb, front + "s")])
    if front == "subject":
        gap = relative_pronoun(NOMINATIVE, noun, plural)
    else:
        gap = prepositional(*verb.prepositions, relative_pronoun(verb.case, noun, plural, bool(verb.prepositions[0])))
    relative = sample_clause(rng, [verb], front, final=True, kind=noun.kind, **{front: gap})
    return relative._replace(german=[",", *relative.german, ","])


def sample_clause(rng, verbs=PLAIN, front="subject", final=False, kind=None, relatives=0.0, tenses=TENSES, **parts):
    """Draw a clause that contains `parts`. If `parts` has a subject, `kind` must be the kind of the subject's noun."""
    verb, auxiliary, negated = rng.choice(verbs), rng.choice(tenses), rng.random() < 0.2
    if "subject" not in parts:
        kind, scopes = rng.choice(verb.subjects), "definite" if negated else QUANTIFIED
        parts["subject"] = sample_phrase(rng, NOMINATIVE, NOUNS_OF[kind], scopes, relatives)
    if "recipient" in verb.features:
        parts["recipient"] = sample_phrase(rng, DATIVE, NOUNS_OF["p"], "definite")
    if verb.objects and "object" not in parts:
        nouns, scopes = NOUNS_OF[rng.choice(verb.objects)], "definite indefinite" if negated else QUANTIFIED
        thing = sample_phrase(rng, verb.case, nouns, scopes, relatives, negated and not verb.prepositions[1])
        parts["object"] = prepositional(*verb.prepositions, thing)
    closed = "complement" in parts or "object" in parts and parts["object"].relative
    prepositions = [row for row in PREPOSITIONS if row[3] in verb.features]
    if verb is BE and (kind == "l" or rng.random() < 0.7):
        adjective = rng.choice(ADJECTIVES_OF[kind])
        parts["predicate"] = Phrase(("ADJP", ("JJ", adjective.english)), [adjective.german])
    elif prepositions and not closed and (verb is BE or rng.random() < (0.2 if verb.objects else 0.7)):
        english, german, case, sort = rng.choice(prepositions)
        place = sample_phrase(rng, case, NOUNS_AFTER[english], "definite indefinite")
        parts["adjunct"] = prepositional(english, german, place)
        if sort == "place" and verb is not BE and front == "subject" and not final and rng.random() < 0.3:
            front = "adjunct"
    phrase, fits = rng.choice(TIMES)
    if auxiliary in fits and (not negated or "not" in fits):
        if front == "subject" and not final and rng.random() < 0.25:
            parts["time"], front = phrase, "time"
        elif not closed and rng.random() < 0.2:
            parts["time"] = phrase
    return clause(verb, parts, front, auxiliary, negated, final)


def sample(rng):
    """Draw an `Example` with a `random.Random`."""
    draw = rng.random()
    if draw < 0.15:
        (english, words), first, second = rng.choice(CONJUNCTIONS), sample_clause(rng), sample_clause(rng)
        tree = ("S", first.english, (",", ","), ("CC", english), second.english)
        sentence = Phrase(tree, [*first.german, *words, *second.german])
    elif draw < 0.35:
        complement = subordinate("that", "dass", sample_clause(rng, final=True, relatives=0.1))
        sentence = sample_clause(rng, CLAUSAL, complement=complement)
    elif draw < 0.55:
        adverbial = subordinate(*rng.choice(SUBORDINATORS), sample_clause(rng, final=True, tenses=TENSES[:-1]))
        sentence = sample_clause(rng, front=rng.choice(["subject", "adverbial"]), adverbial=adverbial)
    else:
        sentence = sample_clause(rng, relatives=0.25)
    return realise(sentence)


BUCKETS = {"train": range(48, 256), "validation": range(16), "test": range(16, 48)}


def examples(split, count):
    """Yield the first `count` examples of a split, which are distinct, deterministic and in no other split."""
    rng, seen = random.Random(0), set()
    while len(seen) < count:
        example = sample(rng)
        if example.english not in seen and hashlib.sha256(example.english.encode()).digest()[0] in BUCKETS[split]:
            seen.add(example.english)
            yield example


@register_problem("toy_ende")
@dataclasses.dataclass(kw_only=True)
class ToyEnDe(TranslationProblem):
    """Translation of English sentences to German with an embedded grammar, without a download."""

    source: ClassVar[str] = "en"
    target: ClassVar[str] = "de"
    vocab_size: int = setting(800, "number of pieces in the joint vocabulary", low=16)
    train_pairs: int = setting(30_000, "number of distinct training pairs", low=1)

    def pairs(self, split):
        count = {"train": self.train_pairs, "validation": 500, "test": 1000}[split]
        return ((example.english, example.german) for example in examples(split, count))
