"""Reading of NumPy's format from several threads."""

import threading

reading = threading.RLock()
"""Held while `numpy.load` reads.

NumPy parses the header of every array with `ast.literal_eval`. CPython 3.11 counts the depth of
what it parses in one place for all threads. Where two threads parse at once, one may raise
``SystemError: AST constructor recursion depth mismatch``, and a sound message would be refused.
"""
