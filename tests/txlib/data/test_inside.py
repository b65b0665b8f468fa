"""What is kept of lesson 43's runs: three starts, and a head's score that says what patching it brings back."""

import inside


def test_from_each_start_high_scores_note_what_came_before_and_low_ones_carry_the_symbol():
    kept = inside.RUNS.kept()
    assert all(runs.keys() == {"0", "1", "2"} for runs in kept.values())
    for seed, patched in kept["patched"].items():
        scores = kept["births"][seed][-1]["before"]
        for what, has_high_scores in {"answer": False, "symbol before": True}.items():
            for score, back in zip(scores, patched[what]["heads"], strict=True):
                assert (score > 0.5) == has_high_scores or abs(back) < 0.06


def test_only_two_paths_matter():
    for patched in inside.RUNS.kept()["patched"].values():
        for what, used in {"answer": "value", "symbol before": "key"}.items():
            for reader in {"query", "key", "value"} - {used}:
                assert all(abs(back) < 0.025 for back in patched[what][reader])
