"""Search for the best setting of every cell of an experiment: ``python -m fl_app.search``.

Optuna chooses and remembers: a study for each cell in one journal, and its tree-structured Parzen
estimator. This package adds what a fair comparison needs: the same number of trials and the same
budget for every cell, and fresh seeds for the runs that are compared.
"""
