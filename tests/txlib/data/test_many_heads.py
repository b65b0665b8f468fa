"""What is kept of the gap-fillers of lesson 04: those that its script trains."""

import many_heads


def test_the_shipped_runs_are_those_of_the_script():
    kept, nothing = many_heads.RUNS.kept(), dict.fromkeys(("ManyHeads", "Added", "split_wrong", "join_wrong"), dict)
    assert [*kept] == [*many_heads.settings(nothing)]
    assert all(starts.keys() == {"0", "1", "2"} for starts in kept.values())
