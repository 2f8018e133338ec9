"""Tests that compare the German text of the toy grammar with hand-written paradigms and sentences."""

import collections
import itertools
import random
import sys

import pytest

from keras_transformer.config import registry

registry.load_catalog()
grammar = sys.modules[registry.problems.get("toy_ende").__module__]
CASES = NOMINATIVE, ACCUSATIVE, DATIVE = grammar.NOMINATIVE, grammar.ACCUSATIVE, grammar.DATIVE
POOLS = {False: grammar.SINGULAR_DETERMINERS, True: grammar.PLURAL_DETERMINERS}
DETERMINERS = {(row.english_plural if plural else row.english): row for plural in POOLS for row in POOLS[plural]}
DETERMINERS["an"] = grammar.A


# Phrases from English words


def nominal(text, case, **options):
    """Return the noun phrase for an English text, such as "the small dogs", "she" or "Anna"."""
    for row in grammar.PRONOUNS:
        if text in row[1:3]:
            return grammar.pronoun(case, row)
    *modifiers, head = text.split()
    (noun,) = (noun for noun in grammar.NOUNS if head in (noun.english, noun.english_plural))
    determiner = DETERMINERS[modifiers.pop(0) if modifiers and modifiers[0] in DETERMINERS else ""]
    (adjective,) = [row for row in grammar.ADJECTIVES if row.english in modifiers] or [None]
    assert len(modifiers) == bool(adjective), text
    return grammar.noun_phrase(case, determiner, noun, head == noun.english_plural, adjective, **options)


def verb_of(text):
    """Return the verb for an English text, such as "see", "wait for" or, with a subordinate clause, "think that"."""
    infinitive, _, preposition = text.partition(" ")
    clausal = preposition == "that"
    (verb,) = (
        verb
        for verb in grammar.VERBS
        if verb.english[0] == infinitive
        and (clausal or verb.prepositions[0] == preposition)
        and ("that" in verb.features) == clausal
    )
    return verb


def say(subject, verb, *, relative=None, **parts):
    """Build a clause from the English texts of its parts. `relative` is a relative clause that modifies the object."""
    verb = verb_of(verb)
    options = {name: parts.pop(name) for name in ("front", "auxiliary", "negated", "final") if name in parts}
    phrases = {"subject": nominal(subject, NOMINATIVE) if isinstance(subject, str) else subject}
    for name, part in parts.items():
        if name == "recipient":
            part = nominal(part, DATIVE)
        elif name == "object" and isinstance(part, str):
            kein = options.get("negated", False) and not verb.prepositions[1]
            part = grammar.prepositional(*verb.prepositions, nominal(part, verb.case, negated=kein, relative=relative))
        elif name == "adjunct":
            preposition, _, text = part.partition(" ")
            (row,) = (row for row in grammar.PREPOSITIONS if row[0] == preposition)
            part = grammar.prepositional(*row[:2], nominal(text, row[2]))
        elif name == "predicate":
            (adjective,) = (row for row in grammar.ADJECTIVES if row.english == part)
            part = grammar.Phrase(("ADJP", ("JJ", part)), [adjective.german])
        elif name == "time":
            (part,) = (phrase for phrase, _ in grammar.TIMES if " ".join(grammar.leaves(phrase.english)) == part)
        phrases[name] = part
    return grammar.clause(verb, phrases, **options)


def that(*arguments, **parts):
    return grammar.subordinate("that", "dass", say(*arguments, final=True, **parts))


def sub(subordinator, *arguments, **parts):
    german = dict(grammar.SUBORDINATORS)[subordinator]
    return grammar.subordinate(subordinator, german, say(*arguments, final=True, **parts))


def who(head, verb, plural=False, **parts):
    """Return a relative clause whose pronoun refers to `head` and is the subject."""
    (noun,) = (noun for noun in grammar.NOUNS if noun.english == head)
    clause = say(grammar.relative_pronoun(NOMINATIVE, noun, plural), verb, final=True, front="subject", **parts)
    return clause._replace(german=[",", *clause.german, ","])


def whom(head, subject, verb, plural=False, **parts):
    """Return a relative clause whose pronoun refers to `head` and is the object."""
    (noun,) = (noun for noun in grammar.NOUNS if noun.english == head)
    prepositions, case = verb_of(verb).prepositions, verb_of(verb).case
    pronoun = grammar.relative_pronoun(case, noun, plural, governed=bool(prepositions[0]))
    thing = grammar.prepositional(*prepositions, pronoun)
    clause = say(subject, verb, object=thing, final=True, front="object", **parts)
    return clause._replace(german=[",", *clause.german, ","])


