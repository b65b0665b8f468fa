"""A whole run: which submissions, by which processes, shown how.

The way of a submission, and the type that it has on each part of it:

    SubmissionFile   a notebook in the inbox, and whose it is             submitting.finding
    Submission       its answers by grade_id, and notes                   submitting.reading, in a bounded process
    Job              with all that grading it takes                       judging.job, sent to a process of the pool
    notebook         the instructor's, with the answers in it             authoring.assignment.rebuild
    Executed         what its cells displayed, run sealed on one seed     judging.execute
    Run, Checked     the same, with its seed; one check's evidence of it  judging.outcome, judging.replay
    Outcome          what one run says of one task                        judging.outcome, by nbval's comparison
    TaskResult       one task over all runs                               judging.judge
    Result           all tasks, notes, score: a row of the gradebook      records.result, records.gradebook
    pages            grades.csv, review.csv, summary.html, feedback/      pages, made of results with their reviews
"""
