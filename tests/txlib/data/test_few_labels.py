"""What is kept of the runs of lesson 15: those that its script makes."""

import few_labels


def test_the_shipped_runs_are_those_of_the_script():
    kept = few_labels.RUNS.kept()
    assert kept.keys() == {"MiniLM", "untrained", "reviews", "tasks"}
    assert kept["reviews"].keys() == {"counting words", "BERT's features", "MiniLM's features", "fine-tuned"}
    for sizes in kept["reviews"].values():
        assert sizes.keys() == set(map(str, few_labels.SIZES))
        assert all(found.keys() == {"0", "1", "2"} for found in sizes.values())
    assert kept["tasks"].keys() == {"pairs", "tags", "spans", "choice"}
    assert all(found.keys() == {"0", "1", "2"} for found in kept["tasks"].values())