def with_relative(text, relative):
    return nominal(text, NOMINATIVE, relative=relative)


# Agreement


@pytest.mark.parametrize(
    "english, german",  # the German forms are nominative, accusative and dative
    [
        ("the small dog", "der kleine Hund, den kleinen Hund, dem kleinen Hund"),
        ("the small cat", "die kleine Katze, die kleine Katze, der kleinen Katze"),
        ("the small horse", "das kleine Pferd, das kleine Pferd, dem kleinen Pferd"),
        ("the small dogs", "die kleinen Hunde, die kleinen Hunde, den kleinen Hunden"),
        ("a small dog", "ein kleiner Hund, einen kleinen Hund, einem kleinen Hund"),
        ("a small cat", "eine kleine Katze, eine kleine Katze, einer kleinen Katze"),
        ("a small horse", "ein kleines Pferd, ein kleines Pferd, einem kleinen Pferd"),
        ("small dogs", "kleine Hunde, kleine Hunde, kleinen Hunden"),
        ("cold coffee", "kalter Kaffee, kalten Kaffee, kaltem Kaffee"),
        ("cold milk", "kalte Milch, kalte Milch, kalter Milch"),
        ("cold water", "kaltes Wasser, kaltes Wasser, kaltem Wasser"),
        ("this old house", "dieses alte Haus, dieses alte Haus, diesem alten Haus"),
        ("these old houses", "diese alten Häuser, diese alten Häuser, diesen alten Häusern"),
        ("my old uncle", "mein alter Onkel, meinen alten Onkel, meinem alten Onkel"),
        ("my old aunts", "meine alten Tanten, meine alten Tanten, meinen alten Tanten"),
        ("our new lamp", "unsere neue Lampe, unsere neue Lampe, unserer neuen Lampe"),
        ("our new book", "unser neues Buch, unser neues Buch, unserem neuen Buch"),
        ("every young woman", "jede junge Frau, jede junge Frau, jeder jungen Frau"),
        ("every young man", "jeder junge Mann, jeden jungen Mann, jedem jungen Mann"),
        ("all good children", "alle guten Kinder, alle guten Kinder, allen guten Kindern"),
        ("many good children", "viele gute Kinder, viele gute Kinder, vielen guten Kindern"),
        ("two good children", "zwei gute Kinder, zwei gute Kinder, zwei guten Kindern"),
        ("an expensive hat", "ein teurer Hut, einen teuren Hut, einem teuren Hut"),
        ("the dark kitchen", "die dunkle Küche, die dunkle Küche, der dunklen Küche"),
        ("a tired girl", "ein müdes Mädchen, ein müdes Mädchen, einem müden Mädchen"),
        ("the neighbour", "der Nachbar, den Nachbarn, dem Nachbarn"),
        ("an elephant", "ein Elefant, einen Elefanten, einem Elefanten"),
        ("the cars", "die Autos, die Autos, den Autos"),
        ("the queens", "die Königinnen, die Königinnen, den Königinnen"),
        ("she", "sie, sie, ihr"),
        ("they", "sie, sie, ihnen"),
        ("we", "wir, uns, uns"),
        ("Anna", "Anna, Anna, Anna"),
    ],
)
def test_noun_phrases_agree(english, german):
    forms = [nominal(english, case) for case in CASES]
    assert ", ".join(" ".join(filter(None, form.german)) for form in forms) == german
    assert " ".join(grammar.leaves(forms[0].english)) == english


@pytest.mark.parametrize(
    "english, german",
    [
        ("a small dog", "kein kleiner Hund, keinen kleinen Hund, keinem kleinen Hund"),
        ("an apple", "kein Apfel, keinen Apfel, keinem Apfel"),
        ("a small cat", "keine kleine Katze, keine kleine Katze, keiner kleinen Katze"),
        ("small dogs", "keine kleinen Hunde, keine kleinen Hunde, keinen kleinen Hunden"),
        ("fresh bread", "kein frisches Brot, kein frisches Brot, keinem frischen Brot"),
        ("the small dog", "der kleine Hund, den kleinen Hund, dem kleinen Hund"),
    ],
)
def test_indefinite_noun_phrases_are_negated(english, german):
    forms = [nominal(english, case, negated=True) for case in CASES]
    assert ", ".join(" ".join(form.german) for form in forms) == german


