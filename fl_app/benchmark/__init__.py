"""A benchmark that others enter: ``python -m fl_app.benchmark package.module.Class``.

It tries whether a method does what an aggregation must (`conformance`), searches its rate like that
of the other methods (`fl_app.search`), and writes its place among them (`page`).
"""
