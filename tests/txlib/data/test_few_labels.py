"""What is kept of the runs of lesson 15: those that its script makes."""

import random

import few_labels


def test_the_shipped_runs_are_those_of_the_script():
    kept = few_labels.RUNS.kept()
    parts = {"MiniLM", "small BERT", "untrained", "reviews", "too fast", "tasks", "baselines"}
    assert kept.keys() == parts | {"meanings, random weights", "tasks, random weights"}
    assert kept["meanings, random weights"].keys() == {"0", "1", "2"}
    assert kept["reviews"].keys() == {"counting words", "BERT's features", "MiniLM's features", "fine-tuned"}
    for sizes in kept["reviews"].values():
        assert sizes.keys() == set(map(str, few_labels.SIZES))
        assert all(found.keys() == {"0", "1", "2"} for found in sizes.values())
    assert kept["too fast"].keys() == {"0", "1", "2"}
    assert kept["tasks"].keys() == kept["baselines"].keys() == {"pairs", "tags", "spans", "choice"}
    for kind in ("tasks", "tasks, random weights"):
        assert kept[kind].keys() == kept["baselines"].keys()
        assert all(found.keys() == {"0", "1", "2"} for found in kept[kind].values())


def test_an_arc_leads_to_the_word_that_it_names():
    for seed in range(20):
        words, arcs = few_labels.sentence(random.Random(seed))
        for relation, i, j in arcs:
            looks, right = relation.split(" → ")
            kinds = {"article": ["the"], "adjective": few_labels.ADJECTIVES, "verb": few_labels.VERBS}
            nouns = few_labels.PEOPLE + few_labels.THINGS
            assert words[i] in kinds.get(looks, nouns) and words[j] in kinds.get(right, nouns)