def test_articles_and_endings_match_grammar_tables():
    """Compare articles and endings with the tables of grammar books, in nominative, accusative and dative."""
    books = {
        "ARTICLE": {"m": "der den dem", "f": "die die der", "n": "das das dem", "p": "die die den"},
        "RELATIVE": {"m": "der den dem", "f": "die die der", "n": "das das dem", "p": "die die denen"},
        "STRONG": {"m": "er en em", "f": "e e er", "n": "es es em", "p": "e e en"},
        "MIXED": {"m": "er en en", "f": "e e en", "n": "es es en", "p": "en en en"},
        "WEAK": {"m": "e en en", "f": "e e en", "n": "e e en", "p": "en en en"},
        "EIN": {"m": "- en em", "f": "e e er", "n": "- - em", "p": "e e en"},
    }
    for name, genders in books.items():
        for gender, forms in genders.items():
            assert [getattr(grammar, name)[case, gender] or "-" for case in CASES] == forms.split(), (name, gender)


# Sentences

SENTENCES = [
    (say("the dog", "sleep"), "The dog sleeps.", "Der Hund schläft."),
    (say("the dogs", "sleep"), "The dogs sleep.", "Die Hunde schlafen."),
    (
        say("the small dog", "see", object="a cat", time="today", front="time"),
        "Today the small dog sees a cat.",
        "Heute sieht der kleine Hund eine Katze.",
    ),
    (
        say("the man", "see", object="a dog", time="now"),
        "The man sees a dog now.",
        "Der Mann sieht jetzt einen Hund.",
    ),
    (
        say("the man", "see", object="the dog", time="now", negated=True),
        "The man does not see the dog now.",
        "Der Mann sieht den Hund jetzt nicht.",
    ),
    (
        say("the children", "drink", object="hot milk", negated=True),
        "The children do not drink hot milk.",
        "Die Kinder trinken keine heiße Milch.",
    ),
    (
        say("my aunt", "give", recipient="the old man", object="an apple"),
        "My aunt gives the old man an apple.",
        "Meine Tante gibt dem alten Mann einen Apfel.",
    ),
    (
        say("we", "show", recipient="her", object="the letters", time="tomorrow", auxiliary="will"),
        "We will show her the letters tomorrow.",
        "Wir werden ihr die Briefe morgen zeigen.",
    ),
    (
        say("Paul", "call", object="the doctor", time="in summer", front="time"),
        "In summer Paul calls the doctor.",
        "Im Sommer ruft Paul den Arzt an.",
    ),
    (
        say("she", "invite", object="him", auxiliary="have", negated=True),
        "She has not invited him.",
        "Sie hat ihn nicht eingeladen.",
    ),
    (
        say("the students", "go", adjunct="into the old school", auxiliary="have"),
        "The students have gone into the old school.",
        "Die Studenten sind in die alte Schule gegangen.",
    ),
    (say("he", "run", adjunct="into the house"), "He runs into the house.", "Er läuft ins Haus."),
    (say("he", "go", adjunct="to the tree"), "He goes to the tree.", "Er geht zum Baum."),
    (say("he", "go", adjunct="to the school"), "He goes to the school.", "Er geht zur Schule."),
    (
        say("she", "dream of", object="the horse"),
        "She dreams of the horse.",
        "Sie träumt vom Pferd.",
    ),
    (
        say("the girl", "wait for", object="us", adjunct="behind the house", auxiliary="must"),
        "The girl must wait for us behind the house.",
        "Das Mädchen muss hinter dem Haus auf uns warten.",
    ),
    (
        say("the girl", "buy", object="bread", auxiliary="must", negated=True),
        "The girl must not buy bread.",
        "Das Mädchen darf kein Brot kaufen.",
    ),
    (
        say("they", "look for", object="a key", auxiliary="can", negated=True),
        "They cannot look for a key.",
        "Sie können keinen Schlüssel suchen.",
    ),
    (
        say("they", "look at", object="the pictures", auxiliary="should"),
        "They should look at the pictures.",
        "Sie sollten die Bilder ansehen.",
    ),
    (
        say("the car", "belong to", object="my teacher", negated=True),
        "The car does not belong to my teacher.",
        "Das Auto gehört meinem Lehrer nicht.",
    ),
    (
        say("the women", "listen to", object="the neighbour"),
        "The women listen to the neighbour.",
        "Die Frauen hören dem Nachbarn zu.",
    ),
    (
        say("the wolves", "follow", object="a horse", auxiliary="have"),
        "The wolves have followed a horse.",
        "Die Wölfe sind einem Pferd gefolgt.",
    ),
    (
        say("our houses", "be", predicate="expensive", negated=True),
        "Our houses are not expensive.",
        "Unsere Häuser sind nicht teuer.",
    ),
    (
        say("the knives", "be", adjunct="on the table", auxiliary="have"),
        "The knives have been on the table.",
        "Die Messer sind auf dem Tisch gewesen.",
    ),
    (
        say("old women", "sing", adjunct="under a tree", front="adjunct"),
        "Under a tree old women sing.",
        "Unter einem Baum singen alte Frauen.",
    ),
    (
        say("she", "know that", complement=that("the mouse", "eat", object="the cheese")),
        "She knows that the mouse eats the cheese.",
        "Sie weiß, dass die Maus den Käse isst.",
    ),
    (
        say("he", "think that", complement=that("the cat", "arrive", auxiliary="have")),
        "He thinks that the cat has arrived.",
        "Er denkt, dass die Katze angekommen ist.",
    ),
    (
        say("the cat", "play", adverbial=sub("because", "the child", "call", object="her")),
        "The cat plays because the child calls her.",
        "Die Katze spielt, weil das Kind sie anruft.",
    ),
    (
        say("she", "work", front="adverbial", adverbial=sub("although", "she", "be", predicate="tired")),
        "Although she is tired, she works.",
        "Obwohl sie müde ist, arbeitet sie.",
    ),
    (
        say("we", "sing", front="adverbial", adverbial=sub("when", "he", "read", object="letters", auxiliary="can")),
        "When he can read letters, we sing.",
        "Wenn er Briefe lesen kann, singen wir.",
    ),
    (
        say(with_relative("the man", who("man", "see", object="the dog")), "sleep"),
        "The man who sees the dog sleeps.",
        "Der Mann, der den Hund sieht, schläft.",
    ),
    (
        say("Anna", "find", object="the key", auxiliary="have", relative=whom("key", "he", "look for")),
        "Anna has found the key for which he looks.",
        "Anna hat den Schlüssel gefunden, den er sucht.",
    ),
    (
        say("Anna", "help", object="the girls", relative=whom("girl", "we", "wait for", plural=True)),
        "Anna helps the girls for whom we wait.",
        "Anna hilft den Mädchen, auf die wir warten.",
    ),
    (
        say(with_relative("the friends", whom("friend", "she", "thank", plural=True)), "arrive", auxiliary="will"),
        "The friends whom she thanks will arrive.",
        "Die Freunde, denen sie dankt, werden ankommen.",
    ),
    (
        say("he", "visit", object="a house", negated=True, relative=who("house", "be", predicate="dark")),
        "He does not visit a house that is dark.",
        "Er besucht kein Haus, das dunkel ist.",
    ),
]


