"""Search for the best setting of every cell of an experiment: ``python -m fl_app.search``.

Every cell gets the same number of trials and the same budget of client updates or seconds. A trial
is one setting, run with every seed. Settings come from a grid, then from Optuna's tree-structured
Parzen estimator. Each cell has a study of its own, whose trials follow one another. So a study does
not depend on how many runs go on at a time, nor on interruptions.
"""
