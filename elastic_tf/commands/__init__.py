"""What `python -m elastic_tf` does, and the scripts in profiling/ and experiments/ with it.

In: the words of a command line. Out: files and tables. `profile`, `train`, `compare`, `plot` and
`doctor` are a dataclass of options and a `main` each, which loads TensorFlow after it has read its
words; `commandline` reads them. `training/` is behind `train`, `comparing/` behind `compare`,
`settings_search` behind `profile`. The library never imports from here.
"""