@pytest.mark.parametrize("phrase, english, german", SENTENCES, ids=[english for _, english, _ in SENTENCES])
def test_sentences_are_translated_correctly(phrase, english, german):
    assert grammar.realise(phrase)[1:] == (english, german)


# Word order in randomly drawn clauses

FINITE = {form for verb in grammar.VERBS for form in (verb.german[grammar.SINGULAR], verb.german[grammar.PLURAL])}
AUXILIARY = {form for _, forms in grammar.AUXILIARIES.values() for form in forms if form}
AUXILIARY |= {"ist", "sind", "darf", "dürfen"}
TIMES = {" ".join(phrase.german) for phrase, _ in grammar.TIMES}


def test_verb_is_second_in_main_clauses(fresh_seed):
    rng, fronted = random.Random(fresh_seed), collections.Counter()
    for _ in range(5000):
        phrase = grammar.sample_clause(rng)
        words = list(filter(None, phrase.german))
        first = list(itertools.takewhile(lambda word: word not in FINITE | AUXILIARY, words))
        assert len(first) < len(words), words
        if phrase.english[1][0] == "NP" and len(phrase.english) == 3:
            assert first[-1] in ("er", "sie", "wir") or first[-1][0].isupper(), words
            assert sum(word[0].isupper() for word in first) < 2, words
        else:
            is_time = " ".join(first) in TIMES
            assert is_time or first[0] in ("im", "in", "auf", "unter", "hinter") and first[-1][0].isupper(), words
            fronted[is_time] += 1
    assert fronted[True] > 200 and fronted[False] > 100


def test_verb_is_last_in_subordinate_clauses(fresh_seed):
    rng = random.Random(fresh_seed)
    finite = AUXILIARY | {verb.prefix + form for verb in grammar.VERBS for form in verb.german[grammar.SINGULAR :: 2]}
    for _ in range(5000):
        words = grammar.sample_clause(rng, final=True).german
        assert words[-1] in finite, words
        assert not AUXILIARY & set(words[:-1]), words
