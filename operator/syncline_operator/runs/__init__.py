"""TrainingRun: from what is observed to what must be, pure. Opens with `decide.py`; `service.py` has the objects that run.

Nothing here asks a server or a clock, so that every case is a row of a table in the tests.
"""
